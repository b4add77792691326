"""The engine's interface, on the CPU executor."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from engine_families import shape_of  # noqa: E402

from decodegap.engine import Engine  # noqa: E402
from decodegap.engine.buffers import buffer_bytes  # noqa: E402
from decodegap.engine.sampling import Sampling, sample  # noqa: E402
from decodegap.errors import BadConfig, BadContext  # noqa: E402


@pytest.fixture
def engine() -> Engine:
    return Engine.synthetic(shape_of("smollm2"), max_context=40, device="cpu", dtype="fp32", seed=3)


def test_generate_is_the_same_each_time(engine: Engine) -> None:
    first = list(engine.generate([1, 2, 3], max_new_tokens=12))
    assert len(first) == 12
    assert list(engine.generate([1, 2, 3], max_new_tokens=12)) == first


def test_sampling_follows_its_seed(engine: Engine) -> None:
    def draw(seed: int) -> list[int]:
        return list(engine.generate([1, 2], max_new_tokens=10, temperature=5.0, seed=seed))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize(
    "meanwhile",
    [
        lambda engine: next(engine.generate([4, 5], max_new_tokens=3)),
        lambda engine: engine.prefill([1, 2, 3]),  # the same place, another stream
        lambda engine: engine.step(),
    ],
    ids=["another stream", "another prompt", "a step"],
)
def test_a_stream_whose_cache_was_taken_ends_in_an_error(engine: Engine, meanwhile) -> None:
    stream = engine.generate([1, 2, 3], max_new_tokens=8)
    next(stream)
    meanwhile(engine)
    with pytest.raises(BadContext, match="decoded something else meanwhile"):
        next(stream)


def test_a_stop_token_ends_without_being_yielded(engine: Engine) -> None:
    tokens = list(engine.generate([1, 2, 3], max_new_tokens=12))
    stop = tokens[4]
    stopped = list(engine.generate([1, 2, 3], max_new_tokens=12, stop_tokens=frozenset({stop})))
    assert stopped == tokens[: tokens.index(stop)]


def test_no_new_tokens_is_nothing(engine: Engine) -> None:
    assert list(engine.generate([1], max_new_tokens=0)) == []


@pytest.mark.parametrize(
    "prompt, message",
    [
        ([], "prompt is empty"),
        ([131], "token 131 is outside"),
        ([-1], "token -1 is outside"),
        ([1] * 41, "41 tokens do not fit"),
    ],
)
def test_prompts_that_cannot_be_read(engine: Engine, prompt: list[int], message: str) -> None:
    with pytest.raises(BadContext, match=message):
        engine.prefill(prompt)


def test_a_full_cache_takes_no_step(engine: Engine) -> None:
    engine.prefill([1] * 40)
    with pytest.raises(BadContext, match="positions are used up"):
        engine.step()


def test_place_stays_inside_the_cache(engine: Engine) -> None:
    with pytest.raises(BadContext, match="outside the cache"):
        engine.place(token=1, position=40)


class FakeGpus:
    """Two GPUs, of which 0 is current and idle and 1 has done its work when asked a second time."""

    def __init__(self) -> None:
        self.current = 0
        self.asked: list[int] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self.current = self.current, device.index
        yield
        self.current = before

    def event(self) -> SimpleNamespace:
        made = SimpleNamespace()
        made.record = lambda: setattr(made, "of", self.current)
        made.query = lambda: self._is_done(made.of)
        return made

    def _is_done(self, index: int) -> bool:
        self.asked.append(index)
        return index == 0 or self.asked.count(1) > 1


def test_an_engine_waits_for_its_own_gpu(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = FakeGpus()
    monkeypatch.setattr(torch.cuda, "device", gpus.device)
    monkeypatch.setattr(torch.cuda, "Event", gpus.event)
    engine.device = torch.device("cuda", 1)
    engine.wait()
    assert gpus.asked == [1, 1]


def test_an_engine_knows_its_device_by_what_it_holds(engine: Engine) -> None:
    assert engine.device == engine.buffers["token"].device == torch.device("cpu")


def test_an_unknown_dtype_names_the_known() -> None:
    with pytest.raises(BadConfig, match="unknown dtype 'bf61': did you mean bf16"):
        Engine.synthetic(shape_of("smollm2"), device="cpu", dtype="bf61")


def test_memory_is_what_is_held(engine: Engine) -> None:
    held = sum(t.numel() * t.element_size() for t in engine.weights.values())
    memory = engine.memory_bytes()
    assert memory["weights"] == held
    names = buffer_bytes(engine.program, torch.float32)
    buffers = sum(engine.buffers[name].numel() * engine.buffers[name].element_size()
                  for name in names)  # fmt: skip
    assert memory["cache"] + memory["other"] == buffers


@pytest.mark.parametrize("ids", [[[1, 2], [3, 4]], [1.5, 2.7], torch.zeros(2, 3)])
def test_what_is_no_prompt_is_refused(ids: object) -> None:
    engine = Engine.synthetic(shape_of("llama2"), max_context=8, device="cpu", dtype="fp32")
    with pytest.raises(BadContext, match=r"whole numbers|one prompt at a time"):
        engine.prefill(ids)  # type: ignore[arg-type]
    engine.prefill([[1, 2]])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "values",
    [{"temperature": -1.0}, {"temperature": 1e-45}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}],
)
def test_sampling_values_outside_their_range(values: dict[str, float]) -> None:
    with pytest.raises(BadConfig):
        Sampling(**values)  # type: ignore[arg-type]


def test_top_k_and_top_p_leave_out_the_rest() -> None:
    logits = torch.tensor([0.0, 3.0, 2.9, -1.0, 2.8])
    generator = torch.Generator().manual_seed(0)
    top_k = Sampling(temperature=1.0, top_k=2)
    assert {int(sample(logits, top_k, generator)) for _ in range(200)} == {1, 2}
    top_p = Sampling(temperature=1.0, top_p=0.3)
    assert {int(sample(logits, top_p, generator)) for _ in range(50)} == {1}


def test_frequencies_follow_the_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    generator = torch.Generator().manual_seed(0)
    warm = Sampling(temperature=2.0)
    draws = torch.cat([sample(logits, warm, generator) for _ in range(4000)])
    counted = torch.bincount(draws, minlength=3) / 4000
    torch.testing.assert_close(counted, (logits / 2).softmax(0), atol=0.03, rtol=0.0)


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, decodegap.engine; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
