"""`decodegap report`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from decodegap.cli.console import print_json, show, tell
from decodegap.cli.options import EXIT_BAD_INPUT, JsonOption
from decodegap.errors import DecodegapError


def report(
    folder: Annotated[Path, typer.Argument(help="A folder of records.")],
    against: Annotated[
        str | None, typer.Option(help="reference: beside the reference study's figures.")
    ] = None,
    charts: Annotated[
        Path | None, typer.Option(help="Also draw curves and accounts into this folder.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show me what was measured."""
    from decodegap.explain.runs import read_runs
    from decodegap.record_files import read_folder

    if against not in (None, "reference"):
        raise DecodegapError(f"--against {against!r} is none of: reference")
    records, unreadable = read_folder(folder)
    found = read_runs(records)
    runs, errors = found.read, (*unreadable, *found.errors)
    tell(errors)
    drawn = "" if charts is None else _draw(runs, charts)
    if against is None:
        show_runs(runs, folder, as_json)
    else:
        _show_against(runs, as_json)
    if drawn and not as_json:
        show(drawn)
    if errors:
        raise typer.Exit(EXIT_BAD_INPUT)


def _show_against(runs: Sequence[Any], as_json: bool) -> None:
    from decodegap.explain.published import against_reference
    from decodegap.report.against import against_document, against_view

    rows = against_reference(runs)
    if as_json:
        print_json(against_document(rows))
    else:
        show(against_view(rows))


def _draw(runs: Sequence[Any], folder: Path) -> str:
    """Write the charts, before anything is shown; which they are."""
    from decodegap.report.charts import write_charts

    page, *images = write_charts(runs, folder)
    return f"charts: {page} and {len(images)} images beside it"


def show_runs(runs: Sequence[Any], folder: Path, as_json: bool) -> None:
    from decodegap.report.runs import run_document, run_view

    if as_json:
        print_json([run_document(run, str(folder)) for run in runs])
    else:
        for run in runs:
            show(run_view(run), "")
