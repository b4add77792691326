"""Length curves on the screen and as documents: step against context, and what a KV byte costs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from decodegap.explain.curve import Curve, times
from decodegap.grouping import grouped
from decodegap.report.fitting import Column, FittingTable
from decodegap.units import format_bytes, format_seconds

_FEW_CONTEXTS = "two contexts"
_COST_NOTE = (
    "cost: the slope of the step over its KV bytes, least squares of each context's step; "
    "range: over every choice of one trial per context"
)


def curves_view(curves: Sequence[Curve]) -> Group:
    """Two tables for each group of curves that differ in the runtime alone."""
    parts: list[RenderableType] = []
    for group in alike(curves):
        parts += [
            Text(_heading(group), style="bold"),
            _points_table(group),
            _slopes_table(group),
            *(Text(f"  {note}", style="dim") for note in _notes(group)),
            Text(),
        ]
    return Group(*parts)


def alike(curves: Iterable[Curve]) -> list[list[Curve]]:
    """Curves that may be drawn beside each other: one model, format, device and bandwidth."""
    groups = grouped(
        curves,
        lambda one: (one.model, one.format, one.weights, one.device, one.bytes_per_second),
    )
    return list(groups.values())


def _heading(group: Sequence[Curve]) -> str:
    first = group[0]
    heading = f"step against context: {first.model}, {first.format}, {first.weights} weights"
    if all(len(curve.runs) == 1 for curve in group):
        return heading
    when = min(curve.started_at for curve in group).strftime("%Y-%m-%d %H:%M UTC")
    return f"{heading}, on {first.device}, from several like runs since {when}"


# Each with how soon it gives way to a narrow terminal.
_POINT_COLUMNS = {
    "context": 0,
    "KV of a step": 2,
    "step": 0,
    "reachable floor": 0,
    "above it": 1,
    "trials": 3,
}
_SLOPE_COLUMNS = {
    "cost of a GB of KV": 2,
    "memory needs": 3,
    "factor": 0,
    "range": 0,
    "off a straight line": 1,
}


def _points_table(group: Iterable[Curve]) -> FittingTable:
    rows = []
    for curve in group:
        for index, point in enumerate(curve.points):
            above = None if point.floor is None else point.step - point.floor
            rows.append(
                [
                    curve.runtime if index == 0 else "",
                    str(point.context),
                    format_bytes(point.kv_bytes),
                    *(_seconds(value) for value in (point.step, point.floor, above)),
                    str(len(point.trial_medians)),
                ]
            )
    return FittingTable(_columns(_POINT_COLUMNS), rows)


def _slopes_table(group: Iterable[Curve]) -> FittingTable:
    rows = [[curve.runtime, *_slope_cells(curve)] for curve in group]
    return FittingTable(_columns(_SLOPE_COLUMNS), rows)


def _columns(names: Mapping[str, int]) -> list[Column]:
    figures = [Column(name=name, gives_way=soon) for name, soon in names.items()]
    return [Column(name="runtime", is_words=True), *figures]


def _slope_cells(curve: Curve) -> list[str]:
    slope, bandwidth, range_ = curve.slope, curve.bytes_per_second, curve.factor_range
    if slope is None:
        return ["KV does not grow", "", "", "", ""]
    miss = slope.largest_miss
    return [
        format_seconds(slope.seconds_per_byte * 1e9),
        "–" if bandwidth is None else format_seconds(1e9 / bandwidth),
        "–" if curve.factor is None else times(curve.factor),
        "–" if range_ is None else f"{times(range_[0])} to {times(range_[1])}",
        _FEW_CONTEXTS if miss is None else f"up to {format_seconds(miss)}",
    ]


def _notes(group: Sequence[Curve]) -> list[str]:
    sloped = [curve for curve in group if curve.slope is not None]
    if not sloped:
        return []
    notes = [_COST_NOTE]
    if any(curve.slope and curve.slope.largest_miss is None for curve in sloped):
        notes.append(
            "two contexts always lie on a line: whether the growth is straight is not known"
        )
    if any(curve.slope and curve.slope.low is None for curve in sloped):
        notes.append("a context with one trial has no spread between processes: no range is known")
    flat = [curve.runtime for curve in sloped if not curve.shows_growth]
    if flat:
        notes.append(f"{', '.join(flat)}: no growth with context is shown")
    return notes


def _seconds(value: float | None) -> str:
    return "–" if value is None else format_seconds(value)


def curve_document(curve: Curve) -> dict[str, Any]:
    """One curve for programs; seconds, bytes, and seconds per byte."""
    slope, bandwidth = curve.slope, curve.bytes_per_second
    return {
        "model": curve.model,
        "runtime": curve.runtime,
        "format": curve.format,
        "weights": curve.weights,
        "device": curve.device,
        "runs": list(curve.runs),
        "points": [
            {
                "context": point.context,
                "kv_bytes": point.kv_bytes,
                "step_s": point.step,
                "trial_medians_s": list(point.trial_medians),
                "floor_reachable_s": point.floor,
            }
            for point in curve.points
        ],
        "memory_seconds_per_byte": None if bandwidth is None else 1 / bandwidth,
        "slope": None if slope is None else msgspec.to_builtins(slope),
        "factor": curve.factor,
        "factor_range": None if curve.factor_range is None else list(curve.factor_range),
    }
