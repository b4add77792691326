"""A folder of records read run by run: measured cells, or two arms against each other."""

from collections.abc import Sequence

from decodegap.explain.compare import Comparison, NoComparison, compare, comparisons_in
from decodegap.explain.result import Result, group_by_run, read_result
from decodegap.record import Record


def read_runs(records: Sequence[Record]) -> list[Result | Comparison]:
    """What each run says, in the order the runs are first met. A comparison of which no pair is
    complete is read as the cells it did measure.

    Raises:
        UnlikeRecords: trials that belong together come from different machines or versions.
    """
    return [read for run in group_by_run(records).values() for read in _read_run(run)]


def _read_run(records: Sequence[Record]) -> list[Result | Comparison]:
    cells = [record for record in records if record.trial.arm is None]
    found: list[Result | Comparison] = [read_result(cells)] if cells else []
    return found + [_read_arms(arms) for arms in comparisons_in(records).values()]


def _read_arms(records: Sequence[Record]) -> Result | Comparison:
    try:
        return compare(records)
    except NoComparison:
        return read_result(records)
