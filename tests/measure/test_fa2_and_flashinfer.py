"""Attention by packages that are not installed here. In their place stand plain torch functions
with the documented signatures and layouts, which take no more than the real ones take; what is
proven is that the runtimes hand them what they should, and decode what `hf-eager` decodes."""

import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest
import torch
import transformers
from transformers import modeling_flash_attention_utils as flash_utils

from builders import make_trial, shape_of, tiny
from decodegap.errors import Unavailable, UnknownFormat, UnknownRuntime
from decodegap.measure import worker
from decodegap.measure.interventions import Bench, host_twin
from decodegap.measure.runtimes import flashinfer_attention, hf_fa2, registry
from decodegap.measure.runtimes.hf_model import load_model
from decodegap.measure.runtimes.hf_static import num_positions
from decodegap.measure.runtimes.registry import (
    default_runtimes,
    get_runtime,
    parse_runtime,
    runtime_factory,
    why_unavailable,
)
from decodegap.measure.trial import check_format
from decodegap.measure.verdict import judge
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import parameter_bytes
from families import FAMILY_CONFIGS

CONTEXT, NUM_STEPS = 16, 6  # past the windows of 12
TENSOR_CORES = "flashinfer?tensor_cores=on"
CAPPED = FAMILY_CONFIGS["gemma2"] | {
    "sliding_window": None,
    "attn_logit_softcapping": 50.0,
    "head_dim": 64,
}


@pytest.fixture(autouse=True)
def _strong_weights(monkeypatch):
    """Synthetic weights wide enough that position and context decide the logits."""
    from decodegap.measure.runtimes import hf_model

    monkeypatch.setattr(hf_model, "_SYNTHETIC_STD", 0.3)


def trial_of(config: dict[str, Any], runtime: str, **changes: Any):
    settings = {"context": CONTEXT, "num_steps": NUM_STEPS, "runtime": runtime} | changes
    return make_trial(config, shape=shape_of(config), **settings)


def load(model: Any, trial: Any) -> Any:
    return runtime_factory(get_runtime(trial.runtime))(model, trial)


def decode_with(model: Any, trial: Any) -> tuple[list[int], torch.Tensor, Any]:
    """(tokens, logits of the last step, the runtime) of a prefill and the trial's steps."""
    with torch.inference_mode():
        runtime = load(model, trial)
        runtime.prefill(worker.make_prompt(trial))
        tokens = [int(runtime.token)]
        for _ in range(trial.num_steps):
            runtime.step()
            tokens.append(int(runtime.token))
    return tokens, runtime.logits(), runtime


def assert_decodes_as_eager(trial: Any) -> None:
    model = load_model(trial)
    expected, logits, _ = decode_with(model, msgspec.structs.replace(trial, runtime="hf-eager"))
    tokens, own_logits, _ = decode_with(model, trial)
    assert tokens == expected
    torch.testing.assert_close(own_logits, logits, rtol=1e-3, atol=1e-3)


def attention(q, k, v, scale, visible):
    """Attention of q [queries, heads, dim] over k and v [positions, kv_heads, dim]; `visible` is a
    bool [queries, positions]. Straight from the definition: [queries, heads, dim]."""
    groups = q.shape[1] // k.shape[1]
    k, v = (states.repeat_interleave(groups, dim=1) for states in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * scale
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)


# flashinfer


class FakeFlashinfer(ModuleType):
    """`single_decode_with_kv_cache` as documented: q [heads, dim], k and v [positions, kv_heads,
    dim] for NHD, all contiguous. Remembers what it was given."""

    groups_without_tensor_cores = (1, 2, 3, 4, 8)  # those of 0.6.13

    def __init__(self) -> None:
        super().__init__("flashinfer")
        self.calls: list[Any] = []

    def single_decode_with_kv_cache(
        self,
        q,
        k,
        v,
        kv_layout="NHD",
        pos_encoding_mode="NONE",
        use_tensor_cores=False,
        sm_scale=None,
    ):
        assert (q.dim(), k.dim(), kv_layout, pos_encoding_mode) == (2, 3, "NHD", "NONE")
        assert q.is_contiguous()
        assert k.is_contiguous()
        assert v.is_contiguous()
        assert k.shape == v.shape
        group = q.shape[0] // k.shape[1]
        if not use_tensor_cores and group not in self.groups_without_tensor_cores:
            raise RuntimeError(f"Error in function 'x' at y:1: Unsupported group_size: {group}")
        self.calls.append((q, k, v, use_tensor_cores))
        scale = q.shape[1] ** -0.5 if sm_scale is None else sm_scale
        return attention(q[None], k, v, scale, torch.ones(1, len(k), dtype=torch.bool))[0]


