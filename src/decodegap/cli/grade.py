"""`decodegap grade`."""

from pathlib import Path
from typing import Annotated

import typer

from decodegap.cli.console import print_json, show
from decodegap.cli.options import JsonOption
from decodegap.units import parse_bandwidth

EXIT_IMPOSSIBLE = 1


def _bandwidth(text: str) -> float:
    try:
        return parse_bandwidth(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def grade(
    file: Annotated[
        Path,
        typer.Argument(help="JSON of llama-bench, vllm bench latency or optimum-benchmark."),
    ],
    model: Annotated[str | None, typer.Option("--model", "-m", help="As for floor.")] = None,
    device: Annotated[str | None, typer.Option("--device", "-d", help="As for floor.")] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            parser=_bandwidth, metavar="SPEED", help="Of a device without a row, e.g. 68GB/s."
        ),
    ] = None,
    format: Annotated[
        str | None, typer.Option("--format", "-f", help="How weights are stored.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", "-c", min=0, help="Tokens before the first timed.")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens generated in one repetition.")
    ] = None,
    batch: Annotated[int | None, typer.Option(min=1, help="Streams decoded together.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Can another tool's figure be true, and what does it say? Options add what the file leaves
    out. Exit code 1 if a figure is impossible."""
    from decodegap.explain.foreign.given import Given
    from decodegap.explain.foreign.grade import grade_figures
    from decodegap.explain.foreign.read import read_foreign
    from decodegap.report.grade import grading_document, grading_view

    given = Given(
        model=model,
        device=device,
        bandwidth=bandwidth,
        format=format,
        context=context,
        tokens=tokens,
        batch=batch,
    )
    grading = grade_figures(read_foreign(_read(file)), given)
    if as_json:
        print_json(grading_document(grading, str(file)))
    else:
        show(grading_view(grading))
    if grading.any_impossible:
        raise typer.Exit(EXIT_IMPOSSIBLE)


def _read(file: Path) -> bytes:
    from decodegap.explain.foreign.figure import BadForeignFile

    try:
        return file.read_bytes()
    except OSError as error:
        raise BadForeignFile(
            f"cannot read {file} ({error.strerror or error}); give a tool's JSON file"
        ) from None
