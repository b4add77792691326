"""Real weights, used as a person uses a downloaded model: measured, and made to talk."""

import pytest
import torch

from builders import make_trial, run_program
from decodegap.measure.runtimes.hf_model import load_model
from decodegap.measure.runtimes.registry import get_runtime, runtime_factory
from decodegap.predict.formats import get_format
from decodegap.predict.resolve import resolve_model
from decodegap.predict.traffic import parameter_bytes
from decodegap.record_files import read_folder
from real_checkpoint import real_checkpoint

pytestmark = pytest.mark.slow

NUM_TOKENS = 64
RUNTIMES = ("hf-eager", "hf-static")


@pytest.fixture(scope="module")
def folder():
    return real_checkpoint()


@pytest.fixture(scope="module")
def measured(folder, tmp_path_factory):
    """One run of the command line, the bandwidth probe included: (how it ended, the records)."""
    out = tmp_path_factory.mktemp("records")
    ended = run_program(
        *("measure", folder, "--context", "64", "--trials", "1", "--steps", "5", "-d", "cpu"),
        *("-r", "hf-eager", "-r", "hf-static", "--out", out, "--json"),
        timeout=500,
        XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")),
    )
    return ended, read_folder(out)[0] if ended.code == 0 else []


def test_the_command_line_measures_it(measured):
    ended, _ = measured
    assert ended.code == 0, ended.err
    cells = ended.json["cells"]
    assert [cell["runtime"] for cell in cells] == list(RUNTIMES)
    assert ended.json["failures"] == []
    for cell in cells:
        assert cell["weights"] == "checkpoint"
        assert cell["floor_s"]["reachable"] < cell["step_s"]
        assert cell["num_samples"] == 5


def test_both_runtimes_compute_what_the_reference_does(measured):
    _, records = measured
    assert [record.outcome for record in records] == ["ok", "ok"]
    for record in records:
        verdict = record.measurement.verdict
        assert verdict.passed
        assert verdict.top1_agreement >= 0.9
        assert verdict.kl_divergence < 1e-2


def test_what_is_held_is_what_was_counted(folder, measured):
    """269 030 016 bytes of weights, as the file on the disk has them."""
    shape = resolve_model(str(folder)).shape
    _, records = measured
    for record in records:
        assert record.measurement.held_bytes["parameters"] == 2 * 134_515_008
        assert record.trial.folder == str(folder)
    counted = parameter_bytes(shape, get_format("bf16"))
    assert counted == 2 * 134_515_008
    size = (folder / "model.safetensors").stat().st_size
    assert 0 < size - counted < 100_000  # the file's header


def test_the_account_of_a_real_step_closes(measured):
    for cell in measured[0].json["cells"]:
        account = cell["account"]
        total = sum(part["seconds"] for part in account["parts"]) + account["residual"]
        assert total == pytest.approx(account["step"], rel=1e-12)
        assert account["step"] == cell["step_s"]


@pytest.fixture(scope="module")
def talk(folder):
    """Greedy text of one runtime after a chat prompt, in fp32: in bf16 two correct runtimes may
    round a near tie apart."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, return_tensors="pt").input_ids
    source = resolve_model(str(folder))

    def generate(runtime: str) -> tuple[list[int], str]:
        trial = make_trial(
            source.config,
            shape=source.shape,
            runtime=runtime,
            format="fp32",
            context=prompt.shape[1],
            num_steps=NUM_TOKENS,
            weights="checkpoint",
            folder=str(folder),
        )
        running = runtime_factory(get_runtime(runtime))(load_model(trial), trial)
        with torch.inference_mode():
            running.prefill(prompt)
            tokens = [int(running.token)]
            for _ in range(NUM_TOKENS - 1):
                running.step()
                tokens.append(int(running.token))
        return tokens, tokenizer.decode(tokens)

    return generate


def test_both_runtimes_give_the_same_sensible_text(talk):
    eager, text = talk("hf-eager")
    static, _ = talk("hf-static")
    assert eager == static
    assert len(eager) == NUM_TOKENS
    assert "Paris" in text
