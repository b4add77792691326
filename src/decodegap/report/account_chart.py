"""The account as a chart: each runtime's step as one stacked bar, a row of bars a context."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from decodegap.explain.account import Account
from decodegap.explain.findings import Cell
from decodegap.explain.part import (
    ATTENTION,
    FLOOR,
    GAPS,
    HOST,
    HOST_BEYOND,
    LAUNCH,
    LINEAR,
    NEW_LENGTHS,
    SYNCHRONISE,
)
from decodegap.units import format_seconds

_WIDTH = 640
PART_COLOURS = {
    FLOOR: "#222222",
    LINEAR: "#0072b2",
    ATTENTION: "#e69f00",
    "cache copies (kernels)": "#d55e00",
    "norms and elementwise (kernels)": "#009e73",
    "sampling (kernels)": "#f0e442",
    GAPS: "#cc79a7",
    SYNCHRONISE: "#6a3d9a",
    LAUNCH: "#56b4e9",
    NEW_LENGTHS: "#882255",
    HOST: "#999933",
    HOST_BEYOND: "#117733",
}
_RESIDUAL_COLOURS = ("#bdbdbd", "#d9d9d9", "#969696", "#efefef")


def account_chart(alt: Any, cells: Sequence[Cell]) -> Any:
    """One bar a runtime, a row of bars a context, all on one scale of time. A part below zero is
    drawn left of it, so a bar may end right of the mark at the step, which its parts sum to."""
    rows = [row for cell in cells for row in _bar_rows(cell)]
    runtimes = list(dict.fromkeys(row["runtime"] for row in rows))
    y = alt.Y("runtime:N", sort=runtimes, title=None, axis=alt.Axis(labelLimit=0))
    parts = list(dict.fromkeys(row["part"] for row in sorted(rows, key=lambda row: row["rank"])))
    scale = alt.Scale(domain=_span(rows), nice=False)
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("ms:Q", title="time of a step, ms", scale=scale),
            y=y,
            color=_part_colour(alt, parts),
            order=alt.Order("rank:Q"),
            tooltip=[alt.Tooltip("runtime:N"), alt.Tooltip("part:N"), alt.Tooltip("ms:Q")],
        )
    )
    mark = alt.Chart().mark_tick(color="black", thickness=2, size=26)
    label = alt.Chart().mark_text(align="left", dx=6)
    layers = alt.layer(
        bars,
        mark.encode(x="max(step_ms):Q", y=y),
        label.encode(x="max(end_ms):Q", y=y, text="step:N"),
        data=alt.Data(values=rows),
    ).properties(width=_WIDTH, height=alt.Step(34))
    by_context = sorted(cells, key=lambda cell: cell.summary.key.context)
    contexts = list(dict.fromkeys(_context(cell) for cell in by_context))
    facet = alt.Row("context:N", sort=contexts, title=None, header=_row_header(alt))
    return layers.facet(row=facet).properties(title=_account_title(alt, cells))


def _context(cell: Cell) -> str:
    return f"context {cell.summary.key.context}"


def _span(rows: Iterable[dict[str, Any]]) -> list[float]:
    """From the lowest part below zero to behind the longest bar, with room for its label."""
    below: dict[object, float] = {}
    for row in rows:
        bar = (row["context"], row["runtime"])
        below[bar] = below.get(bar, 0.0) + min(row["ms"], 0.0)
    return [1.05 * min(below.values()), 1.09 * max(row["end_ms"] for row in rows)]


def _row_header(alt: Any) -> Any:
    return alt.Header(labelOrient="top", labelAnchor="start", labelFontWeight="bold")


def _bar_rows(cell: Cell) -> list[dict[str, Any]]:
    account = cell.account
    assert account is not None, "only cells with an account are drawn"
    shown = _families(account)
    above = sum(seconds for seconds in shown.values() if seconds > 0)
    whole = {
        "runtime": account.runtime,
        "context": _context(cell),
        "step_ms": account.step * 1e3,
        "end_ms": max(above, account.step) * 1e3,
        "step": format_seconds(account.step),
    }
    ranks = [*PART_COLOURS]
    return [
        whole
        | {
            "part": part,
            "ms": seconds * 1e3,
            "rank": ranks.index(part) if part in ranks else len(ranks),
        }
        for part, seconds in shown.items()
    ]


def _families(account: Account) -> dict[str, float]:
    """The account's parts by what they are drawn as. What is left comes last."""
    sums: dict[str, float] = {}
    for part in account.parts:
        name = part.family or part.name
        sums[name] = sums.get(name, 0.0) + part.seconds
    sums[account.residual_name] = sums.get(account.residual_name, 0.0) + account.residual
    return sums


def _part_colour(alt: Any, parts: Sequence[str]) -> Any:
    left = [part for part in parts if part not in PART_COLOURS]
    residuals = dict(zip(left, _RESIDUAL_COLOURS * len(left), strict=False))
    colours = [PART_COLOURS.get(part) or residuals[part] for part in parts]
    return alt.Color(
        "part:N",
        title="part of the step",
        sort=list(parts),
        scale=alt.Scale(domain=list(parts), range=colours),
        legend=alt.Legend(labelLimit=0),
    )


def started_at(cells: Iterable[Cell]) -> datetime:
    """When the first trial of these cells began."""
    return min(record.started_at for cell in cells for record in cell.summary.records)


def _account_title(alt: Any, cells: Sequence[Cell]) -> Any:
    summary = cells[0].summary
    key = summary.key
    when = started_at(cells).strftime("%Y-%m-%d %H:%M UTC")
    return alt.TitleParams(
        text=f"Where the step goes: {key.model}, {key.format}, {key.weights} weights",
        subtitle=[
            f"{summary.device.title}, {when}",
            "Parts sum to the step (black mark); those below zero are drawn left of it",
        ],
        anchor="start",
        offset=12,
    )
