"""Grades of foreign figures, on the screen and as documents."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from decodegap.explain.findings import Finding
from decodegap.explain.foreign.against_floor import Grade
from decodegap.explain.foreign.grade import Grading
from decodegap.report.text import finding_text
from decodegap.units import format_bytes, format_hertz, format_seconds

# What a figure is of: a column where the figures of a file differ in it, else above them.
_SUBJECT: dict[str, Callable[[Grade], str]] = {
    "tool": lambda grade: " ".join(filter(None, (grade.figure.tool, grade.figure.version))),
    "model": lambda grade: grade.model,
    "format": lambda grade: grade.format or grade.figure.format_text or "",
    "device": lambda grade: grade.device.title,
    "batch": lambda grade: "?" if grade.figure.batch is None else str(grade.figure.batch),
}
_MOST_NAMED = 4
_COLUMNS = ("context", "step", "rate", "bytes", "floor", "R_floor")


def grading_view(grading: Grading) -> Group:
    """One line a figure, what each rests on, the findings."""
    agreed = {name: _agreed(grading, value) for name, value in _SUBJECT.items()}
    parts: list[RenderableType] = [Text(_heading(agreed)), Text(), _table(grading, agreed), Text()]
    parts += [Text(f"  {line}", style="dim") for line in _basis_lines(grading)]
    parts += [finding_text(_shown(finding, grading)) for finding in grading.findings]
    return Group(*parts)


def _agreed(grading: Grading, value: Callable[[Grade], str]) -> str | None:
    values = {value(grade) for grade in grading.grades}
    return values.pop() if len(values) == 1 else None


def _heading(agreed: dict[str, str | None]) -> str:
    return ", ".join(
        f"{name} {value}" if name == "batch" else value for name, value in agreed.items() if value
    )


def _table(grading: Grading, agreed: dict[str, str | None]) -> Table:
    differing = [name for name, value in agreed.items() if value is None]
    table = Table(box=None)
    for name in ("figure", *differing):
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for grade in grading.grades:
        subject = [_SUBJECT[name](grade) for name in differing]
        table.add_row(grade.figure.what, *subject, *_numbers(grade))
    return table


def _numbers(grade: Grade) -> list[str]:
    ratio = grade.r_floor
    most, least = "≤ " * grade.step_is_most, "≥ " * grade.floor_is_least
    return [
        str(grade.context),
        most + format_seconds(grade.step),
        ("≥ " if grade.step_is_most else "") + format_hertz(grade.step),
        least + format_bytes(grade.bytes),
        "–" if grade.floor is None else least + format_seconds(grade.floor),
        "–" if ratio is None else "≥ " * grade.r_floor_is_least + f"{ratio:.3f}",
    ]


def _basis_lines(grading: Grading) -> list[str]:
    """What the figures rest on, each line once; how it was counted with the figures it is true of,
    where others of the file were counted otherwise."""
    assumed = dict.fromkeys(line for grade in grading.grades for line in grade.figure.assumptions)
    names: dict[str, list[str]] = {}
    for grade in grading.grades:
        for line in _counting(grade):
            names.setdefault(line, []).append(grade.figure.what)
    every = len(grading.grades)
    counted = (
        line if len(of) == every else f"{', '.join(_some(of))}: {line}"
        for line, of in names.items()
    )
    return [*assumed, *counted]


def _some(names: Sequence[str]) -> tuple[str, ...]:
    if len(names) <= _MOST_NAMED:
        return tuple(names)
    shown = names[: _MOST_NAMED - 1]
    return (*shown, f"{len(names) - len(shown)} more")


def _counting(grade: Grade) -> list[str]:
    figure, num = grade.figure, len(grade.figure.samples)
    lines = [
        f"step = {_repetition(num)} ÷ {figure.num_steps} steps",
        f"bytes: {grade.bytes_basis}, at the mean context",
    ]
    return lines if grade.floor is None else [*lines, f"floor = bytes ÷ {grade.speed_text}"]


def _repetition(num: int) -> str:
    return {0: "mean of the repetitions", 1: "the one repetition"}.get(
        num, f"median of {num} repetitions"
    )


def _shown(finding: Finding, grading: Grading) -> Finding:
    """With few names where there are many."""
    every = tuple(grade.figure.what for grade in grading.grades)
    alike = len(every) > 1 and finding.cells == every
    cells = ("all figures",) if alike else _some(finding.cells)
    return msgspec.structs.replace(finding, cells=cells)


def grading_document(grading: Grading, file: str) -> dict[str, Any]:
    """The same for programs, in base units."""
    return {
        "file": file,
        "figures": [_document(grade) for grade in grading.grades],
        "findings": msgspec.to_builtins(grading.findings),
    }


def _document(grade: Grade) -> dict[str, Any]:
    figure = grade.figure
    return {
        "tool": figure.tool,
        "version": figure.version,
        "what": figure.what,
        "model": grade.model,
        "model_text": figure.model_text,
        "device": grade.device.name,
        "device_text": figure.device_text,
        "format": grade.format,
        "format_text": figure.format_text,
        "prompt_length": figure.prompt_length,
        "context": grade.context,
        "batch": figure.batch,
        "num_tokens": figure.num_tokens,
        "num_steps": figure.num_steps,
        "step_s": grade.step,
        "step_is_most": grade.step_is_most,
        "bytes": grade.bytes,
        "bytes_basis": grade.bytes_basis,
        "floor_s": {"exact": grade.floor, "reachable": grade.reachable_floor},
        "floor_is_least": grade.floor_is_least,
        "r_floor": grade.r_floor,
        "r_floor_is_least": grade.r_floor_is_least,
        "impossible": grade.impossible,
        "samples_s": list(figure.samples),
        "assumptions": list(figure.assumptions),
    }
