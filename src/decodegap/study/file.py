"""A study file: what is measured, what is left out, what is compared, what was predicted.

    name = "smoke"                     models, devices, runtimes, formats, contexts: the axes
    [protocol]                         how each trial is made
    [[exclude]]                        cells that are not measured, and why
    [[compare]]                        A/B pairs, each with a margin and perhaps a prediction

Unknown keys are errors. Names are checked when the study is planned, not here.
"""

import hashlib
import re
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from decodegap.errors import DecodegapError, nearest
from decodegap.measure.trial import ProcessPer, first_twice
from decodegap.record import MOST_SECONDS, MOST_TRIALS, Weights

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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


def study_text(path: Path) -> str:
    """What a study file says. To be read once: a pipe gives it once.

    Raises:
        BadStudy: no such file, or not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")  # some editors put a mark in front
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadStudy(f"cannot read {path} ({reason}); give a study file") from None


def parse_study(text: str, where: str) -> Study:
    """What the text of a study file means; `where` it came from.

    Raises:
        BadStudy: not TOML, or a key or value that has no place in it.
    """
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
    if not _NAME.fullmatch(study.name):
        raise BadStudy(
            f"{where}: name {study.name!r} names the folder of the records: letters, digits, '.', "
            "'_' and '-', the first a letter or a digit, and no more than 64"
        )
    protocol = study.protocol
    for what, value, least, most in (
        ("num_trials", protocol.num_trials, 1, MOST_TRIALS),
        ("num_steps", protocol.num_steps, 1, MOST_TRIALS),
        ("num_warmup", protocol.num_warmup, 0, MOST_TRIALS),
        ("seed", protocol.seed, 0, 2**63 - 1),
        ("timeout_seconds", protocol.timeout_seconds, 1, MOST_SECONDS),
    ):
        if not least <= value <= most:  # nor is it so of what is no number
            raise BadStudy(
                f"{where}: {what} {value} is not at least {least} and at most {most:.0f}"
            )
    refuse_twice([table.name for table in study.compare], f"{where}: compare names")
    for what, axes in axes_of(study, where):
        for axis in ("formats", "contexts"):
            refuse_twice(getattr(axes, axis) or (), f"{what}: {axis}")
    for table in study.compare:
        if not 1 <= table.num_pairs <= MOST_TRIALS:
            raise BadStudy(
                f"{where}: compare {table.name!r}: num_pairs is at least 1, at most {MOST_TRIALS}"
            )


def axes_of(study: Study, where: str) -> list[tuple[str, Study | ComparisonTable]]:
    """The tables that have axes, each with what an error calls it."""
    tables = [(f"{where}: compare {table.name!r}", table) for table in study.compare]
    return [(where, study), *tables]


def refuse_twice(
    values: Iterable[Any], what: str, meaning: Callable[[Any], Hashable] = lambda value: value
) -> None:
    """Raises BadStudy where two values mean the same, however they are spelled: what is in a study
    twice would be measured twice, and as trials of one cell."""
    same = first_twice(values, meaning)
    if same is not None:
        first, second = same
        spelled = "" if first == second else f", once as {second!r}"
        raise BadStudy(f"{what} has {first!r} twice{spelled}; leave one out")
