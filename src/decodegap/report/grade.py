"""Grades of foreign figures, on the screen and as documents."""

from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from decodegap.explain.foreign.against_floor import Grade
from decodegap.explain.foreign.grade import Grading
from decodegap.report.text import finding_text
from decodegap.units import format_bytes, format_hertz, format_seconds

_COLUMNS = ("context", "batch", "step", "rate", "floor", "R_floor")


def grading_view(grading: Grading) -> Group:
    """One line a figure, what each rests on, the findings."""
    table = Table(box=None)
    for name in ("figure", "model", "format", "device"):
        table.add_column(name)
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for grade in grading.grades:
        table.add_row(*_row(grade))
    parts: list[RenderableType] = [table, Text()]
    parts += [Text(f"  {line}", style="dim") for line in _basis_lines(grading)]
    parts += [finding_text(finding) for finding in grading.findings]
    return Group(*parts)


def _row(grade: Grade) -> list[str]:
    figure, ratio = grade.figure, grade.r_floor
    most, least = "≤ " * grade.step_is_most, "≥ " * grade.floor_is_least
    return [
        figure.name,
        grade.model,
        grade.format or figure.format_text or "",
        grade.device.title,
        str(grade.context),
        "?" if figure.batch is None else str(figure.batch),
        most + format_seconds(grade.step),
        ("≥ " if grade.step_is_most else "") + format_hertz(grade.step),
        "–" if grade.floor is None else least + format_seconds(grade.floor),
        "–" if ratio is None else "≥ " * grade.r_floor_is_least + f"{ratio:.3f}",
    ]


def _basis_lines(grading: Grading) -> list[str]:
    """What the figures rest on, each line once."""
    lines: dict[str, None] = {}
    for grade in grading.grades:
        lines |= dict.fromkeys([*grade.figure.assumptions, *_counting(grade)])
    return list(lines)


def _counting(grade: Grade) -> list[str]:
    figure = grade.figure
    how = "median" if figure.samples else "mean"
    repetitions = f"{len(figure.samples)} repetitions" if figure.samples else "the repetitions"
    return [
        f"{figure.name}: step = {how} of {repetitions} ÷ {figure.num_steps} steps",
        f"{figure.name}: floor = {format_bytes(grade.bytes)} ({grade.bytes_basis}) at the mean "
        f"context, {grade.context}",
    ]


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
