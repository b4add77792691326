"""`decodegap export`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from decodegap.cli.console import tell
from decodegap.cli.options import EXIT_BAD_INPUT
from decodegap.errors import DecodegapError, OutputFolder


def export(
    folder: Annotated[Path, typer.Argument(help="A folder of records.")],
    to: Annotated[str, typer.Option(help="csv, jsonl, parquet, github or markdown.")],
    out: Annotated[Path | None, typer.Option(help="A new file. [default: standard output]")] = None,
) -> None:
    """Hand the measured cells to other programs: one row a cell."""
    from decodegap.record_files import read_folder
    from decodegap.report.export import BINARY, EXPORTS
    from decodegap.report.rows import export_rows

    if to not in EXPORTS:
        raise DecodegapError(f"--to {to!r} is none of: {', '.join(EXPORTS)}")
    if to in BINARY and out is None:
        raise DecodegapError(f"{to} is not text; give a file with --out")
    _refuse_existing(out)
    records, unreadable = read_folder(folder)
    data = EXPORTS[to](export_rows(records))
    tell(unreadable)
    _write(data, out)
    if unreadable:
        raise typer.Exit(EXIT_BAD_INPUT)


def _refuse_existing(out: Path | None) -> None:
    if out is not None and out.exists():
        raise OutputFolder(
            f"{out} exists and is never overwritten; remove it or give another --out"
        )


def _write(data: bytes, out: Path | None) -> None:
    from decodegap.files import write_once

    if out is None:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)  # UTF-8, whatever the terminal's encoding is
    else:
        write_once(data, out)
