"""`decodegap measure`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from decodegap.cli.console import print_json, show, watch
from decodegap.cli.options import (
    DEFAULT_CONTEXT,
    DEFAULT_FOLDER,
    EXIT_NO_RESULT,
    ContextOption,
    FormatOption,
    JsonOption,
    SeedOption,
    TimeoutOption,
    process_per,
    weights_kind,
)
from decodegap.record import MOST_TRIALS


def measure(
    model: Annotated[
        str | None,
        typer.Argument(help="As for floor. [default: one for this kind of device]"),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option("--runtime", "-r", help="Way of running a step; repeatable. [default: all]"),
    ] = None,
    context: ContextOption = None,
    trials: Annotated[
        int, typer.Option(min=1, max=MOST_TRIALS, help="Fresh processes per cell.")
    ] = 3,
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
    seed: SeedOption = 0,
    timeout: TimeoutOption = 900,
    probes: Annotated[
        bool, typer.Option(help="Also time the interventions the account is made of.")
    ] = True,
    process: Annotated[
        str, typer.Option(help="One per trial, or per round of all cells, which loads once.")
    ] = "trial",
    probe_again: Annotated[
        bool, typer.Option("--probe-again", help="Measure the bandwidth even if it is known.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """How fast is it here, and where does the time go?"""
    from decodegap.explain.result import read_result
    from decodegap.files import prepare_folder
    from decodegap.measure.bandwidth import reachable_bandwidth
    from decodegap.measure.machine import local_device, torch_device_name
    from decodegap.measure.trial import Request, held_against, plan_trials
    from decodegap.predict.device import with_measured
    from decodegap.report import text
    from decodegap.report.machine import result_document

    torch_device = torch_device_name(device)
    request = Request(
        model=model,
        runtimes=tuple(runtime or ()),
        contexts=tuple(context or [DEFAULT_CONTEXT]),
        num_trials=trials,
        num_warmup=warmup,
        num_steps=steps,
        weights=weights_kind(weights),
        format=format,
        device=torch_device,
        seed=seed,
        timeout_seconds=timeout,
        probes=probes,
        process=process_per(process),
    )
    trials_asked = plan_trials(request)  # every refusal comes before the bandwidth probe
    folder = prepare_folder(out)
    bandwidth = reachable_bandwidth(torch_device, again=probe_again)
    planned = [held_against(trial, bandwidth.bytes_per_second) for trial in trials_asked]
    if not as_json:
        here = with_measured(local_device(torch_device), *bandwidth.figure_and_source)
        show(text.plan_view(planned, here), "")
    result = read_result(_run_with_progress(planned, folder))
    if as_json:
        print_json(result_document(result, str(folder)))
    else:
        show(text.result_view(result), f"records: {folder}")
    if not result.cells:
        raise typer.Exit(EXIT_NO_RESULT)


def _run_with_progress(trials: Sequence[Any], folder: Path) -> list[Any]:
    """Run the trials of one run and store their records."""
    from decodegap.measure.session import run_trials

    return watch(run_trials(trials, folder), lambda done: (_next(trials, len(done)), len(trials)))


def _next(trials: Sequence[Any], done: int) -> str:
    if done == len(trials):
        return "done"
    return f"{trials[done].runtime}, context {trials[done].context}"
