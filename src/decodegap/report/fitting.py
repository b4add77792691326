"""Tables as wide as the terminal: what matters least gives way first, and no figure is cut."""

from collections.abc import Iterator, Sequence

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

_ANY_WIDTH = 10_000
_WORDS_WIDTH = 34  # the least that words are given before figures give way to them


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`gives_way`: 0 never, else the larger the sooner, together with those of the same. Figures
    stand right and never wrap; words stand left and may."""

    name: str = ""
    is_words: bool = False
    is_dim: bool = False
    gives_way: int = 0


class FittingTable:
    """Rows under columns, of which as many are shown as there is room for."""

    def __init__(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], has_header: bool = True
    ) -> None:
        self._columns, self._rows, self._has_header = columns, rows, has_header

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        shown = list(range(len(self._columns)))
        anyhow = options.update(width=_ANY_WIDTH)
        while self._least_width(shown, console, anyhow) > options.max_width:
            soonest = max(self._columns[index].gives_way for index in shown)
            if not soonest:
                break
            shown = [index for index in shown if self._columns[index].gives_way != soonest]
        yield self._table(shown)
        named = [column.name for index, column in enumerate(self._columns) if index not in shown]
        if any(named):
            yield Text(f"  no room for: {', '.join(filter(None, named))}", style="dim")

    def _least_width(self, shown: Sequence[int], console: Console, options: ConsoleOptions) -> int:
        """Of figures unbroken and words on not too many lines."""
        return console.measure(self._table(shown, _WORDS_WIDTH), options=options).maximum

    def _table(self, shown: Sequence[int], words_width: int | None = None) -> Table:
        table = Table(box=None, show_header=self._has_header)
        for index in shown:
            column = self._columns[index]
            table.add_column(
                column.name,
                justify="left" if column.is_words else "right",
                no_wrap=not column.is_words,
                max_width=words_width if column.is_words else None,
                style="dim" if column.is_dim else None,
            )
        for row in self._rows:
            table.add_row(*(row[index] for index in shown))
        return table
