"""The command line: parse, call, print; nothing else."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from decodegap.errors import DecodegapError

app = typer.Typer(
    help="How fast could a step be, how fast is it, and where does the time go?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_PIPE_WIDTH = 150
_DEFAULT_CONTEXT = 2048
_DEFAULT_FOLDER = Path("decodegap-results")

_EXIT_BAD_INPUT = 2
_EXIT_NO_RESULT = 1
_EXIT_INTERRUPTED = 130


def main() -> None:
    """The program. An error a person can mend is one line on standard error and exit code 2."""
    try:
        app(standalone_mode=False)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except DecodegapError as error:
        print(f"decodegap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        print("decodegap: interrupted; finished records are kept", file=sys.stderr)
        sys.exit(_EXIT_INTERRUPTED)
    except Exception as error:
        sys.exit(_usage_error(error))


def _usage_error(error: Exception) -> int:
    """What the argument parser refuses, in our form; anything else is a fault of ours and shows
    itself whole."""
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    print(f"decodegap: {message()}", file=sys.stderr)
    return _EXIT_BAD_INPUT


def _console(to_error: bool = False) -> Console:
    stream = sys.stderr if to_error else sys.stdout
    return Console(stderr=to_error, width=None if stream.isatty() else _PIPE_WIDTH, highlight=False)


def _show(*parts: RenderableType) -> None:
    console = _console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def _print_json(document: Any) -> None:
    print(json.dumps(document))


ContextOption = Annotated[
    list[int] | None,
    typer.Option("--context", "-c", help="Tokens in the KV cache; repeatable. [default: 2048]"),
]
FormatOption = Annotated[str, typer.Option("--format", "-f", help="How weights are stored.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, base units.")]


@app.command()
def floor(
    model: Annotated[
        str, typer.Argument(help="Catalogue name, Hugging Face id, folder or config.json.")
    ],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", "-d", help="Device name; repeatable. [default: all]"),
    ] = None,
    context: ContextOption = None,
    format: FormatOption = "bf16",
    flows: Annotated[bool, typer.Option("--flows", help="Every tensor's bytes, and why.")] = False,
    as_json: JsonOption = False,
) -> None:
    """How fast could it be, on which device?"""
    from decodegap.predict.floor import floor_of
    from decodegap.predict.formats import get_format
    from decodegap.predict.resolve import resolve_model
    from decodegap.predict.traffic import held_bytes, published_bytes, step_traffic
    from decodegap.report import text
    from decodegap.report.machine import floor_document

    shape, fmt = resolve_model(model).shape, get_format(format)
    devices = _floor_devices(device)
    documents: list[dict[str, Any]] = []
    for tokens in context or [_DEFAULT_CONTEXT]:
        traffic = step_traffic(shape, tokens, fmt)
        published = published_bytes(shape, tokens, fmt)
        rows = [(row, floor_of(traffic, published, row)) for row in devices]
        if as_json:
            documents += [floor_document(row, result, traffic) for row, result in rows]
        else:
            held = held_bytes(shape, tokens, fmt)
            _show(text.floor_view(rows, traffic, held), "")
            if flows:
                _show(text.flows_table(traffic), "")
    if as_json:
        _print_json(documents[0] if len(documents) == 1 else documents)


def _floor_devices(names: list[str] | None) -> list[Any]:
    """The devices asked for, else the whole catalogue; a bandwidth measured here replaces the
    catalogue's."""
    from decodegap.measure.bandwidth import with_local_bandwidth
    from decodegap.predict.catalogue import catalogue_devices
    from decodegap.predict.device import find_device

    rows = catalogue_devices()
    wanted = [find_device(name, rows) for name in names] if names else list(rows.values())
    return [with_local_bandwidth(row) for row in wanted]


