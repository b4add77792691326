"""One run: its trials in order, each in a fresh process, each record stored before the next."""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from decodegap.measure.parent import run_trial
from decodegap.measure.runtimes.registry import get_runtime, why_unavailable
from decodegap.record import Outcome, Record, Trial, new_id, write_record


class StoredRecord(msgspec.Struct, frozen=True):
    record: Record
    path: Path


def run_trials(trials: Iterable[Trial], folder: Path) -> Iterator[StoredRecord]:
    """Run and store, one at a time. Whatever stops the loop leaves every finished record behind.

    Raises:
        OutputFolder: a record could not be written; the ones before it are.
    """
    for trial in trials:
        record = run_one(trial)
        yield StoredRecord(record, write_record(record, folder))


def run_one(trial: Trial) -> Record:
    """The trial's record; a runtime that cannot run here costs no process."""
    reason = why_unavailable(get_runtime(trial.runtime), trial.device)
    return run_trial(trial) if reason is None else not_started(trial, "unavailable", reason)


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
