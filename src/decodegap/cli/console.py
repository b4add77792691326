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


def watch(stored: Iterable[Any], total: int, doing: Callable[[int], str]) -> list[Any]:
    """Collect records behind a bar that moves between trials only: while a worker is timed, this
    process sleeps. `doing` names the trial that comes after so many."""
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
    records = []
    with Progress(*columns, console=console(to_error=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=total)
        progress.update(task, description=doing(0), refresh=True)
        for one in stored:
            records.append(one.record)
            total = max(total, len(records))
            description = doing(len(records))
            progress.update(task, advance=1, total=total, description=description, refresh=True)
    return records


def trials_done(done: int) -> str:
    return f"{done} trials done"
