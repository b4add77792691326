"""On a CUDA GPU: kernels and whole steps against the reference, the graph, determinism."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from engine_families import FAMILIES, config_of, shape_of  # noqa: E402

from decodegap.engine import Engine  # noqa: E402
from decodegap.engine.check import Model, check_ops, run_steps, small_settings  # noqa: E402
from decodegap.engine.kernels.settings import heuristic, launch_settings  # noqa: E402
from decodegap.engine.kernels.step import (  # noqa: E402
    KernelStep,
    architecture,
    bytes_moved,
    supports_pdl,
)
from decodegap.engine.program import build_program  # noqa: E402
from decodegap.engine.weights import weight_bytes  # noqa: E402
from decodegap.predict.hf_config import from_hf  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

MAX_CONTEXT = 16384
POSITIONS = (0, 1, 31, 2048, MAX_CONTEXT - 1)


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def _num_sms() -> int:
    return torch.cuda.get_device_properties(_device()).multi_processor_count


def _pdl() -> bool:
    return supports_pdl(_device())


def _long_shape(family: str):  # type: ignore[no-untyped-def]
    config = {**config_of(family), "max_position_embeddings": MAX_CONTEXT}
    return from_hf(config, family)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_ops_in_bf16(family: str, position: int) -> None:
    model = Model.random(_long_shape(family), torch.bfloat16, "cuda")
    settings = launch_settings(model.program, architecture(_device()), _num_sms())
    check_ops(model, settings, pdl=_pdl(), position=position)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_ops_in_other_types(dtype: torch.dtype) -> None:
    model = Model.random(_long_shape("qwen3"), dtype, "cuda")
    settings = small_settings(rows=4, tiles=2, block=64, num_splits=16, attend_block=32)
    for position in POSITIONS:
        check_ops(model, settings, pdl=_pdl(), position=position)


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("rows, tiles, block", [(2, 5, 64), (8, 1, 32), (4, 3, 512)])
def test_ops_whatever_the_settings(rows: int, tiles: int, block: int, busy: bool) -> None:
    model = Model.random(_long_shape("qwen2"), torch.bfloat16, "cuda")
    settings = small_settings(rows, tiles, block, num_splits=32, attend_block=16)
    if busy:
        for op in ("norm_qkv", "o_residual", "norm_gate_up", "down_residual", "head"):
            settings = settings.with_op(op, early=True)
        settings = settings.with_op("attend", early=True, together=True)
    check_ops(model, settings, pdl=_pdl(), position=700)
    error, _ = run_steps(model, settings, pdl=_pdl(), position=700, num_steps=3)
    assert error < 0.03


def test_columns_in_blocks_of_every_op_that_may_have_them() -> None:
    model = Model.random(_long_shape("qwen2"), torch.bfloat16, "cuda")
    settings = small_settings(4, 1, 128, num_splits=8, attend_block=16)
    settings = settings.with_op("o_residual", block=128)
    check_ops(model, settings, pdl=_pdl(), position=40)


@pytest.mark.parametrize("family", FAMILIES)
def test_whole_steps(family: str) -> None:
    model = Model.random(_long_shape(family), torch.bfloat16, "cuda")
    settings = heuristic(model.program, _num_sms())
    for position in (0, 31, 2048):
        error, divergence = run_steps(model, settings, _pdl(), position, num_steps=4)
        assert error < 0.03, (family, position, error)
        assert divergence < 1e-3, (family, position, divergence)


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_follows_the_reference_greedily_in_fp32(family: str) -> None:
    shape = shape_of(family)
    graph = Engine.synthetic(shape, device="cuda", dtype="fp32", seed=1)
    assert graph.executor == "graph"
    truth = Engine(
        graph.program, graph.weights, device=_device(), dtype=torch.float32, executor="reference"
    )
    prompt = [1, 2, 3, 4, 5]
    expected = list(truth.generate(prompt, max_new_tokens=64))
    assert list(graph.generate(prompt, max_new_tokens=64)) == expected


def test_a_thousand_steps_are_the_same_twice_and_without_dependent_launch() -> None:
    shape = _long_shape("qwen2")
    first = Engine.synthetic(shape, device="cuda", seed=2)
    other = Engine(first.program, first.weights, device=_device(), dtype=torch.bfloat16, pdl=False)
    tokens = [_thousand(engine) for engine in (first, first, other)]
    assert tokens[0] == tokens[1]
    assert tokens[0] == tokens[2]


def _thousand(engine: Engine) -> list[int]:
    engine.prefill([9, 8, 7])
    seen = []
    for _ in range(1000):
        seen.append(engine.token.clone())
        engine.step()
    engine.wait()
    return torch.cat(seen).tolist()


def test_the_last_slot_can_be_decoded() -> None:
    engine = Engine.synthetic(shape_of("llama2"), max_context=1, device="cuda")
    engine.place(token=1, position=0)
    engine.step()
    engine.wait()
    assert bool(engine.logits.isfinite().all())
    guard = Engine.synthetic(_long_shape("llama2"), device="cuda")
    guard.place(token=1, position=MAX_CONTEXT - 1)
    guard.step()
    guard.wait()
    assert bool(guard.logits.isfinite().all())


def test_steps_allocate_nothing() -> None:
    engine = Engine.synthetic(_long_shape("qwen3"), device="cuda")
    engine.prefill([1, 2, 3])
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(20):
        engine.step()
    engine.wait()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_kernels_move_the_weights_once() -> None:
    model = Model.random(shape_of("qwen3"), torch.bfloat16, "cuda")
    program = build_program(shape_of("qwen3"))
    moved = bytes_moved(program, model.weights, model.random_buffers(0, 1), position=0)
    cache = moved["attend"] - 2 * 2 * 128 * 2  # the two norms of each of two layers
    assert cache == program.shape.kv_bytes_per_token
    streamed = sum(moved.values()) - cache - moved["embed"] - program.shape.vocab_size * 4
    assert streamed == weight_bytes(program, torch.bfloat16)


def test_a_step_can_be_launched_without_an_op() -> None:
    model = Model.random(shape_of("qwen2"), torch.bfloat16, "cuda")
    buffers = model.random_buffers(3, 1)
    step = KernelStep(
        model.program, model.weights, buffers, heuristic(model.program, _num_sms()), False
    )
    step.run(without=frozenset({"head"}))
    assert int(buffers["position"]) == 3


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA GPU")
def test_an_engine_lives_on_another_gpu_than_the_current_one() -> None:
    """Captured, filled, replayed and waited for there; the current one stays what it was."""
    here = Engine.synthetic(_long_shape("qwen2"), device="cuda:0", dtype="fp32", seed=4)
    weights = {name: tensor.to("cuda:1") for name, tensor in here.weights.items()}
    there = Engine(here.program, weights, device=torch.device("cuda", 1), dtype=torch.float32)
    prompt = [1, 2, 3, 4]
    with torch.cuda.device(0):
        expected = list(here.generate(prompt, max_new_tokens=32))
        assert list(there.generate(prompt, max_new_tokens=32)) == expected
        there.prefill(prompt)
        for _ in range(200):
            there.step()
        there.wait()
        assert torch.cuda.current_stream(1).query()  # nothing is left to do
        there.step_without("attend")()
        assert torch.cuda.current_device() == 0


def test_a_device_without_a_number_is_the_current_one_for_good() -> None:
    engine = Engine.synthetic(shape_of("llama2"), device="cuda")
    assert engine.device == _device()
