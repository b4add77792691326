"""`decodegap floor`."""

import sys
from typing import Annotated, Any

import typer

from decodegap.cli.console import print_json, show
from decodegap.cli.options import DEFAULT_CONTEXT, ContextOption, FormatOption, JsonOption


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
    from decodegap.measure.bandwidth import with_local_bandwidths
    from decodegap.predict.catalogue import devices_asked
    from decodegap.predict.floor import floor_of
    from decodegap.predict.formats import get_format
    from decodegap.predict.resolve import resolve_model
    from decodegap.predict.traffic import held_bytes, published_bytes, step_traffic
    from decodegap.report import text
    from decodegap.report.machine import floor_document

    source, fmt = resolve_model(model), get_format(format)
    shape = source.shape
    if source.quantisation is not None and not fmt.is_quantised:
        print(
            f"decodegap: {shape.name} is quantised ({source.quantisation}) by its config, and "
            f"counted here as {fmt.name}; give the --format it is stored in",
            file=sys.stderr,
        )
    # A bandwidth measured here replaces the catalogue's.
    devices = with_local_bandwidths(devices_asked(device))
    traffics = [step_traffic(shape, tokens, fmt) for tokens in context or [DEFAULT_CONTEXT]]
    documents: list[dict[str, Any]] = []
    for traffic in traffics:
        published = published_bytes(shape, traffic.context, fmt)
        rows = [(row, floor_of(traffic, published, row)) for row in devices]
        documents += [floor_document(row, result, traffic) for row, result in rows]
        if not as_json:
            held = held_bytes(shape, traffic.context, fmt)
            show(text.floor_view(rows, traffic, held), "")
        if flows and not as_json:
            show(text.flows_table(traffic), "")
    if as_json:
        print_json(documents[0] if len(documents) == 1 else documents)
