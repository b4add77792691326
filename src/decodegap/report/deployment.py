"""What to deploy, on the screen and as a document."""

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from decodegap.explain.deployment import Answer, Candidate, Deployment, Need, Outlook
from decodegap.grouping import grouped
from decodegap.report.fitting import Column, FittingTable
from decodegap.report.text import finding_text
from decodegap.units import format_bandwidth, format_hertz, format_seconds

_ANSWERS: dict[Answer, str] = {
    "holds": "holds",
    "late": "late at times",
    "misses": "too slow",
    "unknown": "in time, at a shorter context",
}


def deployment_view(found: Deployment) -> Group:
    """The need, what was measured against it, what each memory allows, and what to do."""
    parts: list[RenderableType] = [Text(_heading(found.need), style="bold")]
    if found.candidates:
        parts.append(_measured_table(found.need, found.candidates))
    else:
        text = f"  no record answers for {found.need.shape.name}; --records names other folders"
        parts.append(Text(text, style="dim"))
    parts += [
        Text(""),
        Text("how near to its floor a runtime has to come: R_floor", style="bold"),
        _outlook_table(found.outlooks),
        Text(f"  {_reached(found)}", style="dim"),
        Text(""),
        *(finding_text(finding) for finding in found.findings),
    ]
    return Group(*parts)


def _heading(need: Need) -> str:
    tokens = "a token" if need.num_tokens == 1 else f"{need.num_tokens} tokens"
    return (
        f"{need.shape.name} at context {need.context}, {tokens} in each tick of {need.rate:g} Hz: "
        f"a step may take {format_seconds(need.step_seconds)}; "
        f"{need.margin:.0%} of a tick stays free"
    )


def _measured_table(need: Need, candidates: Sequence[Candidate]) -> FittingTable:
    columns = [
        Column(name="measured", is_words=True),
        Column(name="format", gives_way=1),
        Column(name="on", is_words=True),
        Column(name="context", gives_way=2),
        Column(name="step", gives_way=3),
        Column(name="p99"),
        Column(name="up to", gives_way=5),
        Column(name="late", gives_way=4),
        Column(is_words=True),
    ]
    return FittingTable(columns, [_measured_row(need, candidate) for candidate in candidates])


def _measured_row(need: Need, candidate: Candidate) -> list[str]:
    """`up to`: the ticks a second that its 99th percentile allows."""
    summary = candidate.summary
    return [
        summary.key.runtime,
        summary.key.format,
        summary.device.title,
        str(summary.key.context),
        format_seconds(summary.step),
        format_seconds(summary.p99),
        format_hertz(summary.p99 * need.num_tokens / (1 - need.margin)),
        f"{candidate.late_share:.0%}",
        _ANSWERS[candidate.answer],
    ]


def _outlook_table(outlooks: Sequence[Outlook]) -> FittingTable:
    """A row a device, the fastest memory first, and a column a format."""
    formats = list(dict.fromkeys(one.format for one in outlooks))
    columns = [
        Column(name="device", is_words=True),
        Column(name="bandwidth", gives_way=1),
        *(Column(name=name) for name in formats),
    ]
    rows = []
    for of_device in grouped(outlooks, lambda one: one.device.name).values():
        device = of_device[0].device
        known = device.bandwidth_bytes_per_second
        bandwidth = "–" if known is None else format_bandwidth(known)
        rows.append((known or 0.0, [device.title, bandwidth, *map(_share_words, of_device)]))
    return FittingTable(columns, [row for _, row in sorted(rows, key=lambda row: -row[0])])


def _share_words(outlook: Outlook) -> str:
    if not outlook.fits:
        return "no room"
    return "–" if outlook.share is None else f"{outlook.share:.2f}"


def _reached(found: Deployment) -> str:
    limit = "above 1 none can"
    nearest = found.nearest_to_floor
    if nearest is None:
        return f"{limit}; no record here says how near one comes"
    return (
        f"{limit}; the nearest in these records comes to {found.reached:.2f}: "
        f"{nearest.key.runtime} with {nearest.key.model} on {nearest.device.title}"
    )


def deployment_document(found: Deployment) -> dict[str, Any]:
    """Base units; `share` is that of the floor which a runtime has to reach."""
    need = found.need
    return {
        "model": need.shape.name,
        "context": need.context,
        "rate_hz": need.rate,
        "tokens": need.num_tokens,
        "margin": need.margin,
        "step_s": need.step_seconds,
        "holds": found.holds,
        "measured": [
            {
                **msgspec.to_builtins(one.summary.key),
                "device": one.summary.device.name,
                "step_s": one.summary.step,
                "p99_s": one.summary.p99,
                "late_share": one.late_share,
                "answer": one.answer,
                "run": one.summary.records[0].trial.run,
            }
            for one in found.candidates
        ],
        "memory": [
            {
                "device": one.device.name,
                "format": one.format,
                "fits": one.fits,
                "share": one.share,
            }
            for one in found.outlooks
        ],
        "findings": msgspec.to_builtins(found.findings),
    }
