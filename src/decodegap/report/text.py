"""What the verbs print: every function takes values and returns something rich can show."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from decodegap.explain.findings import Finding
from decodegap.explain.result import Result
from decodegap.explain.summary import Summary
from decodegap.predict.device import Device
from decodegap.predict.floor import Floor, step_floor
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import Flow, Traffic
from decodegap.record import Record, Trial
from decodegap.report.account_view import accounts_view
from decodegap.report.curve import curves_view
from decodegap.report.fitting import Column, FittingTable
from decodegap.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_hertz,
    format_seconds,
)


def floor_view(
    rows: Sequence[tuple[Device, Floor]], traffic: Traffic, held_bytes: int
) -> RenderableType:
    """Floors of one traffic on several devices, the fastest first where it is known.

    held_bytes: all weights and the cache, which the device's memory must hold.
    """
    exact, published = rows[0][1].exact_bytes, rows[0][1].published_bytes
    heading = (
        f"{traffic.model}, {traffic.format}, context {traffic.context}: a step moves "
        f"{format_bytes(exact)} ({format_bytes(published)} as published), a device must hold "
        f"{format_bytes(held_bytes)}"
    )
    floors = {"published": 4, "exact": 0, "reachable": 2}  # each with how soon it gives way
    known = [name for name in floors if any(getattr(floor, name) for _, floor in rows)]
    columns = [Column(name="device", is_words=True)]
    for name in known:
        columns.append(Column(name=name, gives_way=floors[name]))
        columns.append(Column(is_dim=True, gives_way=floors[name] or 1))
    columns.append(Column(is_words=True))
    lines = [
        [
            device.title,
            *(cell for name in known for cell in _time_and_rate(getattr(floor, name))),
            _fit_words(device, held_bytes),
        ]
        for device, floor in sorted(rows, key=lambda row: row[1].exact or float("inf"))
    ]
    return Group(Text(heading, style="bold"), FittingTable(columns, lines))


def _fit_words(device: Device, held_bytes: int) -> str:
    if device.memory_bytes is None or held_bytes <= device.memory_bytes:
        return ""
    return f"does not fit {format_bytes(device.memory_bytes)}"


def _time_and_rate(seconds: float | None) -> tuple[str, str]:
    return ("–", "") if seconds is None else (format_seconds(seconds), format_hertz(seconds))


def flows_table(traffic: Traffic) -> Table:
    """Every flow; the same tensor of consecutive layers is one line with a count."""
    table = Table(box=None)
    table.add_column("op")
    table.add_column("tensor")
    table.add_column("count", justify="right")
    table.add_column("each", justify="right")
    table.add_column("total", justify="right")
    table.add_column("reason")
    for (op, tensor, each, reason), count in _grouped(traffic.flows).items():
        total = format_bytes(each * count)
        table.add_row(op, tensor, str(count), format_bytes(each), total, reason)
    table.add_row("", "all", str(len(traffic.flows)), "", format_bytes(traffic.bytes), "")
    return table


def _grouped(flows: Iterable[Flow]) -> dict[tuple[str, str, int, str], int]:
    groups: dict[tuple[str, str, int, str], int] = {}
    for flow in flows:
        pattern = ".".join("*" if part.isdigit() else part for part in flow.tensor.split("."))
        key = (flow.op, pattern, flow.bytes, flow.reason)
        groups[key] = groups.get(key, 0) + 1
    return groups


def plan_view(trials: Sequence[Trial], device: Device) -> Text:
    """What will be measured, and how fast it could be. `device` has its measured bandwidth."""
    first = trials[0]
    runtimes = ", ".join(dict.fromkeys(trial.runtime for trial in trials))
    lines = [f"{first.shape.name}, {first.format}, {first.weights_words}, on {device.title}"]
    if device.measured is not None:
        speed = format_bandwidth(device.measured.bytes_per_second)
        lines.append(f"memory reads at {speed} ({device.measured.source})")
    each = "each a fresh process" if first.process is None else "one process a round of all cells"
    lines.append(
        f"{runtimes}; {format_count(len(trials), 'trial')}, {each}: prefill, "
        f"{first.num_warmup} warm-up steps, {first.num_steps} timed"
    )
    for context in dict.fromkeys(trial.context for trial in trials):
        floor = step_floor(first.shape, context, get_format(first.format), device)
        lines.append(f"context {context}: {_floor_words(floor)}")
    return Text("\n".join(lines))


def _floor_words(floor: Floor) -> str:
    words = [f"{format_bytes(floor.exact_bytes)} a step"]
    if floor.exact is not None:
        words.append(f"floor {format_seconds(floor.exact)} by the datasheet")
    if floor.reachable is not None:
        words.append(
            f"{format_seconds(floor.reachable)} ({format_hertz(floor.reachable)}) "
            "at the bandwidth measured here"
        )
    return ", ".join(words)


def run_heading(result: Result) -> Text:
    """Which machine, which model, when."""
    records = [record for cell in result.cells for record in cell.summary.records]
    first = (records or list(result.failures))[0]
    where = first.environment.device_name if first.environment else first.trial.device
    when = first.started_at.strftime("%Y-%m-%d %H:%M UTC")
    trial = first.trial
    text = f"{trial.shape.name}, {trial.format}, {trial.weights} weights, on {where}, {when}"
    return Text(text, style="bold")


def result_view(result: Result) -> Group:
    """Steps, curves, accounts, failures, findings: the screen of `measure` and `report`."""
    parts: list[RenderableType] = []
    if result.cells:
        summaries = [cell.summary for cell in result.cells]
        parts += [times_table(summaries), memory_table(summaries)]
        parts += [Text(_SHARED, style="dim")] if any(s.shares_processes for s in summaries) else []
        parts.append(Text())
    if result.curves:
        parts.append(curves_view(result.curves))
    parts += accounts_view(result.cells)
    parts += [failure_text(record) for record in _first_of_each(result.failures)]
    parts += [finding_text(finding) for finding in result.findings]
    return Group(*parts)


_SHARED = (
    "  one process a round ran all cells and loaded the weights once: a cell's trials shared none"
)
# Each with how soon it gives way to a narrow terminal.
_TIME_COLUMNS = {
    "context": 0,
    "step": 0,
    "of trials": 1,
    "p95": 5,
    "p99": 2,
    "rate": 0,
    "trials": 4,
    "CV": 3,
}
_MEMORY_COLUMNS = {
    "context": 0,
    "bytes": 3,
    "achieved": 2,
    "R_floor": 0,
    "R_published": 5,
    "R_reachable": 0,
    "top-1": 1,
    "KL": 4,
}


def times_table(summaries: Sequence[Summary]) -> FittingTable:
    """How long the steps took: one line a cell. `of trials`: least to greatest trial median."""
    return _cell_table(summaries, _TIME_COLUMNS, [_time_row(summary) for summary in summaries])


def memory_table(summaries: Sequence[Summary]) -> FittingTable:
    """How far that is from what memory allows, and the worst verdict of the trials."""
    return _cell_table(summaries, _MEMORY_COLUMNS, [_memory_row(summary) for summary in summaries])


def _cell_table(
    summaries: Sequence[Summary], columns: Mapping[str, int], rows: Sequence[Sequence[str]]
) -> FittingTable:
    """Columns that have no value in any row are left out."""
    kept = [index for index in range(len(columns)) if any(row[index] for row in rows)]
    every = [Column(name=name, gives_way=soon) for name, soon in columns.items()]
    return FittingTable(
        [Column(name="runtime", is_words=True), *(every[index] for index in kept)],
        [
            [summary.key.runtime, *(row[index] for index in kept)]
            for summary, row in zip(summaries, rows, strict=True)
        ],
    )


def _time_row(summary: Summary) -> list[str]:
    cv, medians = summary.between_trial_cv, summary.trial_medians
    spread = f"{format_seconds(min(medians))} – {format_seconds(max(medians))}"
    return [
        str(summary.key.context),
        format_seconds(summary.step),
        spread if len(medians) > 1 else "",
        format_seconds(summary.p95),
        format_seconds(summary.p99),
        format_hertz(summary.step),
        str(len(medians)),
        "" if cv is None else f"{cv:.1%}",
    ]


def _memory_row(summary: Summary) -> list[str]:
    floor = summary.floor
    verdicts = [r.measurement.verdict for r in summary.records if r.measurement is not None]
    return [
        str(summary.key.context),
        format_bytes(floor.exact_bytes),
        format_bandwidth(summary.achieved_bytes_per_second),
        *(_ratio(summary.ratio(f)) for f in (floor.exact, floor.published, floor.reachable)),
        f"{min(verdict.top1_agreement for verdict in verdicts):.0%}",
        f"{max(verdict.kl_divergence for verdict in verdicts):.1g}",
    ]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _first_of_each(failures: Iterable[Record]) -> list[Record]:
    unique = {(r.trial.runtime, r.trial.context, r.outcome, r.reason): r for r in failures}
    return list(unique.values())


def failure_text(record: Record) -> Text:
    """A trial without a time: which, how it ended, why."""
    trial = record.trial
    line = f"{trial.runtime}, context {trial.context}: {record.outcome}: {record.reason}"
    return Text(line, style="yellow" if record.outcome == "unavailable" else "red")


def finding_text(finding: Finding) -> Text:
    mark, style = ("→", "bold") if finding.severity == "advice" else ("!", "yellow")
    where = ", ".join(finding.cells)
    return Text.assemble((f"{mark} {where}: {finding.text}", style), f" – {finding.hint}")
