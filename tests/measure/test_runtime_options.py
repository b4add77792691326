"""Runtimes with options: one spelling, refusals that name what there is, and an option that takes
effect."""

import pytest

from builders import make_trial, run_trial, tiny
from decodegap.errors import UnknownFormat, UnknownRuntime
from decodegap.measure.machine import list_gpus
from decodegap.measure.runtimes.registry import (
    RUNTIMES,
    default_runtimes,
    get_runtime,
    parse_runtime,
)
from decodegap.measure.trial import Request, plan_trials


@pytest.mark.parametrize(
    "text, canonical",
    [
        ("hf-eager", "hf-eager"),
        ("hf-eager?sdpa=flash", "hf-eager?sdpa=flash"),
        ("hf-eager?sdpa=auto", "hf-eager"),
        ("hf-eager?sdpa=math&sdpa=math", "hf-eager?sdpa=math"),
    ],
)
def test_one_meaning_has_one_spelling(text, canonical):
    assert parse_runtime(text).text == canonical
    assert parse_runtime(canonical).text == canonical


def test_an_option_left_out_has_its_default():
    assert parse_runtime("hf-eager").option("sdpa") == "auto"
    assert parse_runtime("hf-graph?sdpa=cudnn").option("sdpa") == "cudnn"
    assert get_runtime("hf-graph?sdpa=cudnn") is RUNTIMES["hf-graph"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("hf-eagre", "did you mean hf-eager"),
        ("hf-eagre?sdpa=flash", "did you mean hf-eager"),
        ("hf-eager?spda=flash", "no option 'spda'; it has sdpa"),
        ("hf-eager?sdpa=fast", "none of auto, flash, efficient, cudnn, math"),
        ("hf-eager?sdpa", "none of auto, flash"),
        ("hf-eager?", "no option ''; it has sdpa"),
        ("hf-eager?sdpa=flash&sdpa=math", "twice"),
        ("?sdpa=flash", "unknown runtime ''"),
    ],
)
def test_a_wrong_name_option_or_value_is_refused_with_those_there_are(text, words):
    with pytest.raises(UnknownRuntime) as refused:
        parse_runtime(text)
    assert words in str(refused.value)


def test_a_slow_runtime_runs_only_where_it_is_named():
    assert "hf-compile" in RUNTIMES
    assert "hf-compile" not in default_runtimes("bf16", "cuda:0")
    assert "hf-eager" in default_runtimes("bf16", "cpu")
    assert default_runtimes("no such format", "cpu") == []


def request_for(*runtimes, format="bf16"):
    return Request(
        model="smollm2-135m",
        runtimes=runtimes,
        contexts=(64,),
        num_trials=1,
        num_warmup=1,
        num_steps=2,
        weights=None,
        format=format,
        device="cpu",
        seed=0,
        timeout_seconds=60,
        probes=False,
    )


def test_the_plan_keeps_the_canonical_text():
    planned = plan_trials(request_for("hf-static?sdpa=auto", "hf-eager?sdpa=math"))
    assert [trial.runtime for trial in planned] == ["hf-static", "hf-eager?sdpa=math"]


def test_weights_a_runtime_cannot_take_are_refused_before_anything_runs():
    with pytest.raises(UnknownFormat, match="hf-eager does not take nf4; it takes bf16"):
        plan_trials(request_for("hf-eager", format="nf4"))


def operators(record):
    return {kernel.name for kernel in record.measurement.profile.kernels}


def test_the_sdpa_option_decides_which_attention_runs():
    by_default = run_trial(make_trial(runtime="hf-eager"))
    restricted = run_trial(make_trial(runtime="hf-eager?sdpa=math"))
    assert (by_default.outcome, restricted.outcome) == ("ok", "ok")
    fused = {name for name in operators(by_default) if "flash_attention" in name}
    assert fused
    assert not fused & operators(restricted)
    assert restricted.trial.runtime == "hf-eager?sdpa=math"


def test_attention_that_has_no_such_kernel_is_unavailable_not_another_kernel():
    record = run_trial(make_trial(runtime="hf-static?sdpa=cudnn"))
    assert record.outcome == "unavailable"
    assert "sdpa=cudnn has no kernel" in record.reason
    assert "take sdpa=auto" in record.reason


def test_a_model_that_does_not_run_sdpa_has_no_choice_of_its_kernels():
    capped = tiny(
        model_type="gemma2",
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=None,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        tie_word_embeddings=True,
        hidden_act=None,
        hidden_activation="gelu_pytorch_tanh",
    )
    record = run_trial(make_trial(capped, runtime="hf-eager?sdpa=math"))
    assert record.outcome == "unavailable", record.reason
    assert "does not run torch's SDPA" in record.reason


@pytest.mark.gpu
@pytest.mark.skipif(not list_gpus(), reason="no CUDA GPU")
def test_a_compiled_step_is_right_and_its_compiling_is_apart():
    trial = make_trial(
        runtime="hf-compile", format="bf16", device="cuda:0", num_steps=10, timeout_seconds=300.0
    )
    record = run_trial(trial)
    assert record.outcome == "ok", record.reason
    measured = record.measurement
    assert measured.prepare_seconds > 100 * max(measured.timings["warmup"])
    launched = sum(kernel.count for kernel in measured.profile.kernels)
    static = run_trial(make_trial(runtime="hf-static", format="bf16", device="cuda:0"))
    assert launched < sum(kernel.count for kernel in static.measurement.profile.kernels)
