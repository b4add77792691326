"""The points of a study's matrix, and which of them an exclusion leaves out."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import msgspec

from decodegap.measure.machine import local_device
from decodegap.measure.runtimes.registry import parse_runtime
from decodegap.predict.catalogue import catalogue_devices
from decodegap.predict.device import find_device
from decodegap.predict.formats import get_format
from decodegap.study.file import BadStudy, Exclusion, Study


class PlannedCell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the matrix. `device` is a catalogue name, or `cpu`."""

    model: str
    device: str
    runtime: str
    format: str
    context: int


def device_name(name: str) -> str:
    """The catalogue's name of a device, whatever it was called.

    Raises:
        UnknownDevice: with the nearest names.
    """
    return "cpu" if name == "cpu" else find_device(name, catalogue_devices()).name


def name_here(torch_device: str) -> str:
    return "cpu" if torch_device == "cpu" else local_device(torch_device).name


def cells_of(*axes: Sequence[Any]) -> list[PlannedCell]:
    """Every combination of models, devices, runtimes, formats and contexts."""
    models, devices, runtimes, formats, contexts = axes
    texts = [parse_runtime(runtime).text for runtime in runtimes]
    return [
        PlannedCell(model=model, device=device, runtime=runtime, format=fmt, context=context)
        for model, device, fmt, context, runtime in product(
            models, devices, formats, contexts, texts
        )
    ]


def takes_format(cell: PlannedCell) -> bool:
    """Whether the cell's runtime can have its weights stored so."""
    return get_format(cell.format).name in parse_runtime(cell.runtime).entry.formats


class Excluded:
    """An exclusion that cells can be held against."""

    def __init__(self, table: Exclusion, index: int) -> None:
        self.name = f"exclude {index} ({table.reason})"
        given = {key: _as_tuple(getattr(table, key)) for key in PlannedCell.__struct_fields__}
        self.axes = {key: values for key, values in given.items() if values}
        if "device" in self.axes:
            self.axes["device"] = tuple(device_name(name) for name in self.axes["device"])
        if "runtime" in self.axes:
            self.axes["runtime"] = tuple(parse_runtime(text).text for text in self.axes["runtime"])

    def matches(self, cell: PlannedCell) -> bool:
        return all(getattr(cell, key) in values for key, values in self.axes.items())


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def check_exclusions(
    exclusions: Sequence[Excluded], cells: list[PlannedCell], study: Study
) -> None:
    """Each must leave out at least one cell that is there and that no earlier one leaves out."""
    left = cells
    for one in exclusions:
        if not one.axes:
            raise BadStudy(f"study {study.name}: {one.name} names no axis; it would exclude all")
        remaining = [cell for cell in left if not one.matches(cell)]
        if len(remaining) == len(left):
            already = any(one.matches(cell) for cell in cells)
            why = "earlier ones do so already" if already else "no cell is like that"
            raise BadStudy(f"study {study.name}: {one.name} excludes nothing: {why}; remove it")
        left = remaining
