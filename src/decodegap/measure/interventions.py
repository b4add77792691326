"""Steps changed in one respect, timed like the real one: what the account is made of.

    linears         every linear of the step, in order, on ready inputs; nothing else
    no_attention    the whole step with the attention product replaced by a pass-through
    twin            the same layers and calls at a width of almost no bytes: the host's own work
    twin_linears    the twin's linears alone: the part of `twin` that `linears` has already paid

A trace is not summed: profilers slow what they watch, and unevenly.
"""

import copy
from collections.abc import Callable
from typing import Any

import msgspec
import torch

from decodegap.measure import timers
from decodegap.measure.runtimes.hf_model import build_config, synthetic_model
from decodegap.measure.runtimes.registry import Runtime
from decodegap.predict.model import from_hf
from decodegap.record import Trial

NUM_STEPS = 10
_NUM_WARMUP = 2
_TWIN_CONTEXT = 16
_TWIN_HEAD_DIM = 8
_BYPASS = "decodegap_no_attention"

Synchronize = Callable[[], None]


def linears_alone(model: Any, synchronize: Synchronize) -> list[float]:
    """Seconds of one pass over all the step's linears, batch 1."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = {
        size: torch.randn(1, 1, size, dtype=model.dtype, device=model.device)
        for size in {layer.in_features for layer in layers}
    }

    def all_linears() -> None:
        for layer in layers:
            layer(inputs[layer.in_features])

    return _time(all_linears, synchronize)


def without_attention(runtime: Any, synchronize: Synchronize) -> list[float]:
    """Seconds of the runtime's step when attention hands its queries through."""
    from transformers import AttentionInterface

    AttentionInterface.register(_BYPASS, _pass_queries_through)
    config = runtime.model.config
    original = config._attn_implementation
    config._attn_implementation = _BYPASS
    try:
        return _time(runtime.step, synchronize)
    finally:
        config._attn_implementation = original


def _pass_queries_through(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any
) -> tuple[Any, None]:
    """An attention function of transformers: query [batch, heads, queries, head_dim] in, the
    layout of an attention output [batch, queries, heads, head_dim] out."""
    return query.transpose(1, 2), None


def host_twin(
    trial: Trial, load: Callable[[Any, Trial], Runtime], synchronize: Synchronize
) -> dict[str, list[float]]:
    """Seconds of `twin` and `twin_linears`, for the same runtime."""
    twin_trial = _twin_of(trial)
    model = synthetic_model(
        build_config(twin_trial), torch.bfloat16, trial.device, trial.seed
    ).eval()
    runtime = load(model, twin_trial)
    prompt = torch.ones(1, _TWIN_CONTEXT, dtype=torch.long, device=trial.device)
    with torch.inference_mode():
        runtime.prefill(prompt)
        return {
            "twin": _time(runtime.step, synchronize),
            "twin_linears": linears_alone(model, synchronize),
        }


def _twin_of(trial: Trial) -> Trial:
    """The same depth, heads and options; head_dim 8, the width those heads make, 128 words."""
    config = copy.deepcopy(trial.config)
    hidden_size = _TWIN_HEAD_DIM * trial.shape.num_heads
    config |= {"head_dim": _TWIN_HEAD_DIM, "hidden_size": hidden_size, "vocab_size": 128}
    config |= {key: 64 for key in ("intermediate_size", "moe_intermediate_size") if key in config}
    shape = from_hf(config, trial.shape.name)
    return msgspec.structs.replace(trial, config=config, shape=shape, context=_TWIN_CONTEXT)


def _time(step: Callable[[], object], synchronize: Synchronize) -> list[float]:
    with torch.inference_mode():
        timers.wall(step, _NUM_WARMUP, synchronize)
        return timers.wall(step, NUM_STEPS, synchronize)
