"""From a study to its trials: every cell and pair, in order, each with an identity of its own."""

import hashlib
from collections.abc import Iterator, Sequence

import msgspec

from decodegap.errors import DecodegapError
from decodegap.explain.prediction import parse_prediction, parse_share
from decodegap.measure.trial import (
    Request,
    check_apart,
    check_positions,
    first_trial,
    in_round,
    interleave,
    num_rounds,
)
from decodegap.predict.resolve import resolve_model
from decodegap.record import Trial
from decodegap.study.cells import (
    Cell,
    Excluded,
    cells_of,
    check_exclusions,
    device_name,
    name_here,
    takes_format,
)
from decodegap.study.file import BadStudy, ComparisonTable, Study
from decodegap.study.pairs import PairPlan, pair_trials

_IDENTITY_CHARACTERS = 16


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A trial and the kind of device it is for; where it runs, it gets that device's torch name."""

    device: str
    trial: Trial


class StudyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Every trial of a study in the order they run. `not_taken` are cells whose runtime does not
    take their format: they are not measured and not errors."""

    study: Study
    sha256: str
    trials: tuple[Planned, ...]
    num_cells: int
    num_comparisons: int
    num_excluded: int
    not_taken: tuple[Cell, ...]


def plan_study(study: Study, default_device: str) -> StudyPlan:
    """The study's trials, every refusal made before any of them.

    default_device: torch's name of the device to measure where the study names none.

    Raises:
        BadStudy: it holds no cell, its exclusions contradict it or each other, or a name, context
            or prediction in it is wrong.
    """
    try:
        return _plan(study, default_device)
    except BadStudy:
        raise
    except DecodegapError as error:
        raise BadStudy(f"study {study.name}: {error}") from None


def _plan(study: Study, default_device: str) -> StudyPlan:
    devices = [device_name(name) for name in study.devices] or [name_here(default_device)]
    wanted = cells_of(study.models, devices, study.runtimes, study.formats, study.contexts)
    exclusions = [Excluded(table, index) for index, table in enumerate(study.exclude, start=1)]
    kept = [cell for cell in wanted if takes_format(cell)]
    not_taken = tuple(cell for cell in wanted if not takes_format(cell))
    check_exclusions(exclusions, kept, study)
    cells = [cell for cell in kept if not any(one.matches(cell) for one in exclusions)]
    matrix = list(_matrix_trials(study, cells))
    comparisons = [
        list(_comparison_trials(study, table, devices, exclusions)) for table in study.compare
    ]
    planned = [*matrix, *(one for trials in comparisons for one in trials)]
    if not planned:
        raise BadStudy(f"study {study.name} measures nothing: no runtime, or all cells excluded")
    return StudyPlan(
        study=study,
        sha256=study.sha256,
        trials=tuple(planned),
        num_cells=len(cells),
        num_comparisons=len({one.trial.run for trials in comparisons for one in trials}),
        num_excluded=len(kept) - len(cells),
        not_taken=not_taken,
    )


def _matrix_trials(study: Study, cells: Sequence[Cell]) -> Iterator[Planned]:
    """Cells of one model, device and format take turns, A B C, C B A, …"""
    protocol = study.protocol
    if protocol.process == "round":
        check_apart(study.contexts, protocol.num_warmup + protocol.num_steps)
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.model, cell.device, cell.format), []).append(cell)
    for group in groups.values():
        repeats = dict.fromkeys(group, 0)
        trials = {cell: trial_of(study, cell) for cell in group}
        points = [(cell.context, cell.runtime) for cell in group]
        by_point = dict(zip(points, group, strict=True))
        for order, point in enumerate(
            interleave(points, num_rounds(protocol.process, protocol.num_trials))
        ):
            cell = by_point[point]
            repeat = repeats[cell]
            trial = msgspec.structs.replace(trials[cell], order=order)
            trial = in_round(trial, repeat, protocol.process, protocol.num_trials)
            yield _identified(cell.device, trial, repeat)
            repeats[cell] += 1


def _comparison_trials(
    study: Study,
    table: ComparisonTable,
    devices: Sequence[str],
    exclusions: Sequence[Excluded],
) -> Iterator[Planned]:
    """The pairs of one comparison in every cell it is for."""
    own = [device_name(name) for name in table.devices or ()] or devices
    axes = (table.models or study.models, own, table.formats or study.formats)
    contexts = table.contexts or study.contexts
    a_cells = cells_of(axes[0], axes[1], (table.a,), axes[2], contexts)
    b_cells = cells_of(axes[0], axes[1], (table.b,), axes[2], contexts)
    both = [
        pair
        for pair in zip(a_cells, b_cells, strict=True)
        if all(takes_format(cell) for cell in pair)
        and not any(one.matches(cell) for one in exclusions for cell in pair)
    ]
    if not both:
        raise BadStudy(
            f"study {study.name}: nothing is left of compare {table.name!r}: exclusions remove "
            "all of its cells, or its runtimes do not take the formats"
        )
    for a, b in both:
        plan = _pair_plan(study, table, a, b)
        for trial in pair_trials(plan, range(table.num_pairs)):
            assert trial.arm is not None
            yield _identified(a.device, trial, trial.arm.pair)


def _pair_plan(study: Study, table: ComparisonTable, a: Cell, b: Cell) -> PairPlan:
    run = f"{_run_name(study, a)}-c{a.context}-{table.name}"
    first, second = (
        msgspec.structs.replace(trial_of(study, cell), run=run, probes=False) for cell in (a, b)
    )
    return PairPlan(
        name=table.name,
        a=first,
        b=second,
        num_pairs=table.num_pairs,
        max_pairs=table.num_pairs,
        margin=parse_share(table.margin),
        prediction=None if table.predict is None else parse_prediction(table.predict),
    )


def _run_name(study: Study, cell: Cell) -> str:
    """One run a table on the screen: what stands in one has one model, device and format."""
    return f"{study.name}-{study.sha256[:8]}-{cell.device}-{cell.model}-{cell.format}"


def trial_of(study: Study, cell: Cell) -> Trial:
    """The cell's trial, without its place in the order and the torch name of its device."""
    protocol = study.protocol
    request = Request(
        model=cell.model,
        runtimes=(cell.runtime,),
        contexts=(cell.context,),
        num_trials=protocol.num_trials,
        num_warmup=protocol.num_warmup,
        num_steps=protocol.num_steps,
        weights=protocol.weights,
        format=cell.format,
        device=cell.device,
        seed=protocol.seed,
        timeout_seconds=protocol.timeout_seconds,
        probes=protocol.probes,
        process=protocol.process,
    )
    source = resolve_model(cell.model)
    check_positions(source.shape, cell.context, request)
    trial = first_trial(request, source, cell.runtime, _run_name(study, cell))
    return msgspec.structs.replace(trial, study=study.sha256)


def _identified(device: str, trial: Trial, repeat: int) -> Planned:
    """With the hash of what the trial measures, on which kind of device, the how-manieth time."""
    anywhere = msgspec.structs.replace(trial, order=0, timeout_seconds=0.0, folder=None)
    digest = hashlib.sha256(msgspec.json.encode((anywhere, device, repeat))).hexdigest()
    identity = digest[:_IDENTITY_CHARACTERS]
    return Planned(device=device, trial=msgspec.structs.replace(trial, identity=identity))
