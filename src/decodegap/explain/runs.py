"""A folder of records read run by run: measured cells, or two arms against each other."""

from collections.abc import Iterable, Sequence

import msgspec

from decodegap.errors import DecodegapError, Unavailable
from decodegap.explain.compare import Comparison, NoComparison, compare, comparisons_in
from decodegap.explain.curve import curves_of, pooled
from decodegap.explain.findings import Cell, Finding
from decodegap.explain.growth import findings_on_curves
from decodegap.explain.result import Result, group_by_run, read_result
from decodegap.record import Record


class Runs(msgspec.Struct, frozen=True):
    """What the runs of a folder say, and an error for each that cannot be read."""

    read: tuple[Result | Comparison, ...]
    errors: tuple[DecodegapError, ...]


def read_runs(records: Sequence[Record]) -> Runs:
    """What each run says, in the order the runs are first met; last, a result without cells, if
    like cells of several runs make curves. A comparison of which no pair is complete, or which
    cannot be made here, is read as the cells it did measure.
    """
    runs: list[Result | Comparison] = []
    errors = []
    for name, run in group_by_run(records).items():
        try:
            runs += _read_run(run)
        except DecodegapError as error:
            errors.append(DecodegapError(f"run {name} is left out: {error}"))
    return Runs(read=(*runs, *_across(runs)), errors=tuple(errors))


def _across(runs: Sequence[Result | Comparison]) -> list[Result | Comparison]:
    cells = cells_of(runs)
    summaries = pooled(cell.summary for cell in cells)
    curves = tuple(curve for curve in curves_of(summaries) if len(curve.runs) > 1)
    findings = tuple(findings_on_curves(curves, cells))
    return [Result(cells=(), findings=findings, failures=(), curves=curves)] if curves else []


def cells_of(runs: Iterable[Result | Comparison]) -> list[Cell]:
    """The cells of all runs that are not comparisons."""
    return [cell for run in runs if isinstance(run, Result) for cell in run.cells]


def _read_run(records: Sequence[Record]) -> list[Result | Comparison]:
    cells = [record for record in records if record.trial.arm is None]
    found: list[Result | Comparison] = [read_result(cells)] if cells else []
    return found + [_read_arms(arms) for arms in comparisons_in(records).values()]


def _read_arms(records: Sequence[Record]) -> Result | Comparison:
    try:
        return compare(records)
    except NoComparison:
        return read_result(records)
    except Unavailable as error:  # scipy, which the core does without
        result = read_result(records)
        cells = tuple(cell.name for cell in result.cells)
        text = "the two arms of this comparison are shown and not compared"
        found = Finding(severity="warning", cells=cells, text=text, hint=str(error))
        return msgspec.structs.replace(result, findings=(*result.findings, found))
