"""The length curve: how a runtime's step grows with context, beside what the memory needs.

Each token more in the cache adds its keys and values to what a step reads. The slope of the step
over those bytes is what a byte of cache costs; the memory needs 1 ÷ bandwidth. The quotient of the
two is the curve's factor: 1 where the cache is read once, at full speed.

Contexts count alike whatever their number of trials: the line is fitted to the steps, each the
median of its context's trial medians. Its spread is the least and the greatest slope that any
choice of one trial per context gives: no distribution is assumed, and nothing claimed beyond them.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec

from decodegap.explain.part import kv_bytes
from decodegap.explain.summary import Summary, conditions, summarise
from decodegap.grouping import grouped


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One context. kv_bytes: keys and values a step reads and writes; floor: the reachable one."""

    context: int
    kv_bytes: int
    step: float
    trial_medians: tuple[float, ...]
    floor: float | None


class Slope(msgspec.Struct, frozen=True, kw_only=True):
    """Least squares of the steps on KV bytes, in seconds per byte.

    low, high: over every choice of one trial per context; None where a context has one trial only.
    largest_miss: the most a step lies off the line, seconds; None where two points make the line.
    """

    seconds_per_byte: float
    low: float | None
    high: float | None
    largest_miss: float | None


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Two contexts or more of one runtime on one device, shortest first. `slope` is None where the
    KV bytes do not grow (a window shorter than all contexts)."""

    model: str
    runtime: str
    format: str
    weights: str
    device: str
    runs: tuple[str, ...]
    started_at: datetime
    bytes_per_second: float | None
    points: tuple[CurvePoint, ...]
    slope: Slope | None

    @property
    def factor(self) -> float | None:
        """What an added KV byte costs ÷ what the memory needs for it."""
        return None if self.slope is None else self._times_memory(self.slope.seconds_per_byte)

    @property
    def factor_range(self) -> tuple[float, float] | None:
        """The factor's least and greatest value over choices of one trial per context."""
        if self.slope is None:
            return None
        low, high = self._times_memory(self.slope.low), self._times_memory(self.slope.high)
        return None if low is None or high is None else (low, high)

    @property
    def shows_growth(self) -> bool:
        """Whether the step grows with context in every choice of one trial per context."""
        if self.slope is None:
            return False
        least = self.slope.seconds_per_byte if self.slope.low is None else self.slope.low
        return least > 0

    def _times_memory(self, seconds_per_byte: float | None) -> float | None:
        if seconds_per_byte is None or self.bytes_per_second is None:
            return None
        return seconds_per_byte * self.bytes_per_second


def curves_of(summaries: Iterable[Summary]) -> tuple[Curve, ...]:
    """A curve for each runtime with two contexts or more, in the order the runtimes are met.

    Cells of different machines, versions, protocols or measured bandwidths make no common curve.
    """
    groups = grouped(summaries, _all_but_context)
    return tuple(_curve(group) for group in groups.values() if len(group) > 1)


def pooled(summaries: Iterable[Summary]) -> list[Summary]:
    """Like cells of several runs as one cell, with the trials of all of them."""
    groups = grouped(summaries, lambda one: (_all_but_context(one), one.key.context))
    return [_pool(group) for group in groups.values()]


def _pool(group: Sequence[Summary]) -> Summary:
    if len(group) == 1:
        return group[0]
    records = [record for summary in group for record in summary.records]
    both = summarise(records, group[0].device)
    assert both is not None, "every summary has a time"
    return both


def _all_but_context(summary: Summary) -> object:
    """Two cells with equal values differ in context alone."""
    same = conditions(summary.records[0]) | {
        "cell": msgspec.structs.replace(summary.key, context=0),
        "bandwidth": summary.device.reachable_bytes_per_second,
    }
    return tuple(sorted((what, repr(value)) for what, value in same.items()))


def _curve(group: Iterable[Summary]) -> Curve:
    group = sorted(group, key=lambda summary: summary.key.context)
    key, device = group[0].key, group[0].device
    records = [record for summary in group for record in summary.records]
    points = tuple(_point(summary) for summary in group)
    return Curve(
        model=key.model,
        runtime=key.runtime,
        format=key.format,
        weights=key.weights,
        device=device.title,
        runs=tuple(dict.fromkeys(record.trial.run for record in records)),
        started_at=min(record.started_at for record in records),
        bytes_per_second=device.reachable_bytes_per_second,
        points=points,
        slope=fit_slope(points),
    )


def _point(summary: Summary) -> CurvePoint:
    return CurvePoint(
        context=summary.key.context,
        kv_bytes=kv_bytes(summary),
        step=summary.step,
        trial_medians=summary.trial_medians,
        floor=summary.floor.reachable,
    )


def fit_slope(points: Sequence[CurvePoint]) -> Slope | None:
    """The line through `points`; None if their KV bytes are all equal."""
    centre = math.fsum(point.kv_bytes for point in points) / len(points)
    offsets = [point.kv_bytes - centre for point in points]
    square = math.fsum(offset**2 for offset in offsets)
    if square == 0:
        return None
    # The slope is a weighted sum of the steps, so its extremes are found context by context.
    shares = [offset / square for offset in offsets]
    steps = [point.step for point in points]
    slope = _weighted(shares, steps)
    ends = [
        sorted(share * trial for trial in point.trial_medians)
        for share, point in zip(shares, points, strict=True)
    ]
    spread = all(len(point.trial_medians) > 1 for point in points)
    middle = math.fsum(steps) / len(steps)
    misses = [step - middle - slope * x for step, x in zip(steps, offsets, strict=True)]
    return Slope(
        seconds_per_byte=slope,
        low=math.fsum(end[0] for end in ends) if spread else None,
        high=math.fsum(end[-1] for end in ends) if spread else None,
        largest_miss=max(map(abs, misses)) if len(set(offsets)) > 2 else None,
    )


def _weighted(shares: Sequence[float], values: Sequence[float]) -> float:
    return math.fsum(share * value for share, value in zip(shares, values, strict=True))


def times(factor: float) -> str:
    """`412×`, `40.1×`, `1.7×`."""
    return f"{factor:.0f}×" if abs(factor) >= 100 else f"{factor:.1f}×"
