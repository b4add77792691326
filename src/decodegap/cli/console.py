"""What the commands print with, and the bar behind which trials run."""

import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType

from decodegap.errors import DecodegapError, printable

_PIPE_WIDTH = 150


def console(to_error: bool = False) -> Console:
    stream = sys.stderr if to_error else sys.stdout
    # Names are shown as they are: no square bracket or colon of theirs is styling.
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=to_error, width=width, highlight=False, markup=False, emoji=False)


# Colours are ours (and harmless where they are not); every other control character comes from a
# file or a name and could move the cursor, retitle the window or hide a line.
_CONTROL = re.compile(r"(\x1b\[[0-9;]*m)|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class _Harmless:
    """A stream whose text is shown as it is, and does nothing to the terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_CONTROL.sub(lambda m: m[1] or printable(m[0]), text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def show(*parts: RenderableType) -> None:
    out = console()
    out.file = cast(TextIO, _Harmless(sys.stdout))
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


def tell(errors: Iterable[DecodegapError]) -> None:
    """Beside the answer: what is left out of it, a line each."""
    for error in errors:
        print(f"decodegap: {error}", file=sys.stderr)


def print_json(document: Any) -> None:
    print(json.dumps(document))


def watch(stored: Iterable[Any], look: Callable[[list[Any]], tuple[str, int]]) -> list[Any]:
    """Collect records behind a bar that moves between trials only: while a worker is timed, this
    process sleeps. `look` is shown the records so far, and says what comes next and how many there
    will be in all."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    records: list[Any] = []
    with Progress(*columns, console=console(to_error=True), auto_refresh=False) as progress:
        description, total = look(records)
        task = progress.add_task(description, total=total)
        progress.refresh()
        for one in stored:
            records.append(one.record)
            description, total = look(records)
            progress.update(task, advance=1, total=total, description=description, refresh=True)
    return records
