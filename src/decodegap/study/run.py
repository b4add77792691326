"""Running a study's trials on this machine: what is left, in order, until it is done."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from decodegap.measure.bandwidth import reachable_bandwidth
from decodegap.measure.environment import package_versions
from decodegap.measure.machine import describe_host, list_gpus
from decodegap.measure.session import StoredRecord, by_process, run_together
from decodegap.measure.trial import held_against
from decodegap.record import Record, Trial
from decodegap.study.cells import name_here
from decodegap.study.folder import StudyFolder, store
from decodegap.study.matrix import Planned, StudyPlan

_SAME_FAILURES_TO_SETTLE = 2
# How they end says something of the moment, not of the cell: a resumed study may try them again.
PASSING_OUTCOMES = frozenset({"crash", "timeout"})


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a study still has to do here, in the order it will. `elsewhere` are for devices this
    machine has not; `settled` are of cells that failed alike before, and are not run."""

    here: tuple[Planned, ...]
    elsewhere: tuple[Planned, ...]
    settled: tuple[Planned, ...]
    num_finished: int


def devices_here() -> dict[str, str]:
    """Torch's name of each kind of device on this machine, by its catalogue name. Of several alike
    the first: trials run one at a time."""
    found = {"cpu": "cpu"}
    for index in range(len(list_gpus())):
        found.setdefault(name_here(f"cuda:{index}"), f"cuda:{index}")
    return found


def work_left(
    plan: StudyPlan, records: Sequence[Record], devices: dict[str, str], retry: bool = False
) -> Work:
    """Trials without a record. With `retry`, also those that crashed or ran out of time."""
    finished = {
        record.trial.identity
        for record in records
        if not (retry and record.outcome in PASSING_OUTCOMES)
    }
    left = [one for one in plan.trials if one.trial.identity not in finished]
    is_over = {one.trial.identity: settled(one.trial, records) for one in left}
    open_ones = [one for one in left if not is_over[one.trial.identity]]
    here = [one for one in open_ones if one.device in devices]
    return Work(
        here=tuple(one for together in launched_together(here) for one in together),
        elsewhere=tuple(one for one in open_ones if one.device not in devices),
        settled=tuple(one for one in left if is_over[one.trial.identity]),
        num_finished=len(plan.trials) - len(left),
    )


def refuse_others(plan: StudyPlan, records: Sequence[Record], with_versions: bool) -> None:
    """Whatever is in the way of going on from these records; `with_versions`: of this machine's.

    Raises:
        StudyFolder: models, or versions, are not those the study began with.
    """
    refuse_changed_models(plan, records)
    if with_versions:
        refuse_other_versions(records)


def refuse_other_versions(records: Sequence[Record]) -> None:
    """A study goes on only with the code it began with: trials of one cell would not pool.

    Raises:
        StudyFolder: records of this host CPU were made with other versions than are installed now.
    """
    now, cpu = package_versions(), describe_host().cpu
    for record in records:
        if record.environment is None or record.environment.host_cpu != cpu:
            continue
        made = record.environment.packages
        for name in sorted(made.keys() | now.keys()):
            if made.get(name) != now.get(name):
                raise StudyFolder(
                    f"record {record.id} was made with {name} {made.get(name)}, and "
                    f"{now.get(name)} is here now: trials of one cell must not differ in it; go "
                    "back to that, or move the older records out of the folder and their trials "
                    "run again"
                )


def refuse_changed_models(plan: StudyPlan, records: Sequence[Record]) -> None:
    """A study goes on only with the models it began with: what it measured of others would neither
    be found again nor pool.

    Raises:
        StudyFolder: a model's config.json is not what it was.
    """
    planned = {one.trial.identity for one in plan.trials}
    now = {_point(one.trial): one.trial for one in plan.trials}
    for record in records:
        trial = record.trial
        same = now.get(_point(trial))
        if same is None or trial.identity in planned:
            continue
        keys = trial.config.keys() | same.config.keys()
        changed = sorted(key for key in keys if trial.config.get(key) != same.config.get(key))
        if changed:
            raise StudyFolder(
                f"{trial.shape.name}: its config.json has changed ({', '.join(changed)}) since "
                f"record {record.id} was made; restore it or give another --out"
            )


def _point(trial: Trial) -> tuple[str, str, int]:
    return trial.run, trial.runtime, trial.context


def run_study(
    trials: Sequence[Planned],
    records: Sequence[Record],
    folder: Path,
    launch: Callable[[Sequence[Planned]], Iterator[Record]],
) -> Iterator[StoredRecord]:
    """Run and store, one at a time; those that share a process are launched together. A cell that
    has ended twice in the same way without a time is settled: its other trials are not run."""
    seen = list(records)
    for together in launched_together(trials):
        open_ones = [planned for planned in together if not settled(planned.trial, seen)]
        for record in launch(open_ones):
            seen.append(record)
            yield StoredRecord(record, store(record, folder))


def launched_together(trials: Sequence[Planned]) -> Iterable[list[Planned]]:
    """Trials by the process they share; most share none and are alone."""
    return by_process(trials, lambda planned: planned.trial)


def settled(trial: Trial, records: Sequence[Record]) -> bool:
    """Whether all trials of this cell, or of this arm, have failed alike, and more than once."""
    alike = [record for record in records if _cell(record.trial) == _cell(trial)]
    outcomes = {record.outcome for record in alike}
    same_failure = len(outcomes) == 1 and not outcomes & {"ok", *PASSING_OUTCOMES}
    return same_failure and len(alike) >= _SAME_FAILURES_TO_SETTLE


def _cell(trial: Trial) -> tuple[object, ...]:
    arm = None if trial.arm is None else trial.arm.name
    return trial.run, trial.runtime, trial.context, arm


def launch_here(together: Sequence[Planned], devices: dict[str, str]) -> Iterator[Record]:
    """Run trials that share a process on this machine's device of their kind."""
    trials = []
    for planned in together:
        torch_device = devices[planned.device]
        here = msgspec.structs.replace(planned.trial, device=torch_device)
        trials.append(held_against(here, reachable_bandwidth(torch_device).bytes_per_second))
    yield from run_together(trials)
