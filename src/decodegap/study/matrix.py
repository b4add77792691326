"""From a study to its trials: every cell and pair, in order, each with an identity of its own."""

import hashlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from decodegap.errors import DecodegapError
from decodegap.explain.prediction import parse_prediction, parse_share
from decodegap.grouping import grouped
from decodegap.measure.positions import check_apart, check_positions
from decodegap.measure.runtimes.registry import parse_runtime
from decodegap.measure.trial import choose_weights, in_round, interleave, num_rounds
from decodegap.predict.resolve import ModelSource, resolve_model
from decodegap.record import Trial, Weights
from decodegap.study.cells import (
    Excluded,
    PlannedCell,
    cells_of,
    check_exclusions,
    device_name,
    name_here,
    takes_format,
)
from decodegap.study.file import BadStudy, ComparisonTable, Study, axes_of, refuse_twice
from decodegap.study.pairs import PairPlan, pair_trials

_IDENTITY_CHARACTERS = 16


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A trial and the kind of device it is for; where it runs, it gets that device's torch name."""

    device: str
    trial: Trial


class StudyModel(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's name in a study leads to, its weights found and proven whole. `folder` is
    where they lie, None for synthetic ones."""

    source: ModelSource
    weights: Weights
    folder: str | None

    @property
    def meaning(self) -> Hashable:
        """What is measured: the same for two names of one model."""
        folder = None if self.folder is None else Path(self.folder).resolve()
        return self.source.shape, self.weights, folder


Models = Mapping[str, StudyModel]


class StudyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Every trial of a study in the order they run. `not_taken` are cells whose runtime does not
    take their format: they are not measured and not errors."""

    study: Study
    sha256: str
    trials: tuple[Planned, ...]
    num_cells: int
    num_comparisons: int
    num_excluded: int
    not_taken: tuple[PlannedCell, ...]


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
    models = _models(study)
    _refuse_aliases(study, models)
    devices = [device_name(name) for name in study.devices] or [name_here(default_device)]
    wanted = cells_of(study.models, devices, study.runtimes, study.formats, study.contexts)
    exclusions = [Excluded(table, index) for index, table in enumerate(study.exclude, start=1)]
    kept = [cell for cell in wanted if takes_format(cell)]
    not_taken = tuple(cell for cell in wanted if not takes_format(cell))
    compared = [cell for table in study.compare for cell in _arm_cells(study, table, devices)]
    check_exclusions(exclusions, [*kept, *compared], study)
    cells = [cell for cell in kept if not any(one.matches(cell) for one in exclusions)]
    matrix = list(_matrix_trials(study, cells, models))
    comparisons = [
        list(_comparison_trials(study, table, devices, exclusions, models))
        for table in study.compare
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


def _models(study: Study) -> dict[str, StudyModel]:
    """Every model the study names, each looked up once: its trials are many."""
    names = [*study.models, *(name for table in study.compare for name in table.models or ())]
    return {name: _find_model(name, study.protocol.weights) for name in dict.fromkeys(names)}


def _find_model(name: str, wanted: Weights | None) -> StudyModel:
    source = resolve_model(name)
    weights, folder = choose_weights(source, wanted)
    return StudyModel(source=source, weights=weights, folder=folder)


def _refuse_aliases(study: Study, models: Models) -> None:
    """Raises BadStudy where an axis has one thing under two names."""
    for what, axes in axes_of(study, f"study {study.name}"):
        refuse_twice(axes.models or (), f"{what}: models", lambda name: models[name].meaning)
        refuse_twice(axes.devices or (), f"{what}: devices", device_name)
    refuse_twice(study.runtimes, f"study {study.name}: runtimes", lambda r: parse_runtime(r).text)


def _matrix_trials(study: Study, cells: Sequence[PlannedCell], models: Models) -> Iterator[Planned]:
    """Cells of one model, device and format take turns, A B C, C B A, …"""
    protocol = study.protocol
    if protocol.process == "round":
        check_apart(study.contexts, protocol.num_warmup + protocol.num_steps)
    groups = grouped(cells, lambda cell: (cell.model, cell.device, cell.format))
    for group in groups.values():
        repeats = dict.fromkeys(group, 0)
        trials = {cell: trial_of(study, cell, models[cell.model]) for cell in group}
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
    models: Models,
) -> Iterator[Planned]:
    """The pairs of one comparison in every cell it is for."""
    cells = _arm_cells(study, table, devices)
    both = [
        pair
        for pair in zip(cells[::2], cells[1::2], strict=True)
        if all(takes_format(cell) for cell in pair)
        and not any(one.matches(cell) for one in exclusions for cell in pair)
    ]
    if not both:
        raise BadStudy(
            f"study {study.name}: nothing is left of compare {table.name!r}: exclusions remove "
            "all of its cells, or its runtimes do not take the formats"
        )
    for a, b in both:
        plan = _pair_plan(study, table, a, b, models[a.model])
        for trial in pair_trials(plan, range(table.num_pairs)):
            assert trial.arm is not None
            yield _identified(a.device, trial, trial.arm.pair)


def _arm_cells(study: Study, table: ComparisonTable, devices: Sequence[str]) -> list[PlannedCell]:
    """The cells a comparison is for, exclusions aside: one of A, one of B, in turn."""
    own = [device_name(name) for name in table.devices or ()] or devices
    arms = (
        cells_of(
            table.models or study.models,
            own,
            (runtime,),
            table.formats or study.formats,
            table.contexts or study.contexts,
        )
        for runtime in (table.a, table.b)
    )
    return [cell for pair in zip(*arms, strict=True) for cell in pair]


def _pair_plan(
    study: Study, table: ComparisonTable, a: PlannedCell, b: PlannedCell, model: StudyModel
) -> PairPlan:
    run = f"{_run_name(study, a)}-c{a.context}-{table.name}"
    first, second = (
        msgspec.structs.replace(trial_of(study, cell, model), run=run, probes=False)
        for cell in (a, b)
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


def _run_name(study: Study, cell: PlannedCell) -> str:
    """One run a table on the screen: what stands in one has one model, device and format."""
    return f"{study.name}-{study.sha256[:8]}-{cell.device}-{cell.model}-{cell.format}"


def trial_of(study: Study, cell: PlannedCell, model: StudyModel) -> Trial:
    """The cell's trial, without its place in the order and the torch name of its device."""
    protocol, shape = study.protocol, model.source.shape
    check_positions(shape, cell.context, protocol.num_warmup + protocol.num_steps, cell.device)
    return Trial(
        run=_run_name(study, cell),
        order=0,
        shape=shape,
        config=model.source.config,
        runtime=cell.runtime,
        format=cell.format,
        context=cell.context,
        num_warmup=protocol.num_warmup,
        num_steps=protocol.num_steps,
        weights=model.weights,
        folder=model.folder,
        device=cell.device,
        seed=protocol.seed,
        timeout_seconds=protocol.timeout_seconds,
        probes=protocol.probes,
        study=study.sha256,
    )


def _identified(device: str, trial: Trial, repeat: int) -> Planned:
    """With the hash of what the trial measures, on which kind of device, the how-manieth time."""
    anywhere = msgspec.structs.replace(trial, order=0, timeout_seconds=0.0, folder=None)
    digest = hashlib.sha256(msgspec.json.encode((anywhere, device, repeat))).hexdigest()
    identity = digest[:_IDENTITY_CHARACTERS]
    return Planned(device=device, trial=msgspec.structs.replace(trial, identity=identity))
