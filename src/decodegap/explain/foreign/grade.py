"""All figures of another tool's file, graded."""

from collections.abc import Iterable

import msgspec

from decodegap.explain.findings import Finding
from decodegap.explain.foreign.against_floor import Grade, grade_figure
from decodegap.explain.foreign.figure import ForeignFigure
from decodegap.explain.foreign.given import Given, settle
from decodegap.explain.foreign.remarks import findings_on_grades


class Grading(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a file and what is to be said of them."""

    grades: tuple[Grade, ...]
    findings: tuple[Finding, ...]

    @property
    def any_impossible(self) -> bool:
        return any(grade.impossible for grade in self.grades)


def grade_figures(figures: Iterable[ForeignFigure], given: Given) -> Grading:
    """Grade every figure of a file.

    Raises:
        BadForeignFile: something needed is neither in the file nor given.
        BadContext: the model cannot decode at the figure's context.
    """
    grades = tuple(grade_figure(settle(figure, given)) for figure in figures)
    return Grading(grades=grades, findings=tuple(findings_on_grades(grades)))
