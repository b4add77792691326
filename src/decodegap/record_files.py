"""Records on disk: written once, atomically; read back whole or refused."""

from pathlib import Path

import msgspec

from decodegap.errors import BadRecord
from decodegap.files import write_once
from decodegap.record import SCHEMA_VERSION, Record


def write_record(record: Record, folder: Path) -> Path:
    """Write a record atomically under a name of its own; an existing file is never replaced.

    Raises:
        OutputFolder: the disk is full or the folder went away; nothing half-written stays.
    """
    trial = record.trial
    name = "-".join(
        (
            record.started_at.strftime("%Y%m%dT%H%M%S"),
            _slug(trial.shape.name),
            _slug(trial.runtime),
            f"ctx{trial.context}",
            record.id,
        )
    )
    return write_once(msgspec.json.format(msgspec.json.encode(record)), folder / f"{name}.json")


class _Header(msgspec.Struct):
    schema_version: int


def read_record(path: Path) -> Record:
    """Read one record.

    Raises:
        BadRecord: not a record, cut short, or written by a newer decodegap.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadRecord(f"cannot read {path} ({error.strerror or error})") from None
    try:
        header = msgspec.json.decode(data, type=_Header)
    except msgspec.ValidationError:
        raise BadRecord(f"{path} is not a decodegap record; remove it from the folder") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadRecord(f"{path} is truncated or not JSON; remove it and measure again") from None
    if header.schema_version < 1:
        raise BadRecord(f"{path} has schema {header.schema_version}, which never was; remove it")
    if header.schema_version > SCHEMA_VERSION:
        raise BadRecord(
            f"{path} has schema {header.schema_version}, newer than the {SCHEMA_VERSION} this "
            "decodegap reads; upgrade decodegap"
        )
    try:
        record = msgspec.json.decode(data, type=Record)
    except msgspec.ValidationError as error:
        raise BadRecord(f"{path} is not a valid record ({error}); remove it") from None
    if record.outcome == "ok" and not _times_are_positive(record):
        raise BadRecord(f"{path} has steps that took no time; it was edited: remove it")
    return record


def _times_are_positive(record: Record) -> bool:
    measured = record.measurement
    return measured is not None and all(s > 0 for s in measured.timings.get("wall", [0.0]))


def record_paths(folder: Path) -> list[Path]:
    """Record files below `folder`: all JSON but hidden files and `bandwidth.json`.

    Raises:
        BadRecord: no such folder.
    """
    if not folder.is_dir():
        raise BadRecord(f"no folder {folder}; give one that `decodegap measure --out` wrote")
    return sorted(
        path for path in folder.rglob("*.json") if not path.name.startswith((".", "bandwidth."))
    )


_MOST_NAMED = 3  # of files that are no records, where there is no record beside them


def read_folder(folder: Path) -> tuple[list[Record], list[BadRecord]]:
    """Every record below `folder`, and an error for each file that is none, or a copy of another:
    a trial counts once. Bandwidth probes that lie beside them are passed over.

    Raises:
        BadRecord: no such folder, or no record in it.
    """
    records: list[Record] = []
    unreadable: list[BadRecord] = []
    first: dict[str, Path] = {}
    for path in record_paths(folder):
        try:
            record = read_record(path)
        except BadRecord as error:
            unreadable.append(error)
            continue
        if record.id in first:
            copied = f"{path} is a copy of {first[record.id]}, which alone counts; remove one"
            unreadable.append(BadRecord(copied))
            continue
        first[record.id] = path
        records.append(record)
    if not records and len(unreadable) > _MOST_NAMED:
        raise BadRecord(
            f"none of the {len(unreadable)} JSON files in {folder} is a whole record; give a "
            "folder that `decodegap measure --out` wrote"
        )
    if not records and not unreadable:
        raise BadRecord(f"no records in {folder}; `decodegap measure --out {folder}` writes some")
    records.sort(key=lambda record: record.started_at)
    return records, unreadable


# Of the 255 bytes that a file's name may have, half are for the time, the context and the id.
_SLUG_LENGTH = 60


def _slug(text: str) -> str:
    plain = (char if (char.isascii() and char.isalnum()) or char in ".-_" else "_" for char in text)
    return "".join(plain)[:_SLUG_LENGTH]
