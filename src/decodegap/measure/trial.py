"""From what a person asked for to the trials to run, every refusal made before any of them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from decodegap.errors import BadContext, DoesNotFit, UnknownFormat
from decodegap.measure.machine import free_memory_bytes
from decodegap.measure.runtimes.registry import RuntimeSpec, default_runtimes, parse_runtime
from decodegap.predict.catalogue import catalogue_models, catalogue_shape
from decodegap.predict.checkpoint import check_checkpoint
from decodegap.predict.formats import Format, get_format
from decodegap.predict.model import ModelShape
from decodegap.predict.resolve import ModelSource, checkpoint_folder, resolve_model
from decodegap.predict.traffic import check_context, held_bytes, parameter_bytes
from decodegap.record import Trial, Weights, new_id
from decodegap.units import format_bytes

_CPU_MODEL = "smollm2-135m"
_GPU_MODEL = "qwen2.5-7b"
# Beside weights and KV: logits of every judged step, activations of the prefill, the CUDA context.
_WORKING_BYTES = 1 << 30
# Positions for the steps after the timed ones: other timers, profiler, interventions. Few, since
# attention over a static cache reads what is allocated: 64 is 3 % at context 2048.
SPARE_POSITIONS = 64

# How far a process goes: one trial, or one round, in which every cell is measured once.
ProcessPer = Literal["trial", "round"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What `decodegap measure` was asked. None: the default, resolved by `plan_trials`."""

    model: str | None
    runtimes: tuple[str, ...]
    contexts: tuple[int, ...]
    num_trials: int
    num_warmup: int
    num_steps: int
    weights: Weights | None
    format: str
    device: str
    seed: int
    timeout_seconds: float
    probes: bool
    process: ProcessPer = "trial"


