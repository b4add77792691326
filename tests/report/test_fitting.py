"""Tables in terminals of every width: figures whole, the least important columns gone, and told."""

import pytest
from rich.console import Console

from decodegap.report.fitting import Column, FittingTable

COLUMNS = [
    Column(name="runtime", is_words=True),
    Column(name="step"),
    Column(name="p99", gives_way=1),
    Column(name="p95", gives_way=2),
    Column(is_words=True, is_dim=True, gives_way=3),
]
ROW = ["hf-eager?sdpa=efficient", "91.7 ms", "103 ms", "99.9 ms", "median of trial medians"]


def shown(width: int) -> list[str]:
    console = Console(width=width, highlight=False)
    with console.capture() as captured:
        console.print(FittingTable(COLUMNS, [ROW]))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_with_room_everything_is_there():
    heading, row = shown(100)
    assert heading.split() == ["runtime", "step", "p99", "p95"]
    assert row.endswith("median of trial medians")


@pytest.mark.parametrize(
    "width, figures, note",
    [
        (70, ["91.7 ms", "103 ms", "99.9 ms"], None),
        (51, ["91.7 ms", "103 ms", "99.9 ms"], None),
        (50, ["91.7 ms", "103 ms"], "no room for: p95"),
        (42, ["91.7 ms", "103 ms"], "no room for: p95"),
        (41, ["91.7 ms"], "no room for: p99, p95"),
    ],
)
def test_columns_give_way_in_their_order_and_are_named(width, figures, note):
    heading, row, *notes = shown(width)
    assert max(map(len, (heading, row))) <= width
    assert "median" not in row
    for figure in ("91.7 ms", "103 ms", "99.9 ms"):
        assert (figure in row) == (figure in figures)
    assert [line.strip() for line in notes] == ([] if note is None else [note])


def test_figures_are_whole_and_words_wrap():
    columns = [Column(name="what", is_words=True), Column(name="step")]
    words = "attention above the bytes it has to move at the positions attended"
    console = Console(width=30)
    with console.capture() as captured:
        console.print(FittingTable(columns, [[words, "91.7 ms"], [words, "1.00 ms"]]))
    text = captured.get()
    assert "91.7 ms" in text
    assert "1.00 ms" in text
    assert "…" not in text
    assert " ".join(text.replace("91.7 ms", "").split()).count("attention above") == 2


def test_columns_of_one_rank_give_way_together():
    columns = [Column(name="part", is_words=True)]
    for context in ("16", "32", "64"):
        columns += [Column(name=context), Column(gives_way=1)]
    console = Console(width=40)
    with console.capture() as captured:
        row = ["attention above its bytes", "1.00 ms", "10%", "2.00 ms", "20%", "3.00 ms", "30%"]
        console.print(FittingTable(columns, [row]))
    assert "%" not in captured.get()
    assert "3.00 ms" in captured.get()