@pytest.fixture
def flashinfer(monkeypatch):
    fake = FakeFlashinfer()
    monkeypatch.setitem(sys.modules, "flashinfer", fake)
    return fake


def grouped(num_heads: int, num_kv_heads: int, **changes: Any) -> dict[str, Any]:
    return tiny(
        model_type="qwen2",
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        hidden_size=64 * num_heads,
        **changes,
    )


@pytest.mark.parametrize(
    "heads, kv_heads, runtime",
    [
        (2, 2, "flashinfer"),
        (3, 1, "flashinfer"),
        (6, 2, "flashinfer"),
        (7, 1, TENSOR_CORES),
        (14, 2, TENSOR_CORES),
        (3, 1, TENSOR_CORES),
    ],
)
def test_flashinfer_decodes_what_eager_decodes(flashinfer, heads, kv_heads, runtime):
    assert_decodes_as_eager(trial_of(grouped(heads, kv_heads), runtime))
    assert {call[3] for call in flashinfer.calls} == {runtime == TENSOR_CORES}


@pytest.mark.parametrize("name", ["qwen3", "smollm3", "phi3", "olmo2", "gemma", "mixtral"])
def test_flashinfer_on_unusual_architectures(flashinfer, name):
    config = FAMILY_CONFIGS[name] | {"head_dim": 64, "hidden_size": 256}
    assert_decodes_as_eager(trial_of(config, "flashinfer"))


@pytest.mark.parametrize("name", ["mistral-window", "gemma3_text"])
def test_a_window_wider_than_all_positions_changes_nothing(flashinfer, name):
    config = FAMILY_CONFIGS[name] | {"head_dim": 64, "sliding_window": 128}
    assert_decodes_as_eager(trial_of(config, "flashinfer"))


def test_a_prompt_of_one_token(flashinfer):
    assert_decodes_as_eager(trial_of(grouped(2, 1), "flashinfer", context=1))


def test_the_kernel_reads_what_is_filled_where_it_lies(flashinfer):
    """Once a layer and step, never for the prompt; the cache itself, not a copy."""
    trial = trial_of(grouped(4, 2), "flashinfer")
    _, _, runtime = decode_with(load_model(trial), trial)
    probe, *calls = flashinfer.calls
    assert probe[1].shape == (1, 2, 64)
    assert [len(call[1]) for call in calls] == [
        CONTEXT + step for step in range(1, NUM_STEPS + 1) for _ in range(2)
    ]
    for call, layer in zip(calls, NUM_STEPS * runtime.cache.layers, strict=True):
        assert call[1].data_ptr() == layer.keys.data_ptr()
        assert call[2].data_ptr() == layer.values.data_ptr()


def test_held_bytes_are_those_allocated(flashinfer):
    trial = trial_of(grouped(4, 2), "flashinfer", format="bf16")
    _, _, runtime = decode_with(load_model(trial), trial)
    positions = num_positions(trial)
    assert positions > CONTEXT + NUM_STEPS
    assert runtime.held_bytes() == {
        "parameters": parameter_bytes(trial.shape, get_format("bf16")),
        "kv_cache": 2 * 2 * positions * 2 * 64 * 2,  # layers, k and v, …, heads, dim, bytes
    }


def test_more_steps_than_positions_are_an_error(flashinfer):
    trial = trial_of(grouped(2, 1), "flashinfer", num_warmup=0, num_steps=0)
    with torch.inference_mode():
        _, _, runtime = decode_with(load_model(trial), trial)
        for _ in range(num_positions(trial) - CONTEXT):
            runtime.step()
        with pytest.raises(AssertionError, match="more steps than the cache"):
            runtime.step()