def plan_trials(request: Request) -> list[Trial]:
    """The trials of a request in the order they will run: rounds over all cells, every second
    round backwards (A B B A), so that a drift of the machine meets all cells alike.

    Raises:
        DecodegapError: an unknown name, an impossible context, a checkpoint that is not whole,
            a model that does not fit.
    """
    fmt = get_format(request.format)
    specs = choose_runtimes(request, fmt)
    source = choose_model(request, fmt)
    if request.process == "round":
        check_apart(request.contexts, request.num_warmup + request.num_steps)
    for context in request.contexts:
        check_positions(source.shape, context, request)
        check_fits(source.shape, context, fmt, request.device)
    first = first_trial(request, source, specs[0].text, new_id())
    cells = [(context, spec.text) for context in request.contexts for spec in specs]
    rounds = interleave(cells, num_rounds(request.process, request.num_trials))
    trials = (
        msgspec.structs.replace(first, order=order, context=context, runtime=runtime)
        for order, (context, runtime) in enumerate(rounds)
    )
    return [
        in_round(trial, trial.order // len(cells), request.process, request.num_trials)
        for trial in trials
    ]


def held_against(trial: Trial, bytes_per_second: float) -> Trial:
    """The trial with the bandwidth that no step of it may beat."""
    return msgspec.structs.replace(trial, reachable_bytes_per_second=bytes_per_second)


def num_rounds(per: ProcessPer, num_trials: int) -> int:
    """Rounds over all cells: one a trial, and where a process makes a round, one that looks."""
    return num_trials if per == "trial" else num_trials + 1


def in_round(trial: Trial, round_index: int, per: ProcessPer, num_timed: int) -> Trial:
    """The trial as one of its round, which matters where the cells of a round share a process.

    What stays in a process must not come before a clock. A profiler stays: replays waited for, of
    some 1,500 kernels, took 0.5 to 1.4 ms longer after one (docs/measured_facts.md). So timed
    rounds run none, and a last round runs it on every cell and times nothing. A library's plans
    stay: cuDNN called by name would find those that torch's own choice of it had made, and the
    other way round, so the two never share.
    """
    if per == "trial":
        return trial
    is_named = parse_runtime(trial.runtime).options.get("sdpa") == "cudnn"
    apart = ", cuDNN by name" if is_named else ""
    if round_index < num_timed:
        return msgspec.structs.replace(
            trial,
            process=f"round {round_index}{apart}",
            profile=False,
            probes=trial.probes and round_index == 0,
        )
    return msgspec.structs.replace(trial, process=f"profile{apart}", num_steps=0, probes=False)


def check_apart(contexts: Sequence[int], num_steps: int) -> None:
    """Contexts that one process measures must not run into each other: libraries keep plans by
    the length of the cache, and a step at a length met before is another step.

    Raises:
        BadContext: two of them are closer than the steps a trial decodes.
    """
    least = num_steps + SPARE_POSITIONS
    for low, high in pairwise(sorted(contexts)):
        if high - low < least:
            raise BadContext(
                f"contexts {low} and {high} are closer than the {least} steps that a trial "
                "decodes, and one process is to run both; give a process per trial"
            )


def first_trial(request: Request, source: ModelSource, runtime: str, run: str) -> Trial:
    """The first trial of a run: the model's weights found and proven whole, the first context.

    Raises:
        DecodegapError: there are no such weights, or they are not whole.
    """
    weights, folder = choose_weights(source, request)
    return Trial(
        run=run,
        order=0,
        shape=source.shape,
        config=source.config,
        runtime=runtime,
        format=request.format,
        context=request.contexts[0],
        num_warmup=request.num_warmup,
        num_steps=request.num_steps,
        weights=weights,
        folder=None if folder is None else str(folder),
        device=request.device,
        seed=request.seed,
        timeout_seconds=request.timeout_seconds,
        probes=request.probes,
    )


def choose_runtimes(request: Request, fmt: Format) -> list[RuntimeSpec]:
    """The runtimes named, or with none all that run by default and take the format."""
    specs = [parse_runtime(text) for text in request.runtimes or _defaults(request, fmt)]
    if not specs:
        raise UnknownFormat(f"no runtime takes {fmt.name} by default; name one with --runtime")
    for spec in specs:
        check_format(spec, fmt)
    return specs


def _defaults(request: Request, fmt: Format) -> list[str]:
    return default_runtimes(fmt.name, request.device)


def check_format(spec: RuntimeSpec, fmt: Format) -> None:
    """Raises UnknownFormat for weights the runtime cannot take."""
    if fmt.name not in spec.entry.formats:
        raise UnknownFormat(
            f"{spec.text} does not take {fmt.name}; it takes {', '.join(spec.entry.formats)}"
        )


def interleave(cells: list[tuple[int, str]], num_rounds: int) -> Iterable[tuple[int, str]]:
    """A B C, C B A, A B C, …"""
    for round_index in range(num_rounds):
        yield from cells if round_index % 2 == 0 else reversed(cells)


def choose_model(request: Request, fmt: Format) -> ModelSource:
    """The model named, or with none the default for the device: the largest that fits."""
    if request.model is not None:
        return resolve_model(request.model)
    preferred = _CPU_MODEL if request.device == "cpu" else _GPU_MODEL
    if _fits(catalogue_shape(preferred), max(request.contexts), fmt, request.device):
        return resolve_model(preferred)
    shapes = {name: catalogue_shape(name) for name in catalogue_models()}
    fitting = [
        (parameter_bytes(shape, fmt), name)
        for name, shape in shapes.items()
        if _fits(shape, max(request.contexts), fmt, request.device)
    ]
    if not fitting:
        raise DoesNotFit(f"no catalogue model fits {request.device}; free memory or give a MODEL")
    return resolve_model(max(fitting)[1])


def choose_weights(source: ModelSource, request: Request) -> tuple[Weights, Path | None]:
    """(kind, folder). Weights that lie in a folder are used unless synthetic ones are asked for;
    a Hugging Face id is fetched; a catalogue name or a bare config has synthetic weights."""
    wanted = request.weights or source.default_weights
    if wanted == "synthetic":
        return "synthetic", None
    folder = checkpoint_folder(source)
    check_checkpoint(folder, source.shape)
    return "checkpoint", folder


def check_positions(shape: ModelShape, context: int, request: Request) -> None:
    check_context(shape, context)
    last = context + request.num_warmup + request.num_steps
    if last > shape.max_context:
        most = shape.max_context - request.num_warmup - request.num_steps
        raise BadContext(
            f"context {context} and {request.num_warmup + request.num_steps} steps pass the "
            f"{shape.max_context} positions of {shape.name}; a context of at most {most}, "
            "or fewer --steps"
        )


def needed_bytes(shape: ModelShape, context: int, fmt: Format) -> int:
    """Device memory a trial needs at least: weights, cache, working space."""
    return held_bytes(shape, context, fmt) + _WORKING_BYTES


def check_fits(shape: ModelShape, context: int, fmt: Format, device: str) -> None:
    """Raises DoesNotFit with what is needed and what is there."""
    if not _fits(shape, context, fmt, device):
        needed, there = needed_bytes(shape, context, fmt), free_memory_bytes(device) or 0
        raise DoesNotFit(
            f"{shape.name} at context {context} needs {format_bytes(needed)} and {device} has "
            f"{format_bytes(there)} free; take a smaller model or context"
        )


def _fits(shape: ModelShape, context: int, fmt: Format, device: str) -> bool:
    free = free_memory_bytes(device)
    return free is None or needed_bytes(shape, context, fmt) <= free
