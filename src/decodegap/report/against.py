"""Published figures beside ours, on the screen and as documents."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from decodegap.explain.published import Against, Counterpart, Figure
from decodegap.units import format_seconds

_MARKS = "H quoted from the paper, M reported by a reader of it, D arithmetic, I inferred"


def against_view(rows: Sequence[Against]) -> Group:
    """One line for each published figure and each of ours beside it."""
    table = Table(box=None)
    for name in ("model", "context", "figure", "published on", "runtime", "mark"):
        table.add_column(name)
    table.add_column("published", justify="right")
    table.add_column("ours", justify="right")
    for name in ("on", "ours ÷ published"):
        table.add_column(name)
    for row in rows:
        for counterpart in row.ours or (None,):
            table.add_row(*_cells(row.figure, counterpart))
    num_beside = sum(bool(row.ours) for row in rows)
    note = f"{num_beside} of {len(rows)} published figures have one of ours beside them; {_MARKS}"
    return Group(Text("against the reference study", style="bold"), table, Text(note, style="dim"))


def _cells(figure: Figure, ours: Counterpart | None) -> list[str]:
    shown = [figure.model, str(figure.context), figure.kind, figure.device, figure.runtime]
    shown += [figure.mark, _value(figure, figure.value)]
    if ours is None:
        return [*shown, "–", "", "not measured"]
    relation = "not comparable: " + ours.unlike if ours.unlike else _relation(figure, ours)
    return [*shown, _value(figure, ours.value), ours.device, relation]


def _relation(figure: Figure, ours: Counterpart) -> str:
    return "–" if figure.value is None else f"{ours.value / figure.value:.3f}"


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "out of memory"
    return format_seconds(value) if figure.kind == "step" else f"{value:.3f}"


def against_document(rows: Sequence[Against]) -> list[dict[str, Any]]:
    """The same for programs: ratios, and seconds for `step`."""
    documents: list[dict[str, Any]] = msgspec.to_builtins(rows)
    return documents
