"""The facts that ship with decodegap, read when asked for: models and devices, each sourced."""

import tomllib
from collections.abc import Sequence
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from decodegap.predict.device import Device, find_device
from decodegap.predict.hf_config import from_hf
from decodegap.predict.model import ModelShape


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of `facts/models.toml`: the fields of the model's own config.json that count."""

    title: str
    hf_id: str
    source: str
    checked: date
    config: dict[str, Any]
    note: str = ""


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("decodegap") / "facts" / name).read_text(encoding="utf-8"))


@cache
def catalogue_models() -> dict[str, CatalogueModel]:
    """Every catalogue model by its short name, in the file's order."""
    rows = _read("models.toml")
    for row in rows.values():
        # TOML has no null, and "no window" must be said: some config classes default to one.
        row["config"] = {"sliding_window": None, **row["config"]}
    return msgspec.convert(rows, dict[str, CatalogueModel])


@cache
def catalogue_devices() -> dict[str, Device]:
    """Every catalogue device by its short name, in the file's order."""
    rows = {name: {"name": name, **row} for name, row in _read("devices.toml").items()}
    return msgspec.convert(rows, dict[str, Device])


def devices_asked(names: Sequence[str] | None) -> list[Device]:
    """The rows of the devices named; with none, of the whole catalogue.

    Raises:
        UnknownDevice: with the nearest names.
    """
    rows = catalogue_devices()
    return [find_device(name, rows) for name in names] if names else list(rows.values())


def catalogue_shape(name: str) -> ModelShape:
    """The shape of the catalogue model called `name`."""
    return from_hf(catalogue_models()[name].config, name)
