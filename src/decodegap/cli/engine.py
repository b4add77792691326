"""`decodegap engine tune`."""

from pathlib import Path
from typing import Annotated

import typer

from decodegap.cli.console import show
from decodegap.cli.options import ContextOption

engine = typer.Typer(help="Look after the engine.", no_args_is_help=True)


@engine.command()
def tune(
    model: Annotated[str, typer.Argument(help="As for floor; weights are synthetic.")],
    seconds: Annotated[float, typer.Option(min=1, help="How long to try.")] = 120,
    context: ContextOption = None,
    save: Annotated[
        bool, typer.Option("--save", help="Keep the rows for engines on this machine.")
    ] = False,
    device: Annotated[str | None, typer.Option("--device", "-d", help="cuda or cuda:N.")] = None,
) -> None:
    """Find launch settings for a model's shapes on this GPU, on the whole step."""
    from decodegap.measure.machine import torch_device_name
    from decodegap.predict.resolve import resolve_model
    from decodegap.tuning import contexts_for, require_gpu, save_rows, tune_model

    torch_device = torch_device_name(device)
    require_gpu(torch_device)
    shape = resolve_model(model).shape
    contexts = contexts_for(shape, None if context is None else tuple(context))
    found = tune_model(shape, contexts, torch_device, seconds)
    show(found.words, "", found.rows)
    if save:
        path: Path = save_rows(found.rows)
        show(f"saved in {path}; engines on this machine use it from now on")
