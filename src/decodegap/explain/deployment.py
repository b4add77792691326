"""What to deploy for a control rate.

What was measured is held against the time that a step may take. Where nothing was, the floor says
how near to it a runtime would have to come, which is no promise that one does.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from decodegap.errors import DecodegapError
from decodegap.explain.findings import Finding
from decodegap.explain.result import device_of, group_by_run
from decodegap.explain.summary import Summary, group_by_cell, summarise
from decodegap.grouping import grouped
from decodegap.predict.catalogue import catalogue_models
from decodegap.predict.device import Device
from decodegap.predict.floor import step_floor
from decodegap.predict.formats import Format, get_format
from decodegap.predict.model import WITHOUT_COST, ModelShape
from decodegap.predict.traffic import held_bytes
from decodegap.record import Record
from decodegap.units import format_seconds

# `late`: the median is in time and the 99th percentile is not. `unknown`: in time at a shorter
# context, and not measured at one as long as asked for.
Answer = Literal["holds", "late", "misses", "unknown"]


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """A control loop that decodes `num_tokens` in each of its ticks, `rate` of them a second, with
    up to `context` tokens in the cache. `margin`: the share of a tick that is kept free. `devices`
    and `formats`: the only ones that come into question, by name; any, where empty."""

    shape: ModelShape
    context: int
    rate: float
    num_tokens: int = 1
    margin: float = 0.1
    devices: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()

    @property
    def step_seconds(self) -> float:
        """The most that a step may take."""
        return (1.0 - self.margin) / (self.rate * self.num_tokens)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A measured way of decoding, and what it answers. `late_share`: of its timed steps, those that
    took longer than a step may."""

    summary: Summary
    answer: Answer
    late_share: float

    @property
    def name(self) -> str:
        key = self.summary.key
        return f"{key.runtime}, {key.format}, on {self.summary.device.title}"


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """What a device's memory allows in one format. `share`: of the floor of the exact bytes (the
    R_floor) that a runtime has to reach; above 1 none can. None: its bandwidth is not known."""

    device: Device
    format: str
    fits: bool
    share: float | None

    @property
    def is_possible(self) -> bool:
        return self.fits and self.share is not None and self.share <= 1.0


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: what holds first, then by the 99th percentile. `nearest_to_floor`: the cell with
    the largest R_floor among the records, of whatever model."""

    need: Need
    candidates: tuple[Candidate, ...]
    outlooks: tuple[Outlook, ...]
    nearest_to_floor: Summary | None

    @property
    def holds(self) -> bool:
        return any(candidate.answer == "holds" for candidate in self.candidates)

    @property
    def reached(self) -> float | None:
        """The largest R_floor among the records."""
        return None if self.nearest_to_floor is None else _r_floor(self.nearest_to_floor)

    @property
    def findings(self) -> list[Finding]:
        """What to do, by what was measured and by what memory allows."""
        return [*_on_what_was_measured(self), *_on_memory(self)]


def deployment(
    need: Need, records: Sequence[Record], devices: Iterable[Device], formats: Sequence[Format]
) -> tuple[Deployment, list[DecodegapError]]:
    """Hold records and floors against a need; and an error for each cell that cannot be read.

    Raises:
        BadContext: the model cannot decode at this context.
    """
    summaries, errors = _summaries(records)
    candidates = _candidates(need, summaries)
    outlooks = [_outlook(need, device, fmt) for device in devices for fmt in formats]
    known = [summary for summary in summaries if _r_floor(summary)]
    found = Deployment(
        need=need,
        candidates=tuple(candidates),
        outlooks=tuple(outlooks),
        nearest_to_floor=max(known, key=_r_floor, default=None),
    )
    return found, errors


def _summaries(records: Sequence[Record]) -> tuple[list[Summary], list[DecodegapError]]:
    """Of every run's cells, those of comparisons too."""
    summaries, errors = [], []
    for name, run in group_by_run(records).items():
        for cell in group_by_cell(run).values():
            try:
                summary = summarise(cell, device_of(cell))
            except DecodegapError as error:
                errors.append(DecodegapError(f"run {name}: a cell is left out: {error}"))
                continue
            if summary is not None:
                summaries.append(summary)
    return summaries, errors


def _candidates(need: Need, summaries: Iterable[Summary]) -> list[Candidate]:
    """One for each device, format and runtime: from the shortest context that is as long as asked
    for, else from the longest there is; of several runs at it the one with the slowest steps."""
    wanted = _timed_shape(need.shape)
    of_model = [
        summary
        for summary in summaries
        if _timed_shape(summary.records[0].trial.shape) == wanted
        and (not need.devices or summary.device.name in need.devices)
        and (not need.formats or summary.key.format in need.formats)
    ]
    ways = grouped(of_model, lambda s: (s.device.name, s.key.format, s.key.runtime))
    found = [_candidate(need, way) for way in ways.values()]
    order: tuple[Answer, ...] = ("holds", "late", "unknown", "misses")
    return sorted(found, key=lambda one: (order.index(one.answer), one.summary.p99))