def test_the_verdict_runs_the_model_s_own_attention(flashinfer):
    trial = trial_of(grouped(4, 2), "flashinfer")
    model = load_model(trial)
    tokens, logits, _ = decode_with(model, trial)
    num_calls = len(flashinfer.calls)
    verdict = judge(model, worker.make_prompt(trial), tokens, logits, "fp32")
    assert verdict.passed
    assert verdict.top1_agreement == 1.0
    assert len(flashinfer.calls) == num_calls


def test_two_runtimes_of_one_model_keep_their_kernels(flashinfer):
    """As where one process measures several trials."""
    config = grouped(4, 2)
    first, second = trial_of(config, "flashinfer"), trial_of(config, TENSOR_CORES)
    model = load_model(first)
    with torch.inference_mode():
        runtimes = [load(model, first), load(model, second)]
        for runtime in runtimes:
            runtime.prefill(worker.make_prompt(first))
        flashinfer.calls.clear()
        for runtime in runtimes:
            runtime.step()
    assert [call[3] for call in flashinfer.calls] == [False, False, True, True]


def test_an_error_in_a_step_leaves_the_model_as_it_was(flashinfer):
    trial = trial_of(grouped(2, 1), "flashinfer")
    model = load_model(trial)
    _, _, runtime = decode_with(model, trial)
    runtime.token = torch.tensor([[10**6]])  # no such word
    with pytest.raises(IndexError), torch.inference_mode():
        runtime.step()
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    "config, words",
    [
        (grouped(7, 1), "7 heads over 1 KV heads of 64 here .*group_size: 7.*tensor_cores=on"),
        (CAPPED, "caps its scores"),
        (FAMILY_CONFIGS["mistral-window"] | {"head_dim": 64}, "sliding window of 12 at context 16"),
        (FAMILY_CONFIGS["qwen3"], "heads of 24, flashinfer those of 64, 128, 256"),
    ],
    ids=["group", "caps", "window", "head size"],
)
def test_what_flashinfer_does_not_take_is_unavailable(flashinfer, config, words):
    trial = trial_of(config, "flashinfer")
    model = load_model(trial)
    with pytest.raises(Unavailable, match=words) as refused:
        load(model, trial)
    assert "\n" not in str(refused.value)


def failing(error: BaseException) -> Any:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Ninja build failed. Ninja output:\n[1/3] nvcc -v\n"),
        FileNotFoundError("No such file or directory: 'ninja'"),
    ],
)
def test_a_kernel_that_cannot_be_built_is_unavailable(flashinfer, error):
    flashinfer.single_decode_with_kv_cache = failing(error)
    trial = trial_of(grouped(7, 1), TENSOR_CORES)
    with pytest.raises(Unavailable, match=r"inja.*built with nvcc and ninja") as refused:
        load(load_model(trial), trial)
    assert "\n" not in str(refused.value)


# flash-attn


class FakeFlashAttn(ModuleType):
    """`flash_attn_func` as documented: q [batch, queries, heads, dim], k and v [batch, positions,
    kv_heads, dim]; `causal` and the window count from the last position."""

    def __init__(self) -> None:
        super().__init__("flash_attn")
        self.calls: list[Any] = []

    def flash_attn_func(
        self,
        q,
        k,
        v,
        dropout_p=0.0,
        softmax_scale=None,
        causal=False,
        window_size=(-1, -1),
        softcap=0.0,
        deterministic=False,
    ):
        assert causal
        assert (dropout_p, softcap) == (0.0, 0.0)
        self.calls.append((q, k, window_size))
        distance = torch.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        distance = distance - torch.arange(k.shape[1])
        visible = distance >= 0
        if window_size[0] >= 0:
            visible &= distance <= window_size[0]
        scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        return attention(q[0], k[0], v[0], scale, visible)[None]

    def flash_attn_varlen_func(
        self, q, k, v, dropout_p=0.0, window_size=(-1, -1), softcap=0.0, deterministic=False
    ):
        raise AssertionError("nothing here is of several lengths")

    flash_attn_with_kvcache = flash_attn_varlen_func


