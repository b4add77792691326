"""`decodegap compare`."""

from pathlib import Path
from typing import Annotated

import typer

from decodegap.cli.console import print_json, show, watch
from decodegap.cli.options import (
    DEFAULT_CONTEXT,
    DEFAULT_FOLDER,
    FormatOption,
    JsonOption,
    SeedOption,
    TimeoutOption,
    weights_kind,
)
from decodegap.record import MOST_TRIALS


def compare(
    model: Annotated[str, typer.Argument(help="As for floor.")],
    a: Annotated[str, typer.Argument(metavar="A", help="A runtime, e.g. hf-eager.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another, e.g. hf-eager?sdpa=flash.")],
    trials: Annotated[
        int, typer.Option("--trials", "-n", min=1, max=MOST_TRIALS, help="Fresh processes per arm.")
    ] = 10,
    max_trials: Annotated[
        int, typer.Option(min=1, max=MOST_TRIALS, help="The most --until-ci may take.")
    ] = 50,
    until_ci: Annotated[
        str | None, typer.Option("--until-ci", help="Add pairs until the interval is so narrow: 1%")
    ] = None,
    margin: Annotated[str, typer.Option(help="The difference that does not matter.")] = "5%",
    predict: Annotated[
        str | None, typer.Option(help="Said beforehand: 'ratio > 1.2', 'no difference within 5 %'")
    ] = None,
    context: Annotated[int, typer.Option("--context", "-c")] = DEFAULT_CONTEXT,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per trial.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Discarded steps before them.")] = 5,
    weights: Annotated[str | None, typer.Option(help="synthetic or checkpoint.")] = None,
    format: FormatOption = "bf16",
    device: Annotated[str | None, typer.Option("--device", "-d", help="As for measure.")] = None,
    seed: SeedOption = 0,
    timeout: TimeoutOption = 900,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Does B really beat A? Exit code 0 faster, 1 slower, 3 no difference, 4 inconclusive."""
    from decodegap.explain.compare import compare as compare_records
    from decodegap.explain.prediction import parse_share
    from decodegap.files import prepare_folder
    from decodegap.measure.bandwidth import reachable_bandwidth
    from decodegap.measure.machine import torch_device_name
    from decodegap.measure.session import run_trials
    from decodegap.measure.trial import Request
    from decodegap.report import comparison as page
    from decodegap.study.pairs import register, run_pairs
    from decodegap.study.request import PairRequest, comparison_words, plan_comparison

    torch_device = torch_device_name(device)
    request = PairRequest(
        base=Request(
            model=model,
            runtimes=(a, b),
            contexts=(context,),
            num_trials=1,
            num_warmup=warmup,
            num_steps=steps,
            weights=weights_kind(weights),
            format=format,
            device=torch_device,
            seed=seed,
            timeout_seconds=timeout,
            probes=False,
            arms=True,
        ),
        num_pairs=trials,
        max_pairs=max(trials, max_trials) if until_ci else trials,
        margin=parse_share(margin, "--margin"),
        predict=predict,
        until_width=None if until_ci is None else parse_share(until_ci, "--until-ci"),
    )
    asked = plan_comparison(request)  # every refusal comes before the bandwidth probe
    folder = prepare_folder(out)
    bandwidth = reachable_bandwidth(torch_device)
    plan = asked.held_against(bandwidth.bytes_per_second)
    if not as_json:
        show(comparison_words(plan), "")
    register(plan, folder)
    stored = run_pairs(plan, lambda batch: run_trials(batch, folder))
    records = watch(stored, lambda done: (f"{len(done)} trials done", max(2 * trials, len(done))))
    comparison = compare_records(records)
    if as_json:
        print_json(page.comparison_document(comparison) | {"records": str(folder)})
    else:
        show(page.comparison_view(comparison), f"records: {folder}")
    raise typer.Exit(comparison.exit_code)
