"""Files written whole or not at all, and the folder they go to."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from decodegap.errors import OutputFolder


def prepare_folder(folder: Path) -> Path:
    """Make `folder` and prove that it can be written, before anything is measured.

    Raises:
        OutputFolder: it cannot be made or written.
    """
    probe = folder / f".write-{token_hex(6)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"decodegap")
    except OSError as error:
        raise OutputFolder(
            f"cannot write to {folder} ({error.strerror or error}); give another with --out"
        ) from None
    finally:
        _remove(probe)
    return folder


def write_once(data: bytes, path: Path) -> Path:
    """Write a file whole or not at all, and never over another.

    Raises:
        OutputFolder: it could not be written.
    """
    return _write_whole(data, path, os.link, "free space or give another --out")


def write_over(data: bytes, path: Path) -> Path:
    """Write a file whole or not at all, in place of what may be there; its folder is made.

    Raises:
        OutputFolder: it could not be written.
    """
    remedy = "free space or make its folder writable"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(path, error, remedy) from None
    return _write_whole(data, path, os.replace, remedy)


def _write_whole(data: bytes, path: Path, put: Callable[[Path, Path], None], remedy: str) -> Path:
    partial = path.with_name(f".{path.name}.{token_hex(6)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        put(partial, path)
    except OSError as error:
        raise _cannot_write(path, error, remedy) from None
    finally:
        _remove(partial)
    return path


def _remove(path: Path) -> None:
    """Tidy up, whatever stood in the way of writing; that is told by its own error."""
    with suppress(OSError):
        path.unlink()


def _cannot_write(path: Path, error: OSError, remedy: str) -> OutputFolder:
    return OutputFolder(f"cannot write {path} ({error.strerror or error}); {remedy}")
