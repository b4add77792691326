"""What the commands print with, and the bar behind which trials run."""

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console, RenderableType

_PIPE_WIDTH = 150


def console(to_error: bool = False) -> Console:
    stream = sys.stderr if to_error else sys.stdout
    # Names are shown as they are: no square bracket or colon of theirs is styling.
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=to_error, width=width, highlight=False, markup=False, emoji=False)


def show(*parts: RenderableType) -> None:
    out = console()
    for part in parts:
        out.print(part, soft_wrap=isinstance(part, str))


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