@app.command()
def measure(
    model: Annotated[
        str | None,
        typer.Argument(help="As for floor. [default: the largest known that fits this device]"),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option("--runtime", "-r", help="Way of running a step; repeatable. [default: all]"),
    ] = None,
    context: ContextOption = None,
    trials: Annotated[int, typer.Option(min=1, help="Fresh processes per cell.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per trial.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Discarded steps before them.")] = 5,
    weights: Annotated[
        str | None,
        typer.Option(help="synthetic or checkpoint. [default: checkpoint for a folder or an id]"),
    ] = None,
    format: FormatOption = "bf16",
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="cpu, cuda or cuda:N. [default: a GPU]")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of synthetic weights and of the prompt.")] = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a trial may take.")] = 900,
    probes: Annotated[
        bool, typer.Option(help="Also time the interventions the account is made of.")
    ] = True,
    probe_again: Annotated[
        bool, typer.Option("--probe-again", help="Measure the bandwidth even if it is known.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = _DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """How fast is it here, and where does the time go?"""
    from decodegap.explain.result import read_result
    from decodegap.measure.bandwidth import reachable_bandwidth
    from decodegap.measure.machine import local_device, torch_device_name
    from decodegap.measure.trial import Request, plan_trials
    from decodegap.predict.device import with_measured
    from decodegap.record import prepare_folder
    from decodegap.report import text
    from decodegap.report.machine import result_document

    torch_device = torch_device_name(device)
    request = Request(
        model=model,
        runtimes=tuple(runtime or ()),
        contexts=tuple(context or [_DEFAULT_CONTEXT]),
        num_trials=trials,
        num_warmup=warmup,
        num_steps=steps,
        weights=_weights(weights),
        format=format,
        device=torch_device,
        seed=seed,
        timeout_seconds=timeout,
        probes=probes,
    )
    plan_trials(request, None)  # every refusal comes before the bandwidth probe
    folder = prepare_folder(out)
    bandwidth = reachable_bandwidth(torch_device, again=probe_again)
    planned = plan_trials(request, bandwidth.bytes_per_second)
    if not as_json:
        here = with_measured(local_device(torch_device), *bandwidth.figure_and_source)
        _show(text.plan_view(planned, here), "")
    result = read_result(_run_with_progress(planned, folder))
    if as_json:
        _print_json(result_document(result, str(folder)))
    else:
        _show(text.result_view(result), f"records: {folder}")
    if not result.cells:
        raise typer.Exit(_EXIT_NO_RESULT)


def _weights(given: str | None) -> Any:
    if given in (None, "synthetic", "checkpoint"):
        return given
    raise DecodegapError(f"--weights {given!r} is none of: synthetic, checkpoint")


def _run_with_progress(trials: Sequence[Any], folder: Path) -> list[Any]:
    """Run the trials behind a bar that moves between them only: while a worker is timed, this
    process sleeps."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from decodegap.measure.session import run_trials

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    records = []
    with Progress(*columns, console=_console(to_error=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=len(trials))
        progress.update(task, description=_doing(trials, 0), refresh=True)
        for stored in run_trials(trials, folder):
            records.append(stored.record)
            doing = _doing(trials, len(records))
            progress.update(task, advance=1, description=doing, refresh=True)
    return records


def _doing(trials: Sequence[Any], done: int) -> str:
    if done == len(trials):
        return "done"
    return f"{trials[done].runtime}, context {trials[done].context}"


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of records.")],
    as_json: JsonOption = False,
) -> None:
    """Show me what was measured."""
    from decodegap.explain.result import group_by_run, read_result
    from decodegap.record import read_folder
    from decodegap.report import text
    from decodegap.report.machine import result_document

    records, unreadable = read_folder(folder)
    results = [read_result(run) for run in group_by_run(records).values()]
    for error in unreadable:
        print(f"decodegap: {error}", file=sys.stderr)
    if as_json:
        _print_json([result_document(result, str(folder)) for result in results])
    else:
        for result in results:
            _show(text.run_heading(result), text.result_view(result), "")
    if unreadable:
        raise typer.Exit(_EXIT_BAD_INPUT)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Is this machine fit to measure? Exit code 0 fit, 1 fit with warnings, 2 not."""
    import msgspec

    from decodegap.doctor import examine
    from decodegap.doctor.view import examination_view

    examination = examine()
    if as_json:
        _print_json(msgspec.to_builtins(examination) | {"exit_code": examination.exit_code})
    else:
        _show(examination_view(examination))
    raise typer.Exit(examination.exit_code)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from decodegap import __version__

        print(__version__)
        raise typer.Exit


if __name__ == "__main__":
    main()
