"""`decodegap plan`."""

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from decodegap.cli.console import print_json, show, tell
from decodegap.cli.options import DEFAULT_CONTEXT, DEFAULT_FOLDER, EXIT_NO_RESULT, JsonOption
from decodegap.errors import DecodegapError

_FORMATS = ("bf16", "int8", "int4-g128")


def plan(
    model: Annotated[str, typer.Argument(help="As for floor.")],
    rate: Annotated[float, typer.Option("--rate", "-r", help="Ticks of the control loop, in Hz.")],
    tokens: Annotated[
        int, typer.Option("--tokens", "-n", min=1, help="Tokens decoded in each tick.")
    ] = 1,
    margin: Annotated[str, typer.Option(help="Share of a tick to keep free.")] = "10%",
    context: Annotated[
        int, typer.Option("--context", "-c", min=1, help="The most tokens in the KV cache.")
    ] = DEFAULT_CONTEXT,
    records: Annotated[
        list[Path] | None,
        typer.Option(help=f"Folder of records; repeatable. [default: {DEFAULT_FOLDER}, if there]"),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", "-d", help="Device name; repeatable. [default: all]"),
    ] = None,
    format: Annotated[
        list[str] | None,
        typer.Option("--format", "-f", help=f"Repeatable. [default: {', '.join(_FORMATS)}]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What should be deployed to hold this rate? Exit code 1 if nothing measured does."""
    from decodegap.explain.deployment import Need, deployment
    from decodegap.explain.prediction import parse_share
    from decodegap.predict.catalogue import devices_asked
    from decodegap.predict.formats import get_format
    from decodegap.predict.resolve import resolve_model
    from decodegap.report.deployment import deployment_document, deployment_view

    if not 0 < rate < math.inf:
        raise DecodegapError(f"--rate {rate:g} is no rate; give ticks a second, above 0")
    # Each once, however it is spelled: a device is a row, a format a column.
    devices = list({row.name: row for row in devices_asked(device)}.values())
    formats = [get_format(name) for name in dict.fromkeys(format or _FORMATS)]
    need = Need(
        shape=resolve_model(model).shape,
        context=context,
        rate=rate,
        num_tokens=tokens,
        margin=parse_share(margin, "--margin"),
        devices=tuple(row.name for row in devices) if device else (),
        formats=tuple(fmt.name for fmt in formats) if format else (),
    )
    found, errors = deployment(need, _records(records), devices, formats)
    tell(errors)
    if as_json:
        print_json(deployment_document(found))
    else:
        show(deployment_view(found))
    if not found.holds:
        raise typer.Exit(EXIT_NO_RESULT)


def _records(folders: list[Path] | None) -> list[Any]:
    """Of all folders; none where none is named and none lies where `measure` leaves them."""
    from decodegap.record_files import read_folder

    if folders is None:
        folders = [DEFAULT_FOLDER] if DEFAULT_FOLDER.is_dir() else []
    found: dict[str, Any] = {}
    for folder in folders:
        records, unreadable = read_folder(folder)
        tell(unreadable)
        found |= {record.id: record for record in records}
    return list(found.values())
