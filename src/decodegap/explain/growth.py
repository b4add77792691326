"""What is advised where the step grows faster with context than the memory needs."""

from collections.abc import Iterable, Sequence

from decodegap.explain.curve import Curve, times
from decodegap.explain.findings import REMEDIES, Cell, Finding
from decodegap.explain.part import FLOOR
from decodegap.explain.summary import CellKey
from decodegap.units import format_seconds

_LARGE_FACTOR = 3.0

_COPIES = (
    "the cache is copied, its heads are repeated, or attention reads the length allocated: see "
    "which part of the account grows, and use attention that reads the cache in place"
)


def findings_on_curves(curves: Iterable[Curve], cells: Sequence[Cell]) -> list[Finding]:
    """Advice on each curve whose KV bytes cost several times what the memory needs. `cells`: those
    of the curves; their accounts say what grows."""
    return [_growth(curve, cells) for curve in curves if _is_steep(curve)]


def _is_steep(curve: Curve) -> bool:
    """Several times the memory's need, and above it in every choice of trials."""
    return (
        curve.factor is not None
        and curve.factor > _LARGE_FACTOR
        and (curve.factor_range is None or curve.factor_range[0] > 1)
    )


def _growth(curve: Curve, cells: Sequence[Cell]) -> Finding:
    assert curve.factor is not None, "only steep curves come here"
    first, last = curve.points[0], curve.points[-1]
    text = (
        f"each added KV byte costs {times(curve.factor)} what the memory needs: the step grows by "
        f"{format_seconds(last.step - first.step)}, its floor by {_floor_growth(curve)}"
    )
    grown = _largest_growth(curve, cells)
    if grown is not None:
        text += f"; what grows most is {grown[0]}: {format_seconds(grown[1])}"
    names = tuple(f"{curve.runtime} at {point.context}" for point in curve.points)
    hint = _COPIES if grown is None else REMEDIES.get(grown[0], _COPIES)
    return Finding(severity="advice", cells=names, text=text, hint=hint)


def _floor_growth(curve: Curve) -> str:
    first, last = curve.points[0].floor, curve.points[-1].floor
    assert first is not None, "a factor needs a bandwidth"
    assert last is not None, "a factor needs a bandwidth"
    return format_seconds(last - first)


def _largest_growth(curve: Curve, cells: Sequence[Cell]) -> tuple[str, float] | None:
    """The part of the account that grew most from the shortest to the longest context."""
    ends = (curve.points[0].context, curve.points[-1].context)
    first, last = (_parts_at(context, curve, cells) for context in ends)
    growth = {name: last[name] - first[name] for name in last if name in first}
    return max(growth.items(), key=lambda item: item[1]) if growth else None


def _parts_at(context: int, curve: Curve, cells: Iterable[Cell]) -> dict[str, float]:
    wanted = CellKey(curve.model, curve.runtime, curve.format, context, curve.weights)
    for cell in cells:
        summary, account = cell.summary, cell.account
        if summary.key == wanted and summary.records[0].trial.run in curve.runs and account:
            above = {part.name: part.seconds for part in account.parts if part.name != FLOOR}
            return above | {account.residual_name: account.residual}
    return {}
