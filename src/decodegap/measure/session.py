"""One run: its trials in order, each record stored before the next trial."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from decodegap.errors import DoesNotFit
from decodegap.measure.memory import check_trial_fits
from decodegap.measure.parent import run_process
from decodegap.measure.runtimes.registry import get_runtime, why_unavailable
from decodegap.record import Outcome, Record, Trial, new_id
from decodegap.record_files import write_record


class StoredRecord(msgspec.Struct, frozen=True):
    record: Record
    path: Path


def run_trials(trials: Iterable[Trial], folder: Path) -> Iterator[StoredRecord]:
    """Run and store, one at a time. Whatever stops the loop leaves every finished record behind.

    Raises:
        OutputFolder: a record could not be written; the ones before it are.
    """
    for together in by_process(trials, lambda trial: trial):
        for record in run_together(together):
            yield StoredRecord(record, write_record(record, folder))


T = TypeVar("T")


def by_process(items: Iterable[T], trial_of: Callable[[T], Trial]) -> Iterable[list[T]]:
    """What holds trials that share a process, in the order of the first; one that shares none is
    alone."""
    groups: dict[object, list[T]] = {}
    for index, item in enumerate(items):
        trial = trial_of(item)
        groups.setdefault((trial.run, trial.process or index), []).append(item)
    return groups.values()


def run_together(trials: Sequence[Trial]) -> Iterator[Record]:
    """The records of trials that share a process; one that cannot run here, or does not fit, costs
    none."""
    able = []
    for trial in trials:
        refused = _refused(trial)
        if refused is None:
            able.append(trial)
        else:
            yield refused
    yield from run_process(able)


def _refused(trial: Trial) -> Record | None:
    """The record of a trial that is not worth a process; None of one that is."""
    reason = why_unavailable(get_runtime(trial.runtime), trial.device)
    if reason is not None:
        return not_started(trial, "unavailable", reason)
    try:
        check_trial_fits(trial)
    except DoesNotFit as error:
        return not_started(trial, "oom", f"not started: {error}")
    return None


def not_started(trial: Trial, outcome: Outcome, reason: str) -> Record:
    """The record of a trial whose end was known without a process."""
    return Record(
        id=new_id(),
        trial=trial,
        outcome=outcome,
        reason=reason,
        started_at=datetime.now(UTC),
        seconds=0.0,
        measurement=None,
        environment=None,
    )
