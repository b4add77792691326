"""From what a person asked for to the trials to run, every refusal made before any of them."""

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, TypeVar

import msgspec

from decodegap.errors import BadContext, DecodegapError, DoesNotFit, UnknownFormat
from decodegap.measure import memory
from decodegap.measure.positions import check_apart, check_positions
from decodegap.measure.runtimes.registry import (
    RuntimeEntry,
    RuntimeSpec,
    default_runtimes,
    parse_runtime,
)
from decodegap.predict.catalogue import catalogue_models, catalogue_shape
from decodegap.predict.checkpoint import check_checkpoint
from decodegap.predict.formats import Format, get_format
from decodegap.predict.model import ModelShape
from decodegap.predict.resolve import ModelSource, checkpoint_folder, resolve_model
from decodegap.predict.traffic import parameter_bytes
from decodegap.record import Trial, Weights, new_id

_CPU_MODEL = "smollm2-135m"
_GPU_MODEL = "qwen2.5-7b"

# How far a process goes: one trial, or one round, in which every cell is measured once.
ProcessPer = Literal["trial", "round"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What `decodegap measure` was asked. None: the default, resolved by `plan_trials`. `arms`: the
    runtimes are the two arms of a comparison, which may be the same one."""

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
    arms: bool = False


def plan_trials(request: Request) -> list[Trial]:
    """The trials of a request in the order they will run: rounds over all cells, every second
    round backwards (A B B A), so that a drift of the machine meets all cells alike.

    Raises:
        DecodegapError: an unknown name, an impossible context, a checkpoint that is not whole,
            a model that does not fit.
    """
    fmt = get_format(request.format)
    specs = choose_runtimes(request, fmt)
    _refuse_twice(request)
    # What does not fit one runtime may fit the others: that one's trials are then `oom`, unstarted.
    least = min((spec.entry for spec in specs), key=lambda entry: len(entry.stacks))
    source = choose_model(request, fmt, least)
    _check_contexts(request, source.shape, fmt, least)
    first = _first_trial(request, source, specs[0].text)
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


def _check_contexts(request: Request, shape: ModelShape, fmt: Format, entry: RuntimeEntry) -> None:
    num_steps = request.num_warmup + request.num_steps
    if request.process == "round":
        check_apart(request.contexts, num_steps)
    for context in request.contexts:
        check_positions(shape, context, num_steps, request.device)
        memory.check_fits(shape, context, fmt, request.device, entry)


def _first_trial(request: Request, source: ModelSource, runtime: str) -> Trial:
    """The first trial of a run: its weights found and proven whole, the first context."""
    weights, folder = choose_weights(source, request.weights)
    return Trial(
        run=new_id(),
        order=0,
        shape=source.shape,
        config=source.config,
        runtime=runtime,
        format=request.format,
        context=request.contexts[0],
        num_warmup=request.num_warmup,
        num_steps=request.num_steps,
        weights=weights,
        folder=folder,
        device=request.device,
        seed=request.seed,
        timeout_seconds=request.timeout_seconds,
        probes=request.probes,
    )


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
    other way round, so the two never share. The last round warms up for as long as the others run
    in all: its caches are then as long as theirs, and its kernels, compiled ones too, the same.
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
    return msgspec.structs.replace(
        trial,
        process=f"profile{apart}",
        num_warmup=trial.num_warmup + trial.num_steps,
        num_steps=0,
        probes=False,
    )


T = TypeVar("T")


def first_twice(
    values: Iterable[T], meaning: Callable[[T], Hashable] = lambda value: value
) -> tuple[T, T] | None:
    """The first two values that mean the same, however they are spelled; None where none do."""
    seen: dict[Hashable, T] = {}
    for value in values:
        key = meaning(value)
        if key in seen:
            return seen[key], value
        seen[key] = value
    return None


def _refuse_twice(request: Request) -> None:
    """A cell named twice would be measured twice in a round, whose process may be one.

    Raises:
        DecodegapError: a runtime or a context is there twice, in whatever spelling.
    """
    same = first_twice(request.contexts)
    if same is not None:
        raise BadContext(f"--context {same[0]} is given twice; leave one out")
    again = first_twice(request.runtimes, lambda text: parse_runtime(text).text)
    if again is None or request.arms:
        return
    first, second = again
    spelled = "" if first == second else f", once as {second!r}"
    raise DecodegapError(
        f"--runtime {first!r} is given twice{spelled}; leave one out, and ask for more --trials "
        "if more are wanted"
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


def choose_model(request: Request, fmt: Format, entry: RuntimeEntry) -> ModelSource:
    """The model named, or with none the default for the device: the largest that fits it and the
    runtime."""
    if request.model is not None:
        return resolve_model(request.model)

    def fits(shape: ModelShape) -> bool:
        return memory.fits(shape, max(request.contexts), fmt, request.device, entry)

    preferred = _CPU_MODEL if request.device == "cpu" else _GPU_MODEL
    if fits(catalogue_shape(preferred)):
        return resolve_model(preferred)
    shapes = {name: catalogue_shape(name) for name in catalogue_models()}
    fitting = [(parameter_bytes(shape, fmt), name) for name, shape in shapes.items() if fits(shape)]
    if not fitting:
        raise DoesNotFit(f"no catalogue model fits {request.device}; free memory or give a MODEL")
    return resolve_model(max(fitting)[1])


def choose_weights(source: ModelSource, asked: Weights | None) -> tuple[Weights, str | None]:
    """(kind, folder), the weights proven whole. Weights that lie in a folder are used unless
    synthetic ones are asked for; a Hugging Face id is fetched; a catalogue name or a bare config
    has synthetic weights.

    Raises:
        DecodegapError: there are no such weights, or they are not whole.
    """
    wanted = asked or source.default_weights
    if wanted == "synthetic":
        return "synthetic", None
    folder = checkpoint_folder(source)
    check_checkpoint(folder, source.shape)
    return "checkpoint", str(folder)