@pytest.fixture
def flash_attn(monkeypatch):
    """The package where transformers looks for it, and a GPU as far as it looks for one."""
    fake, padding = FakeFlashAttn(), ModuleType("flash_attn.bert_padding")
    padding.pad_input = padding.unpad_input = None
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(flash_utils, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(flash_utils, "_loaded_implementation", None)
    row = flash_utils.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2]
    monkeypatch.setitem(row, "general_availability_check", lambda *_, **__: True)
    monkeypatch.setattr(
        transformers.PreTrainedModel, "_flash_attn_can_dispatch", lambda *_, **__: True
    )
    return fake


@pytest.mark.parametrize(
    "name", ["llama", "qwen2", "qwen3", "phi3", "mistral-window", "gemma3_text", "qwen2-window"]
)
def test_fa2_decodes_what_eager_decodes(flash_attn, name):
    """Windows too: transformers passes them on, and the cache keeps no more than they reach."""
    assert_decodes_as_eager(trial_of(FAMILY_CONFIGS[name], "hf-fa2"))


def test_fa2_is_called_for_prompt_and_steps_without_repeated_heads(flash_attn):
    trial = trial_of(tiny(), "hf-fa2")
    _, _, runtime = decode_with(load_model(trial), trial)
    _, *calls = flash_attn.calls  # the first is the one made while loading
    assert [(q.shape[1], *k.shape[1:3]) for q, k, _ in calls] == [
        (CONTEXT if step == 0 else 1, CONTEXT + step, 2)
        for step in range(NUM_STEPS + 1)
        for _ in range(2)
    ]
    assert runtime.held_bytes()["kv_cache"] == 2 * 2 * (CONTEXT + NUM_STEPS) * 2 * 16 * 4


def test_fa2_leaves_the_model_its_own_attention(flash_attn):
    trial = trial_of(tiny(), "hf-fa2")
    model = load_model(trial)
    tokens, logits, runtime = decode_with(model, trial)
    num_calls = len(flash_attn.calls)
    assert judge(model, worker.make_prompt(trial), tokens, logits, "fp32").passed
    runtime.token = torch.tensor([[10**6]])  # no such word
    with pytest.raises(IndexError), torch.inference_mode():
        runtime.step()
    assert model.config._attn_implementation == "sdpa"
    assert len(flash_attn.calls) == num_calls


def test_fa2_runs_the_twin_too(flash_attn):
    """Heads of 8 are the smallest the package takes."""
    trial = trial_of(tiny(), "hf-fa2")
    model = load_model(trial)
    _, _, runtime = decode_with(model, trial)
    bench = Bench(runtime=runtime, model=model, trial=trial, prompt=None, synchronize=lambda: None)
    assert set(host_twin(bench)) == {"twin", "twin_linears"}
    assert flash_attn.calls[-1][0].shape == (1, 1, 4, 8)


def refuse_fa2(config: dict[str, Any]) -> str:
    """The words with which hf-fa2 refuses, having left the model as it was."""
    trial = trial_of(config, "hf-fa2")
    model = load_model(trial)
    own = model.config._attn_implementation
    with pytest.raises(Unavailable) as refused:
        load(model, trial)
    assert model.config._attn_implementation == own
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_fa2_does_not_take_a_model_that_caps_its_scores(flash_attn):
    assert "caps its scores" in refuse_fa2(CAPPED)


def test_fa2_that_refuses_the_gpu_is_unavailable(flash_attn):
    error = RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nException raised")
    flash_attn.flash_attn_func = failing(error)
    assert "only supports Ampere GPUs or newer.); take hf-eager" in refuse_fa2(tiny())


def test_fa2_that_transformers_refuses_is_unavailable(flash_attn, monkeypatch):
    monkeypatch.setattr(
        transformers.PreTrainedModel,
        "_flash_attn_can_dispatch",
        failing(ValueError("Llama does not support it.\nAsk for it.")),
    )
    assert "refuses FlashAttention 2: Llama does not support it." in refuse_fa2(tiny())


def test_another_attention_in_its_place_is_refused(flash_attn, monkeypatch):
    def take_another(self: Any, name: str) -> None:
        self.config._attn_implementation = "someone/else"

    monkeypatch.setattr(transformers.PreTrainedModel, "set_attn_implementation", take_another)
    assert "takes someone/else in place of FlashAttention 2" in refuse_fa2(tiny())