def _timed_shape(shape: ModelShape) -> dict[str, object]:
    """What two configs must agree in to be one model to a clock."""
    fields = msgspec.structs.asdict(shape)
    return {name: value for name, value in fields.items() if name not in WITHOUT_COST}


def _candidate(need: Need, way: Sequence[Summary]) -> Candidate:
    lengths = {summary.key.context for summary in way}
    as_long = {length for length in lengths if length >= need.context}
    context = min(as_long) if as_long else max(lengths)
    at_context = [summary for summary in way if summary.key.context == context]
    slowest = max(at_context, key=lambda summary: summary.p99)
    samples = [sample for record in slowest.records for sample in record.wall_samples]
    late = sum(sample > need.step_seconds for sample in samples) / len(samples)
    answer = _answer(slowest, need.step_seconds)
    if not as_long and answer != "misses":
        answer = "unknown"
    return Candidate(summary=slowest, answer=answer, late_share=late)


def _answer(summary: Summary, step_seconds: float) -> Answer:
    if summary.p99 <= step_seconds:
        return "holds"
    return "late" if summary.step <= step_seconds else "misses"


def _outlook(need: Need, device: Device, fmt: Format) -> Outlook:
    floor = step_floor(need.shape, need.context, fmt, device).exact
    needed = held_bytes(need.shape, need.context, fmt)
    return Outlook(
        device=device,
        format=fmt.name,
        fits=device.memory_bytes is None or needed <= device.memory_bytes,
        share=None if floor is None else floor / need.step_seconds,
    )


def _r_floor(summary: Summary) -> float:
    return summary.ratio(summary.floor.exact) or 0.0


def _on_what_was_measured(found: Deployment) -> Iterable[Finding]:
    """The slowest memory on which something holds, and the fastest there; or what comes nearest."""
    most = found.need.step_seconds
    holding = [one for one in found.candidates if one.answer == "holds"]
    if holding:
        best = min(holding, key=lambda one: (_bandwidth(one.summary.device), one.summary.p99))
        p99 = best.summary.p99
        yield _advice(
            best.name,
            f"holds {found.need.rate:g} Hz: p99 {format_seconds(p99)} of the "
            f"{format_seconds(most)} that a step may take, {1 - p99 / most:.0%} to spare",
            "deploy it",
        )
    elif found.candidates:
        best = min(found.candidates, key=lambda one: one.summary.p99)
        if best.answer == "unknown":
            text = f"is in time at context {best.summary.key.context}, the longest measured"
            hint = f"measure it with --context {found.need.context}"
        else:
            p99 = best.summary.p99
            text = (
                f"comes nearest and does not hold {found.need.rate:g} Hz: p99 "
                f"{format_seconds(p99)}, {p99 / most:.2f}× what a step may take"
            )
            hint = "a faster memory, fewer bytes, fewer tokens in a tick or a lower rate"
        yield _advice(best.name, text, hint)


def _bandwidth(device: Device) -> float:
    known = device.bandwidth_bytes_per_second or device.reachable_bytes_per_second
    return math.inf if known is None else known


def _on_memory(found: Deployment) -> Iterable[Finding]:
    """The slowest memory that could do, as near to its floor as something here has come; if there
    is none, at its floor. Not where something is known to hold on it, or on a slower one."""
    possible = [one for one in found.outlooks if one.is_possible]
    in_reach = [one for one in possible if (one.share or 0.0) <= (found.reached or 1.0)]
    possible = in_reach or possible
    if not possible:
        yield _advice(
            f"{found.need.rate:g} Hz",
            "is out of reach on each of these devices and formats, whatever the runtime",
            "a smaller model or format, a shorter context, fewer tokens in a tick or a lower rate",
        )
        return
    least = min(possible, key=lambda one: _bandwidth(one.device))
    known = [one.summary.device for one in found.candidates if one.answer == "holds"]
    if _bandwidth(least.device) < min(map(_bandwidth, known), default=math.inf):
        yield _advice(
            least.device.title,
            "is the slowest memory that could hold it: a runtime has to reach "
            f"{least.share:.2f} of its floor in {least.format}",
            _how_to_know(found.need, least.format),
        )


def _how_to_know(need: Need, fmt: str) -> str:
    if get_format(fmt).is_quantised:
        return "no runtime here takes that format; `decodegap grade` reads other tools' reports"
    name = need.shape.name if need.shape.name in catalogue_models() else "MODEL"
    return f"measure it there: decodegap measure {name} --context {need.context} --format {fmt}"


def _advice(cell: str, text: str, hint: str) -> Finding:
    return Finding(severity="advice", cells=(cell,), text=text, hint=hint)
