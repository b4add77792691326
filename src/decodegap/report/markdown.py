"""Measured cells as Markdown for pasting, with the hardware, the protocol and the trial counts."""

from collections.abc import Sequence

from decodegap.grouping import grouped
from decodegap.report.rows import Row
from decodegap.units import format_seconds

_COLUMNS = (
    *("model", "runtime", "format", "context", "trials"),
    *("step", "p95", "p99", "CV", "exact floor", "R_floor"),
)


def as_markdown(rows: Sequence[Row]) -> bytes:
    """A table for each machine and protocol, under a line that says which."""
    machines = grouped(rows, _machine_line)
    parts = [f"{line}\n\n{_table(found)}" for line, found in machines.items()]
    return "\n".join(parts).encode()


def _machine_line(row: Row) -> str:
    software = {
        "driver": row.driver,
        "torch": row.torch_version,
        "transformers": row.transformers_version,
    }
    known = [f"{name} {version}" for name, version in software.items() if version]
    where = [f"**{_escaped(row.device_name or row.device)}**"]
    where += [_escaped(row.host_cpu)] if row.host_cpu else []
    protocol = f"{row.num_warmup_steps} warm-up and {row.num_timed_steps} timed steps"
    process = "process" if row.process == "trial" else "process, which measures other cells too,"
    return (
        f"{', '.join((*where, *known))}; {row.weights} weights. Batch 1; a trial is a fresh "
        f"{process} with {protocol}; a step is the median of its trials' medians; R_floor is the "
        "floor by the datasheet ÷ step."
    )


def _table(rows: Sequence[Row]) -> str:
    lines = [_line(_COLUMNS)]
    lines.append(_line(["---"] * 3 + ["---:"] * (len(_COLUMNS) - 3)))
    lines += [_line(_cells(row)) for row in rows]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(row: Row) -> list[str]:
    failed = f" ({row.num_failed_trials} failed)" if row.num_failed_trials else ""
    runtime = row.runtime if row.arm is None else f"{row.runtime} ({row.arm})"
    cv = "–" if row.between_trial_cv is None else f"{row.between_trial_cv:.1%}"
    step = row.outcome if row.step_s is None else format_seconds(row.step_s)
    times = [_time(seconds) for seconds in (row.p95_s, row.p99_s)]
    ratio = "–" if row.r_floor is None else f"{row.r_floor:.3f}"
    names = [_escaped(row.model), _escaped(runtime), row.format, str(row.context_tokens)]
    return [*names, f"{row.num_trials}{failed}", step, *times, cv, _time(row.exact_floor_s), ratio]


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_seconds(seconds)


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")
