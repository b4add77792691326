"""Steps changed in one respect, timed like the real one: what the account is made of.

    twin            the same layers and calls at a width of almost no bytes: the host's own work
    twin_linears    the twin's linears alone: the part of `twin` that `linears` has already paid
    linears         every linear of the step, in order, on ready inputs; nothing else (CPU)
    no_attention    the whole step with the attention product replaced by a pass-through (CPU)
    in_turn         three steps that take turns, so that a host slows them alike (GPU):
      lengths_new     the step as it was timed, at the next KV lengths
      lengths_seen    the timed steps a second time, from a new cache: their KV lengths are no
                      longer new to this process, and nothing else differs
      static_cache    the step of `hf-static`, its cache allocated once
    replay_without_<op>  the engine's graph with one op left out, and with none: replays back to
                    back, whose differences add up where those of waited-for steps do not (GPU)

A trace is not summed: profilers slow what they watch, and unevenly. On a GPU a transformers step
without some kernels is no shorter, since the host sets its pace; there the host's work is changed.
"""

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
import torch

from decodegap.errors import Unavailable, first_line
from decodegap.measure import timers
from decodegap.measure.machine import is_out_of_memory
from decodegap.measure.positions import PROBE_STEPS, PROBE_WARMUP
from decodegap.measure.runtimes.hf_model import (
    DTYPES,
    attention_by,
    build_config,
    synthetic_model,
)
from decodegap.measure.runtimes.registry import get_runtime, parse_runtime, runtime_factory
from decodegap.predict.hf_config import from_hf
from decodegap.predict.tensors import OPS
from decodegap.record import Trial
from decodegap.runtime_name import RuntimeName

_NUM_OP_STEPS, _NUM_OP_ROUNDS = 20, 5
_TWIN_CONTEXT = 16
_TWIN_HEAD_DIM = 8
_BYPASS = "decodegap_no_attention"

Samples = dict[str, list[float]]


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What an intervention works on: a trial's runtime, model and prompt, and how to wait."""

    runtime: Any
    model: Any
    trial: Trial
    prompt: Any
    synchronize: Callable[[], None]

    def time(self, step: Callable[[], object]) -> list[float]:
        with torch.inference_mode():
            timers.wall(step, PROBE_WARMUP, self.synchronize)
            return timers.wall(step, PROBE_STEPS, self.synchronize)

    def time_in_turn(self, steps: Mapping[str, Callable[[], object]], num_steps: int) -> Samples:
        """Each step by its name, one of each in turn: where the host sets the pace and slows down
        for a second, as hosts do, it slows them alike."""
        samples: Samples = {name: [] for name in steps}
        with torch.inference_mode():
            for step in steps.values():
                timers.wall(step, PROBE_WARMUP, self.synchronize)
            for _ in range(num_steps):
                for name, step in steps.items():
                    samples[name] += timers.wall(step, 1, self.synchronize)
        return samples


def intervene(bench: Bench) -> tuple[Samples, tuple[str, ...]]:
    """Samples of every intervention the runtime's row names and this kind of device can show, and
    a note on each that found no memory for what it needs beside the trial, whose time stands."""
    kind = "cpu" if bench.trial.device == "cpu" else "cuda"
    samples: Samples = {}
    notes = []
    for name in get_runtime(bench.trial.runtime).interventions:
        kinds, make = _INTERVENTIONS[name]
        if kind not in kinds:
            continue
        try:
            samples |= make(bench)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            notes.append(f"no intervention {name}: {first_line(error)}")
    return samples, tuple(notes)


def linears_alone(bench: Bench) -> Samples:
    """One pass over all the step's linears, batch 1."""
    model = bench.model
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    inputs = {
        size: torch.randn(1, 1, size, dtype=model.dtype, device=model.device)
        for size in {layer.in_features for layer in layers}
    }

    def all_linears() -> None:
        for layer in layers:
            layer(inputs[layer.in_features])

    return {"linears": bench.time(all_linears)}


def without_attention(bench: Bench) -> Samples:
    """The runtime's step when attention hands its queries through."""
    from transformers import AttentionInterface

    AttentionInterface.register(_BYPASS, _pass_queries_through)
    with attention_by(bench.model, _BYPASS):
        return {"no_attention": bench.time(bench.runtime.step)}


