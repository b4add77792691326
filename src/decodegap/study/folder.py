"""The folder of one study: its file, its records, and who is writing to it.

study.toml       the file as it was when the study began; the folder is that study's for good
finished.jsonl   one line a finished trial: its identity, its record's file, that file's sha256
.lock            held by the one process that writes; freed by its end, however it ends
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from decodegap.errors import DecodegapError, OutputFolder
from decodegap.files import prepare_folder, write_once
from decodegap.record import Record
from decodegap.record_files import read_record, record_paths, write_record
from decodegap.study.file import Study, parse_study

_STUDY, _FINISHED, _LOCK = "study.toml", "finished.jsonl", ".lock"


class StudyFolder(DecodegapError):
    """A folder this study must not write to, or one whose records were touched."""


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `finished.jsonl`."""

    identity: str
    file: str
    sha256: str


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What the folder holds of its study. `gone` are trials whose records were deleted."""

    records: tuple[Record, ...]
    gone: tuple[Finished, ...]


@contextmanager
def held(folder: Path) -> Iterator[Path]:
    """The folder, made if need be, and nobody else's while inside.

    Raises:
        OutputFolder: it cannot be written.
        StudyFolder: another study is writing to it.
    """
    prepare_folder(folder)
    with _open_lock(folder / _LOCK) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise StudyFolder(
                f"{folder} is being written by another study ({lock.read().strip()}); wait for it "
                "to end or give another --out"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()}")
        lock.flush()
        yield folder


def _open_lock(path: Path) -> IO[str]:
    try:
        return path.open("a+")
    except OSError as error:
        reason = error.strerror or error
        raise StudyFolder(
            f"cannot open {path} ({reason}); remove it or give another --out"
        ) from None


def claim(folder: Path, study: Study, text: str) -> None:
    """Make the folder this study's, or see that it is already. Before the first trial: the file,
    predictions and all, lies there from then on.

    Raises:
        StudyFolder: it is another study's, or holds records of none.
    """
    if not refuse_other_study(folder, study):
        write_once(text.encode(), folder / _STUDY)


def refuse_other_study(folder: Path, study: Study) -> bool:
    """Whether the folder is this study's already; a new one is nobody's.

    Raises:
        StudyFolder: it is another study's, or holds records of none.
    """
    path = folder / _STUDY
    if not path.exists():
        if folder.is_dir() and record_paths(folder):
            raise StudyFolder(
                f"{folder} holds records of no study (no {_STUDY}); give another --out"
            )
        return False
    there = parse_study(_read_text(path), str(path))
    if there.sha256 != study.sha256:
        raise StudyFolder(
            f"{folder} belongs to study {there.name} ({there.sha256[:12]}), and this is "
            f"{study.name} ({study.sha256[:12]}): a file that changed is another study; give "
            "another --out"
        )
    return True


def read_stored(folder: Path) -> Stored:
    """The records of finished trials, held against the list of them, which is completed.

    Raises:
        BadRecord: a file that is not a record, or not a whole one.
        StudyFolder: a record was changed after it was written, or lies there twice.
    """
    stored, unlisted = _look(folder)
    for record, path in unlisted:  # killed between the record and its line
        _note(folder, record, path)
    return stored


def look(folder: Path) -> Stored:
    """As `read_stored`, of a folder that need not be there and is left as it is."""
    return _look(folder)[0] if folder.is_dir() else Stored(records=(), gone=())


def _look(folder: Path) -> tuple[Stored, list[tuple[Record, Path]]]:
    """What the folder holds, and the records that no line lists."""
    lines = _finished(folder)
    records: list[Record] = []
    unlisted: list[tuple[Record, Path]] = []
    first: dict[str, Path] = {}
    for path in record_paths(folder):
        line = lines.get(path.name)
        if line is not None and _sha256(path) != line.sha256:
            raise StudyFolder(
                f"{path} was changed after it was written; restore it, or move it away and its "
                "trial runs again"
            )
        record = read_record(path)
        other = first.setdefault(record.id, path)
        if other is not path:
            raise StudyFolder(f"{path} is a copy of {other}; move one out of {folder}")
        records.append(record)
        if line is None:
            unlisted.append((record, path))
    records.sort(key=lambda record: record.started_at)
    there = {record.trial.identity for record in records}
    gone = tuple(line for line in lines.values() if line.identity not in there)
    return Stored(records=tuple(records), gone=gone), unlisted


def store(record: Record, folder: Path) -> Path:
    """Write a record, then its line.

    Raises:
        OutputFolder: the disk is full or the folder went away; the records before are whole.
    """
    path = write_record(record, folder)
    _note(folder, record, path)
    return path


def _note(folder: Path, record: Record, path: Path) -> None:
    if record.trial.identity is None:
        raise StudyFolder(f"{path} is a record of no study; move it out of {folder}")
    line = Finished(identity=record.trial.identity, file=path.name, sha256=_sha256(path))
    _append(folder / _FINISHED, msgspec.json.encode(line).decode() + "\n")


def _append(path: Path, text: str) -> None:
    try:
        with path.open("ab+") as file:
            # A line that was cut short must not take this one in.
            if file.tell() and not _ends_a_line(file):
                file.write(b"\n")
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OutputFolder(
            f"cannot write {path} ({error.strerror or error}); free space or give another --out"
        ) from None


def _ends_a_line(file: IO[bytes]) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StudyFolder(
            f"cannot read {path} ({reason}); restore it or give another --out"
        ) from None


def _finished(folder: Path) -> dict[str, Finished]:
    """Lines by record file. One that was cut short by a kill is passed over: its record is found
    without it."""
    path = folder / _FINISHED
    lines: dict[str, Finished] = {}
    for text in _read_text(path).splitlines() if path.exists() else []:
        try:
            line = msgspec.json.decode(text, type=Finished)
        except msgspec.DecodeError:
            continue
        lines[line.file] = line
    return lines


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise StudyFolder(f"cannot read {path} ({error.strerror or error}); restore it") from None
