"""A study file: what is measured, what is left out, what is compared, what was predicted.

    name = "smoke"                     models, devices, runtimes, formats, contexts: the axes
    [protocol]                         how each trial is made
    [[exclude]]                        cells that are not measured, and why
    [[compare]]                        A/B pairs, each with a margin and perhaps a prediction

Unknown keys are errors. Names are checked when the study is planned, not here.
"""

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from decodegap.errors import DecodegapError, nearest
from decodegap.measure.trial import ProcessPer
from decodegap.record import Weights


class BadStudy(DecodegapError):
    """A study file that cannot be read or planned."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every table of the file: an unknown key is an error."""


class Protocol(_Table, frozen=True, kw_only=True):
    """How a trial is made; the reference protocol by default.

    process: with `round`, one process measures all cells of a model, device and format once, so
    that a cell's trials still come from processes of their own. Comparisons make a fresh process a
    trial, whatever is said here.
    """

    num_trials: int = 3
    num_warmup: int = 5
    num_steps: int = 30
    weights: Weights | None = None
    seed: int = 0
    timeout_seconds: float = 900.0
    probes: bool = True
    process: ProcessPer = "trial"


class Exclusion(_Table, frozen=True, kw_only=True):
    """Cells to leave out: those that match every axis given. An axis takes one value or a list."""

    reason: str
    model: str | tuple[str, ...] = ()
    device: str | tuple[str, ...] = ()
    runtime: str | tuple[str, ...] = ()
    format: str | tuple[str, ...] = ()
    context: int | tuple[int, ...] = ()


class ComparisonTable(_Table, frozen=True, kw_only=True):
    """One A/B comparison. An axis left out is the study's own."""

    name: str
    a: str
    b: str
    num_pairs: int = 10
    margin: str = "5%"
    predict: str | None = None
    models: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    formats: tuple[str, ...] | None = None
    contexts: tuple[int, ...] | None = None


class Study(_Table, frozen=True, kw_only=True):
    """A whole file. No `devices`: the device found where it runs."""

    name: str
    title: str = ""
    models: tuple[str, ...]
    devices: tuple[str, ...] = ()
    runtimes: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("bf16",)
    contexts: tuple[int, ...] = (2048,)
    protocol: Protocol = Protocol()
    exclude: tuple[Exclusion, ...] = ()
    compare: tuple[ComparisonTable, ...] = ()

    @property
    def sha256(self) -> str:
        """Of what the file means: comments and spacing do not count, predictions do."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def read_study(path: Path) -> Study:
    """Read a study file.

    Raises:
        BadStudy: no such file, not TOML, or a key or value that has no place in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadStudy(f"cannot read {path} ({reason}); give a study file") from None
    return parse_study(text, str(path))


def parse_study(text: str, where: str) -> Study:
    """As `read_study`, from text that came from `where`."""
    try:
        study = msgspec.toml.decode(text, type=Study)
    except msgspec.ValidationError as error:
        raise BadStudy(f"{where}: {error}{_known_keys(str(error))}") from None
    except msgspec.DecodeError as error:
        raise BadStudy(f"{where} is not TOML ({error})") from None
    _check_values(study, where)
    return study


_TABLES: dict[str, Any] = {
    "": Study,
    "$.protocol": Protocol,
    "$.exclude": Exclusion,
    "$.compare": ComparisonTable,
}


def _known_keys(message: str) -> str:
    """For an unknown key: the nearest ones of its table."""
    if "unknown field" not in message:
        return ""
    place = message.partition(" - at `")[2].rstrip("`").partition("[")[0]
    key = message.partition("unknown field `")[2].partition("`")[0]
    return f"; {nearest(key, _TABLES[place].__struct_fields__)}"


def _check_values(study: Study, where: str) -> None:
    protocol = study.protocol
    if min(protocol.num_trials, protocol.num_steps) < 1 or protocol.num_warmup < 0:
        raise BadStudy(f"{where}: num_trials and num_steps are at least 1, num_warmup at least 0")
    if protocol.timeout_seconds <= 0:
        raise BadStudy(f"{where}: timeout_seconds must be above 0")
    for axis in ("models", "devices", "runtimes", "formats", "contexts"):
        _refuse_twice(getattr(study, axis), f"{where}: {axis}")
    _refuse_twice([table.name for table in study.compare], f"{where}: compare names")
    for table in study.compare:
        if table.num_pairs < 1:
            raise BadStudy(f"{where}: compare {table.name!r}: num_pairs is at least 1")


def _refuse_twice(values: Any, what: str) -> None:
    for value in values:
        if list(values).count(value) > 1:
            raise BadStudy(f"{what} has {value!r} twice; leave one out")
