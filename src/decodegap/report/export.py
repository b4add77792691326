"""Measured cells for other programs: CSV, JSON lines, Parquet, Markdown, and the JSON that
github-action-benchmark charts."""

import csv
import io
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from decodegap.errors import DecodegapError, Unavailable
from decodegap.grouping import grouped
from decodegap.report.markdown import as_markdown
from decodegap.report.rows import Row


def as_csv(rows: Sequence[Row]) -> bytes:
    """A header and a line a row; what is not known is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, Row.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    writer.writerows(msgspec.to_builtins(row) for row in rows)
    return out.getvalue().encode()


def as_jsonl(rows: Sequence[Row]) -> bytes:
    """A JSON object a line."""
    return msgspec.json.Encoder().encode_lines(rows)


def as_parquet(rows: Sequence[Row]) -> bytes:
    """One Parquet table, its column types the same whatever is empty.

    Raises:
        Unavailable: pyarrow is not installed.
    """
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise Unavailable("Parquet needs pyarrow: pip install 'decodegap[report]'") from None
    types = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
    types[datetime] = arrow.timestamp("us", tz="UTC")
    schema = arrow.schema([(name, types[kind]) for name, kind in _column_kinds()])
    table = arrow.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], schema=schema)
    out = io.BytesIO()
    parquet.write_table(table, out)
    return out.getvalue()


def _column_kinds() -> list[tuple[str, Any]]:
    """Each column's plain type, optional or not."""
    return [(field.name, _plain(field.type)) for field in msgspec.structs.fields(Row)]


def _plain(kind: Any) -> Any:
    parts = getattr(kind, "__args__", (kind,))
    return next(part for part in parts if part is not type(None))


def as_github(rows: Sequence[Row]) -> bytes:
    """The input of github-action-benchmark's `customSmallerIsBetter`: an entry a cell, its median
    step in milliseconds. A name there is one line of a chart, so of a cell that several runs
    measured the newest is taken, and says so; a cell without a time has no entry.

    Raises:
        DecodegapError: not one cell has a time.
    """
    timed = [row for row in rows if row.step_s is not None]
    sizes = grouped(timed, _chart_name)
    cells = grouped(timed, lambda row: _chart_name(row) + _which(row, sizes[_chart_name(row)]))
    if not cells:
        raise DecodegapError("no cell has a time, and the chart needs one; see `decodegap report`")
    entries = [_chart_entry(name, found) for name, found in cells.items()]
    return msgspec.json.format(msgspec.json.encode(entries)) + b"\n"


def _chart_name(row: Row) -> str:
    arm = "" if row.arm is None else f" (arm {row.arm})"
    where = f"context {row.context_tokens}, {row.weights} weights, {row.device}"
    return f"{row.model} {row.format} {row.runtime}{arm}, {where}"


def _which(row: Row, of_its_name: Sequence[Row]) -> str:
    """What tells models of one name apart: the bytes of a step."""
    return f", {row.bytes} bytes a step" if len({one.bytes for one in of_its_name}) > 1 else ""


def _chart_entry(name: str, found: Sequence[Row]) -> dict[str, Any]:
    row = max(found, key=lambda row: row.started_at)
    assert row.step_s is not None
    extra = [f"trials: {row.num_trials}", *_ratio_lines(row), f"run: {row.run}"]
    if len(found) > 1:
        extra.append(f"the newest of {len(found)} runs")
    entry = {"name": name, "unit": "ms", "value": row.step_s * 1e3, "extra": "\n".join(extra)}
    if row.between_trial_cv is not None:
        entry["range"] = f"± {row.between_trial_cv:.1%}"
    return entry


def _ratio_lines(row: Row) -> list[str]:
    ratios = {"R_floor": row.r_floor, "R_reachable": row.r_reachable}
    return [f"{name}: {value:.3f}" for name, value in ratios.items() if value is not None]


# By the name `--to` takes.
EXPORTS: dict[str, Callable[[Sequence[Row]], bytes]] = {
    "csv": as_csv,
    "jsonl": as_jsonl,
    "parquet": as_parquet,
    "github": as_github,
    "markdown": as_markdown,
}
BINARY = {"parquet"}
