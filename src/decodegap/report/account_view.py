"""Accounts on the screen: one step with its bars, or a runtime's steps side by side by context."""

from collections.abc import Iterable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from decodegap.explain.account import Account
from decodegap.explain.findings import Cell
from decodegap.grouping import grouped
from decodegap.report.fitting import Column, FittingTable
from decodegap.units import format_seconds

_BAR_WIDTH = 32
_MOST_BESIDE = 4  # contexts in one table, beside what the parts rest on
_RESIDUAL_BASIS, _STEP_BASIS = "what is left", "median of trial medians"


def accounts_view(cells: Sequence[Cell]) -> list[RenderableType]:
    """The accounts of a run's cells, a runtime's together."""
    with_account = [cell for cell in cells if cell.account is not None]
    parts: list[RenderableType] = []
    for of_runtime in grouped(with_account, lambda cell: cell.summary.key.runtime).values():
        for beside in _chunks(sorted(of_runtime, key=_context)):
            accounts = {_context(cell): cell.account for cell in beside if cell.account}
            one = len(accounts) == 1
            parts.append(account_view(*_only(accounts)) if one else by_context_view(accounts))
            parts += [Text(f"  {note}", style="dim") for note in _notes_of_models(beside)]
            parts.append(Text())
    return parts


def _context(cell: Cell) -> int:
    return cell.summary.key.context


def _chunks(cells: Sequence[Cell]) -> list[Sequence[Cell]]:
    return [cells[start : start + _MOST_BESIDE] for start in range(0, len(cells), _MOST_BESIDE)]


def _only(accounts: Mapping[int, Account]) -> tuple[Account, int]:
    ((context, account),) = accounts.items()
    return account, context


def _notes_of_models(cells: Sequence[Cell]) -> list[str]:
    notes = {
        note: None
        for cell in cells
        for record in cell.summary.records
        if record.measurement is not None
        for note in record.measurement.notes
    }
    return list(notes)


def account_view(account: Account, context: int) -> Group:
    """The parts of a step, each with its share and a bar; the last lines prove that it closes."""
    heading = f"where the step of {account.runtime} goes, context {context}"
    rows = [
        [
            name,
            format_seconds(seconds),
            f"{seconds / account.step:.1%}",
            _bar(seconds, account),
            why,
        ]
        for name, (seconds, why) in _rows(account).items()
    ]
    rows.append(["step", format_seconds(account.step), "100.0%", "", _STEP_BASIS])
    bar, basis = Column(is_words=True, gives_way=1), Column(is_words=True, is_dim=True, gives_way=2)
    columns = [Column(is_words=True), Column(), Column(), bar, basis]
    table = FittingTable(columns, rows, has_header=False)
    notes = [Text(f"  {note}", style="dim") for note in account.notes]
    return Group(Text(heading, style="bold"), table, *notes)


def by_context_view(accounts: Mapping[int, Account]) -> Group:
    """One runtime's accounts, a column a context, each closing in the last line."""
    runtime = next(iter(accounts.values())).runtime
    columns = [Column(name="context", is_words=True)]
    for context in accounts:
        columns += [Column(name=str(context)), Column(is_dim=True, gives_way=1)]
    columns.append(Column(is_words=True, is_dim=True, gives_way=2))
    lines = []
    rows = {context: _rows(account) for context, account in accounts.items()}
    bases = {name: basis for of_one in rows.values() for name, (_, basis) in of_one.items()}
    for name in _last(bases, [account.residual_name for account in accounts.values()]):
        shown = [
            cell
            for context, account in accounts.items()
            for cell in _time_and_share(rows[context].get(name), account)
        ]
        lines.append([name, *shown, bases[name]])
    steps = [text for one in accounts.values() for text in (format_seconds(one.step), "100%")]
    lines.append(["step", *steps, _STEP_BASIS])
    table = FittingTable(columns, lines)
    heading = Text(f"where the step of {runtime} goes, by context", style="bold")
    return Group(heading, table, *(Text(f"  {note}", style="dim") for note in _notes(accounts)))


def _rows(account: Account) -> dict[str, tuple[float, str]]:
    """Seconds and basis of every part and of what is left, by name."""
    parts = {part.name: (part.seconds, part.basis) for part in account.parts}
    return parts | {account.residual_name: (account.residual, _RESIDUAL_BASIS)}


def _last(names: Mapping[str, str], residuals: Sequence[str]) -> list[str]:
    """All names, what is left behind the parts."""
    return [*(name for name in names if name not in residuals), *dict.fromkeys(residuals)]


def _time_and_share(row: tuple[float, str] | None, account: Account) -> tuple[str, str]:
    if row is None:
        return "", ""
    return format_seconds(row[0]), f"{row[0] / account.step:.0%}"


def _notes(accounts: Mapping[int, Account]) -> list[str]:
    """What is noted of all contexts once; of some, with those."""
    contexts = grouped(
        ((note, context) for context, account in accounts.items() for note in account.notes),
        lambda pair: pair[0],
    )
    return [
        note if len(pairs) == len(accounts) else f"at {_listed(c for _, c in pairs)}: {note}"
        for note, pairs in contexts.items()
    ]


def _listed(contexts: Iterable[int]) -> str:
    return ", ".join(map(str, contexts))


def _bar(seconds: float, account: Account) -> str:
    return "█" * round(max(0.0, seconds / account.step) * _BAR_WIDTH)
