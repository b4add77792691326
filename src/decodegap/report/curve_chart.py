"""The length curve as a chart: step against context per runtime, beside the floor's line."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from decodegap.explain.curve import Curve, times
from decodegap.units import format_bandwidth

_WIDTH, _HEIGHT = 640, 380
_FLOOR_COLOUR = "#222222"
# Told apart by people who see red and green alike, and by their lightness.
_RUNTIME_COLOURS = (
    *("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9"),
    *("#6a3d9a", "#8c6d31", "#7f7f7f", "#bcbd22"),
)


def curve_chart(alt: Any, group: Sequence[Curve], runtimes: Sequence[str]) -> Any:
    """Step against context, both logarithmic: a runtime's distance above the floor is its ratio to
    it, whatever the step, and contexts that double lie evenly. A linear axis would press what is
    near the floor into one line as soon as one runtime is many times slower."""
    colours = {_label(curve): _colour(curve, runtimes) for curve in group}
    contexts = sorted({point.context for curve in group for point in curve.points})
    x = alt.X(
        "context:Q",
        title="context, tokens in the cache (logarithmic)",
        scale=alt.Scale(type="log", base=2, nice=False, padding=24),
        axis=alt.Axis(values=contexts, format="d", labelOverlap=True),
    )
    y = alt.Y(
        "ms:Q",
        title="step, ms (logarithmic)",
        scale=alt.Scale(type="log", nice=False, padding=28),
        axis=alt.Axis(tickCount=8, format="~g"),
    )
    colour = alt.Color(
        "label:N",
        title="runtime: cost of an added KV byte",
        sort=list(colours),
        scale=alt.Scale(domain=list(colours), range=list(colours.values())),
        legend=alt.Legend(labelLimit=0, titleLimit=0, symbolType="circle", symbolOpacity=1),
    )
    tooltip = [alt.Tooltip("label:N"), alt.Tooltip("context:Q"), alt.Tooltip("ms:Q", format=".4~g")]
    lines = alt.Chart(alt.Data(values=_steps(group))).mark_line(strokeWidth=2)
    lines = lines.encode(detail="line:N")
    points = alt.Chart(alt.Data(values=_trials(group))).mark_circle(size=55, opacity=0.7)
    shown = [chart.encode(x=x, y=y, color=colour, tooltip=tooltip) for chart in (lines, points)]
    return alt.layer(*_floor_layers(alt, group, x, y), *shown).properties(
        width=_WIDTH, height=_HEIGHT, title=_curve_title(alt, group)
    )


def _colour(curve: Curve, runtimes: Sequence[str]) -> str:
    """A runtime's own in all charts of a folder; `runtimes` are those of the folder, in order."""
    return _RUNTIME_COLOURS[runtimes.index(curve.runtime) % len(_RUNTIME_COLOURS)]


def _label(curve: Curve) -> str:
    if curve.factor is None:
        return curve.runtime
    if not curve.shows_growth:
        return f"{curve.runtime}: no growth shown"
    return f"{curve.runtime}: {times(curve.factor)} the memory's"


def _steps(group: Iterable[Curve]) -> list[dict[str, Any]]:
    return [
        {"line": line, "label": _label(curve), "context": point.context, "ms": point.step * 1e3}
        for line, curve in enumerate(group)
        for point in curve.points
    ]


def _trials(group: Iterable[Curve]) -> list[dict[str, Any]]:
    return [
        {"label": _label(curve), "context": point.context, "ms": median * 1e3}
        for curve in group
        for point in curve.points
        for median in point.trial_medians
    ]


def _floor_line(group: Iterable[Curve]) -> list[dict[str, Any]]:
    """The floor at the contexts of all runtimes and, as its graph bends on logarithmic axes,
    between them."""
    known = sorted(
        {
            (point.context, point.floor)
            for curve in group
            for point in curve.points
            if point.floor is not None
        }
    )
    rows = [{"context": context, "ms": floor * 1e3} for context, floor in known[:1]]
    for (first, low), (last, high) in pairwise(known):
        for step in range(1, 9):
            share = step / 8
            floor = low + (high - low) * share
            rows.append({"context": first + (last - first) * share, "ms": floor * 1e3})
    return rows


def _floor_layers(alt: Any, group: Sequence[Curve], x: Any, y: Any) -> list[Any]:
    rows = _floor_line(group)
    if not rows:
        return []
    line = alt.Chart(alt.Data(values=rows)).mark_line(
        color=_FLOOR_COLOUR, strokeDash=[6, 4], strokeWidth=2
    )
    name = alt.Chart(alt.Data(values=rows[:1])).mark_text(
        text="reachable floor", align="left", baseline="top", dy=6, color=_FLOOR_COLOUR
    )
    return [chart.encode(x=x, y=y) for chart in (line, name)]


def _curve_title(alt: Any, group: Sequence[Curve]) -> Any:
    first = group[0]
    when = min(curve.started_at for curve in group).strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"{first.device}, {when}. Points: a trial's median; lines: the median of trials"]
    if first.bytes_per_second is not None:
        lines.append(
            f"Dashed: the bytes of a step ÷ {format_bandwidth(first.bytes_per_second)} read here"
        )
    text = f"Step against context: {first.model}, {first.format}, {first.weights} weights"
    return alt.TitleParams(text=text, subtitle=lines, anchor="start", offset=12)