def _pass_queries_through(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any
) -> tuple[Any, None]:
    """An attention function of transformers: query [batch, heads, queries, head_dim] in, the
    layout of an attention output [batch, queries, heads, head_dim] out."""
    return query.transpose(1, 2), None


def in_turn(bench: Bench) -> Samples:
    """Steps over new KV lengths, over lengths that were timed before, from a cache of their own,
    and with a cache allocated once, where the runtime's attention can do that.

    A library that keeps something for each length, as cuDNN its plans, makes it for the first,
    every step anew, and finds it for the second. The third does not grow its cache either.
    """
    trial = bench.trial
    num_seen = trial.num_warmup + trial.num_steps - PROBE_WARMUP
    steps = {
        "lengths_new": bench.runtime.step,
        "lengths_seen": _prefilled(bench.model, trial, bench.prompt).step,
    }
    static = RuntimeName("hf-static", parse_runtime(trial.runtime).options).text
    # Torch's flash attention takes no mask, which a cache that is not full needs.
    with suppress(Unavailable):
        static_trial = msgspec.structs.replace(trial, runtime=static)
        runtime = _prefilled(bench.model, static_trial, bench.prompt)
        with torch.inference_mode():
            runtime.step()
        steps["static_cache"] = runtime.step
    return bench.time_in_turn(steps, min(PROBE_STEPS, num_seen))


def _prefilled(model: Any, trial: Trial, prompt: Any) -> Any:
    """A runtime of its own for the trial, its cache filled with the prompt."""
    runtime = runtime_factory(get_runtime(trial.runtime))(model, trial)
    with torch.inference_mode():
        runtime.prefill(prompt)
    return runtime


def host_twin(bench: Bench) -> Samples:
    """The step of the same runtime on a twin of the model, and the twin's linears alone. In the
    trial's own type: the calls of another lead to other kernels."""
    trial = _twin_of(bench.trial)
    dtype = DTYPES[trial.format]
    model = synthetic_model(build_config(trial), dtype, trial.device, trial.seed).eval()
    prompt = torch.ones(1, _TWIN_CONTEXT, dtype=torch.long, device=trial.device)
    runtime = _prefilled(model, trial, prompt)
    twin = msgspec.structs.replace(bench, runtime=runtime, model=model, trial=trial, prompt=prompt)
    return {
        "twin": twin.time(runtime.step),
        "twin_linears": linears_alone(twin)["linears"],
    }


def _twin_of(trial: Trial) -> Trial:
    """The same depth, heads and options; head_dim 8, the width those heads make, 128 words."""
    config = copy.deepcopy(trial.config)
    hidden_size = _TWIN_HEAD_DIM * trial.shape.num_heads
    config |= {"head_dim": _TWIN_HEAD_DIM, "hidden_size": hidden_size, "vocab_size": 128}
    config |= {key: 64 for key in ("intermediate_size", "moe_intermediate_size") if key in config}
    shape = from_hf(config, trial.shape.name)
    return msgspec.structs.replace(trial, config=config, shape=shape, context=_TWIN_CONTEXT)


def without_each_op(bench: Bench) -> Samples:
    """The engine's graph with none and with each of its ops left out; what a graph without an op
    computes is meaningless. All are captured anew and timed in turn, round after round."""
    engine = bench.runtime.engine
    place = partial(engine.place, token=0, position=bench.trial.context)
    replays = {}
    for op in ("nothing", *OPS):
        place()  # capturing runs a step first, which takes a position
        replays[op] = engine.step_without(op)
    samples: Samples = {f"replay_without_{op}": [] for op in replays}
    for _ in range(_NUM_OP_ROUNDS):
        for op, replay in replays.items():
            place()
            samples[f"replay_without_{op}"] += timers.back_to_back(
                replay, _NUM_OP_STEPS, bench.synchronize
            )
    return samples


_INTERVENTIONS: dict[str, tuple[tuple[str, ...], Callable[[Bench], Samples]]] = {
    "twin": (("cpu", "cuda"), host_twin),
    "linears": (("cpu",), linears_alone),
    "no_attention": (("cpu",), without_attention),
    "in_turn": (("cuda",), in_turn),
    "ops": (("cuda",), without_each_op),
}
