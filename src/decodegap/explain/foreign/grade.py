"""All figures of another tool's file, graded."""

from collections.abc import Iterable

import msgspec

from decodegap.explain.findings import Finding
from decodegap.explain.foreign.against_floor import Grade, grade_figure
from decodegap.explain.foreign.figure import ForeignFigure
from decodegap.explain.foreign.given import Given, is_another_model, settle
from decodegap.explain.foreign.remarks import findings_on_grades, findings_on_others
from decodegap.predict.resolve import resolve_model


class Grading(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a file and what is to be said of them."""

    grades: tuple[Grade, ...]
    findings: tuple[Finding, ...]

    @property
    def any_impossible(self) -> bool:
        return any(grade.impossible for grade in self.grades)


def grade_figures(figures: Iterable[ForeignFigure], given: Given) -> Grading:
    """Grade every figure of a file, but where several models are in it, those of the model given.

    Raises:
        BadForeignFile: something needed is neither in the file nor given.
        BadContext: the model cannot decode at the figure's context.
    """
    ours, others = _by_model(tuple(figures), given.model)
    grades = tuple(grade_figure(settle(figure, given)) for figure in ours)
    findings = (*findings_on_grades(grades), *findings_on_others(others))
    return Grading(grades=grades, findings=findings)


_Figures = tuple[ForeignFigure, ...]


def _by_model(figures: _Figures, model: str | None) -> tuple[_Figures, _Figures]:
    """Those of the model, and those of others where there are any of it."""
    if model is None:
        return figures, ()
    shape = resolve_model(model).shape
    ours = tuple(figure for figure in figures if not is_another_model(figure, shape))
    others = tuple(figure for figure in figures if is_another_model(figure, shape))
    return (ours, others) if ours else (figures, ())