def test_what_transformers_does_not_know_as_fa2_is_unavailable(flash_attn, monkeypatch):
    monkeypatch.setattr(transformers.utils, "is_flash_attn_2_available", lambda: False)
    assert "install 2.3.3 or newer: pip install flash-attn" in refuse_fa2(tiny())


# Both: what goes wrong while loading


def test_memory_that_runs_out_while_trying_stays_that(flashinfer, flash_attn):
    flashinfer.single_decode_with_kv_cache = failing(torch.OutOfMemoryError("2 GiB"))
    flash_attn.flash_attn_func = failing(torch.OutOfMemoryError("2 GiB"))
    for runtime in ("flashinfer", "hf-fa2"):
        trial = trial_of(grouped(2, 1), runtime)
        with pytest.raises(torch.OutOfMemoryError):
            load(load_model(trial), trial)


class _DoesNotLoad:
    """A finder of modules that end in an ImportError, as a compiled one of another torch does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        if name == self._name:
            raise ImportError("undefined symbol: _ZN3c105Error\nin some.so")


@pytest.mark.parametrize(
    "module, runtime, config, command",
    [
        ("flash_attn", "hf-fa2", tiny(), "pip install flash-attn --no-build-isolation"),
        ("flashinfer", "flashinfer", grouped(2, 1), "pip install flashinfer-python"),
    ],
)
def test_a_package_that_does_not_load_is_unavailable(monkeypatch, module, runtime, config, command):
    monkeypatch.setattr(sys, "meta_path", [_DoesNotLoad(module), *sys.meta_path])
    monkeypatch.delitem(sys.modules, module, raising=False)
    trial = trial_of(config, runtime)
    with pytest.raises(Unavailable, match=r"does not load.*undefined symbol") as refused:
        load(load_model(trial), trial)
    assert command in str(refused.value)
    assert "\n" not in str(refused.value)


# The registry


@pytest.fixture
def without(monkeypatch):
    """Pretend that only the packages given are missing."""

    def pretend(*missing: str) -> None:
        monkeypatch.setattr(
            registry, "find_spec", lambda name: None if name in missing else object()
        )

    return pretend


@pytest.mark.parametrize(
    "runtime, missing, reason",
    [
        (
            "hf-fa2",
            ["flash_attn"],
            "needs flash_attn: pip install flash-attn --no-build-isolation",
        ),
        ("flashinfer", ["flashinfer"], "needs flashinfer: pip install flashinfer-python"),
        (
            "flashinfer",
            ["torch", "transformers", "flashinfer"],
            "needs torch, transformers, flashinfer: "
            "pip install 'decodegap[measure]' && pip install flashinfer-python",
        ),
        ("flashinfer", [], None),
        ("hf-fa2", [], None),
    ],
)
def test_what_is_missing_is_named_with_its_command(without, runtime, missing, reason):
    without(*missing)
    assert why_unavailable(get_runtime(runtime), "cuda:0") == reason


@pytest.mark.parametrize("runtime", ["hf-fa2", "flashinfer"])
def test_on_a_cpu_both_reasons_are_given(without, runtime):
    without("flash_attn", "flashinfer")
    reason = why_unavailable(get_runtime(runtime), "cpu")
    assert "pip install" in reason
    assert "needs a CUDA GPU" in reason
    without()
    assert why_unavailable(get_runtime(runtime), "cpu").startswith("needs a CUDA GPU")


@pytest.mark.parametrize("runtime", ["hf-fa2", "flashinfer"])
def test_they_run_only_where_named_and_in_half_precision(runtime):
    assert runtime not in default_runtimes("bf16", "cuda:0")
    spec = parse_runtime(runtime)
    check_format(spec, get_format("bf16"))
    check_format(spec, get_format("fp16"))
    with pytest.raises(UnknownFormat, match=f"{runtime} does not take fp32; it takes bf16, fp16"):
        check_format(spec, get_format("fp32"))


def test_the_modules_are_those_of_the_registry():
    assert runtime_factory(get_runtime("hf-fa2")) is hf_fa2.load
    assert runtime_factory(get_runtime(TENSOR_CORES)) is flashinfer_attention.load
    assert parse_runtime("flashinfer?tensor_cores=off").text == "flashinfer"
    with pytest.raises(UnknownRuntime, match="it has tensor_cores"):
        parse_runtime("flashinfer?sdpa=flash")
