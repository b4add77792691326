"""The reference study's figures beside ours: what was published for a cell, what was measured of
it here, and whether the two may be compared at all."""

import tomllib
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from typing import Any, Literal

import msgspec

from decodegap.explain.compare import Comparison
from decodegap.explain.result import Result
from decodegap.explain.summary import Summary
from decodegap.predict.catalogue import catalogue_devices
from decodegap.predict.device import match_runtime_name

FigureKind = Literal["R_published", "step", "graph speed-up"]

# The study's cells are of this runtime. A graph needs a static cache, so both our arms have one.
_STUDIED_RUNTIME = "hf-eager"
_GRAPH_ARMS = ("hf-static", "hf-graph")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One published figure. Value: a ratio, or seconds for `step`; None for a cell that ran out of
    memory. `mark`: H quoted, M reported by a reader, D arithmetic, I inferred. `format`: of those
    figures that a runtime of ours has too."""

    kind: FigureKind
    model: str
    device: str
    runtime: str
    context: int
    value: float | None
    mark: str
    format: str = "bf16"


class Counterpart(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of ours for the same model and context. `unlike` says why it must not be held
    against the published one; None where it may."""

    device: str
    value: float
    unlike: str | None


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure and all of ours beside it; none where nothing was measured."""

    figure: Figure
    ours: tuple[Counterpart, ...]


def against_reference(runs: Sequence[Result | Comparison]) -> list[Against]:
    """Every published figure of a cell, in the order of the facts, with what these runs say."""
    summaries = [cell.summary for run in runs if isinstance(run, Result) for cell in run.cells]
    comparisons = [run for run in runs if isinstance(run, Comparison)]
    return [
        Against(figure=figure, ours=tuple(_counterparts(figure, summaries, comparisons)))
        for figure in published_figures()
    ]


def published_figures() -> list[Figure]:
    """The figures of `facts/reference_study.toml` that are of one cell."""
    path = files("decodegap") / "facts" / "reference_study.toml"
    facts = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        *(_figure("R_published", row, row.get("r_floor")) for row in facts["cell"]),
        *(_figure("step", row, row["step_seconds"]) for row in facts["quantised"]),
        *(
            _figure("graph speed-up", {"runtime": " ÷ ".join(_GRAPH_ARMS), **row}, row["ratio"])
            for row in facts["cuda_graphs"]
        ),
    ]


def _figure(kind: FigureKind, row: dict[str, Any], value: float | None) -> Figure:
    return Figure(
        kind=kind,
        model=row["model"],
        device=row["device"],
        runtime=row.get("runtime", _STUDIED_RUNTIME),
        context=row["context"],
        value=value,
        mark=row["mark"],
    )


def _counterparts(
    figure: Figure, summaries: Iterable[Summary], comparisons: Iterable[Comparison]
) -> Iterator[Counterpart]:
    if figure.kind == "graph speed-up":
        for comparison in comparisons:
            arms = (comparison.a.key.runtime, comparison.b.key.runtime)
            key = comparison.a.key
            if arms == _GRAPH_ARMS and (key.model, key.context) == (figure.model, figure.context):
                device = _row_name(comparison.device)
                yield _counterpart(figure, device, key.format, comparison.ratio)
        return
    for summary in summaries:
        key = summary.key
        same = (figure.model, figure.runtime, figure.context)
        if (key.model, key.runtime, key.context) != same:
            continue
        value = summary.step
        if figure.kind == "R_published":
            ratio = summary.ratio(summary.floor.published)
            if ratio is None:
                continue
            value = ratio
        yield _counterpart(figure, summary.device.name, key.format, value)


def _counterpart(figure: Figure, device: str, fmt: str, value: float) -> Counterpart:
    unlike = [f"in {fmt}"] if fmt != figure.format else []
    unlike += ["another device"] if device != figure.device else []
    return Counterpart(device=device, value=value, unlike=", ".join(unlike) or None)


def _row_name(reported: str) -> str:
    row = match_runtime_name(reported, catalogue_devices())
    return reported if row is None else row.name
