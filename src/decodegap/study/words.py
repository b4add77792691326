"""A study before it runs: what it will do and about how long that takes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from decodegap.measure.runtimes.registry import get_runtime
from decodegap.predict.catalogue import catalogue_devices
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import held_bytes
from decodegap.record import Record, Trial
from decodegap.study.folder import Stored
from decodegap.study.matrix import Planned, StudyPlan
from decodegap.study.run import Work, launched_together, settled
from decodegap.units import format_count

# For a trial none like which has run: a start of torch and transformers, weights made or read, what
# lies around the steps (1.6 to 2.8 s on an H200: listening to the host, verdict, profile), and each
# step (warm-up, timed, profiled, probed) at a fifth of what memory allows. Within a factor of
# two of what was seen on an H200 and a two-core host.
_START_SECONDS = 6.0
_AROUND_SECONDS = 2.0
_LOAD_BYTES_PER_SECOND = 1.5e9
_COMPILE_SECONDS = 40.0
_OTHER_STEPS = 20
_SHARE_OF_BANDWIDTH = 0.2
_CPU_BYTES_PER_SECOND = 20e9

_SHARING = "one a round of cells, loaded once; a last round lists kernels; comparisons one a trial"


def plan_words(plan: StudyPlan, work: Work, stored: Stored) -> str:
    """The matrix, the comparisons and their predictions, what is done, what is left."""
    study = plan.study
    lines = [f"study {study.name} ({plan.sha256[:12]}){': ' if study.title else ''}{study.title}"]
    if plan.num_cells:
        each = format_count(study.protocol.num_trials, "trial")
        lines.append(f"{format_count(plan.num_cells, 'cell')}, {each} each")
    lines += [_comparison_words(plan, table.name) for table in study.compare]
    if plan.num_excluded:
        reasons = "; ".join(exclusion.reason for exclusion in study.exclude)
        lines.append(f"excluded: {format_count(plan.num_excluded, 'cell')} ({reasons})")
    if plan.not_taken:
        pairs = {f"{cell.runtime} × {cell.format}" for cell in plan.not_taken}
        lines.append(f"not measured, the runtime does not take the format: {_list(pairs)}")
    each = "each a fresh process"
    if study.protocol.process == "round":
        num_processes = len(list(launched_together(plan.trials)))
        each = f"in {format_count(num_processes, 'process', 'processes')} ({_SHARING})"
    lines.append(f"{format_count(len(plan.trials), 'trial')}, {each}; {work.num_finished} finished")
    if work.elsewhere:
        devices = Counter(planned.device for planned in work.elsewhere)
        counted = ", ".join(f"{name} {count}" for name, count in devices.items())
        lines.append(f"for devices not here (run the same file there, or --ray): {counted}")
    if work.settled:
        trials = format_count(len(work.settled), "trial")
        lines.append(f"not tried again, their cells failed twice alike: {trials}")
    if stored.gone:
        lines.append(f"records deleted since: {len(stored.gone)}; their trials run again")
    if work.here:
        seconds = _seconds_to_go(work, stored)
        lines.append(
            f"to run here: {format_count(len(work.here), 'trial')}, about {duration(seconds)}"
        )
    return "\n".join(lines)


def plan_document(plan: StudyPlan, work: Work, stored: Stored) -> dict[str, Any]:
    """The same for programs: numbers of trials, and seconds."""
    return {
        "study": plan.study.name,
        "sha256": plan.sha256,
        "cells": plan.num_cells,
        "excluded_cells": plan.num_excluded,
        "trials": len(plan.trials),
        "finished": work.num_finished,
        "here": len(work.here),
        "elsewhere": dict(Counter(planned.device for planned in work.elsewhere)),
        "settled": len(work.settled),
        "records_gone": len(stored.gone),
        "about_s": _seconds_to_go(work, stored),
    }


def _seconds_to_go(work: Work, stored: Stored) -> float:
    return sum(
        estimate_seconds(one, stored.records, place)
        for together in launched_together(work.here)
        for place, one in enumerate(together)
    )


def _comparison_words(plan: StudyPlan, name: str) -> str:
    table = next(table for table in plan.study.compare if table.name == name)
    own = [one for one in plan.trials if _arm_name(one.trial) == name]
    num_cells = len({one.trial.run for one in own})
    said = "" if table.predict is None else f", predicted: {table.predict}"
    return (
        f"compare {name}: {table.a} against {table.b}, {format_count(table.num_pairs, 'pair')} in "
        f"{format_count(num_cells, 'cell')}{said}"
    )


def _arm_name(trial: Trial) -> str | None:
    return None if trial.arm is None else trial.arm.comparison


def estimate_seconds(planned: Planned, records: Iterable[Record], place: int = 0) -> float:
    """About how long a trial takes that its process has run so many before: as long as those of
    its model and runtime did, else by its bytes. Only the first in a process starts and loads."""
    trial = planned.trial
    alike = [
        record.seconds
        for record in records
        if record.trial.shape.name == trial.shape.name
        and record.trial.runtime == trial.runtime
        and record.wall_samples
        and (record.place_in_process == 0) == (place == 0)
    ]
    return median(alike) if alike else _guess_seconds(planned, place)


def _guess_seconds(planned: Planned, place: int) -> float:
    trial = planned.trial
    weights = held_bytes(trial.shape, trial.context, get_format(trial.format))
    row = catalogue_devices().get(planned.device)
    bandwidth = row.bandwidth_bytes_per_second if row is not None else None
    step = weights / (_SHARE_OF_BANDWIDTH * (bandwidth or _CPU_BYTES_PER_SECOND))
    num_steps = trial.num_warmup + trial.num_steps + _OTHER_STEPS
    compiling = _COMPILE_SECONDS if get_runtime(trial.runtime).name == "hf-compile" else 0.0
    starting = 0.0 if place else _START_SECONDS + weights / _LOAD_BYTES_PER_SECOND
    return starting + _AROUND_SECONDS + num_steps * step + compiling


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def progress(
    work: Sequence[Planned], before: Sequence[Record], fresh: Sequence[Record]
) -> tuple[str, int]:
    """The trial that comes next, and how many there will be in all. A cell that failed twice has no
    next one."""
    records = [*before, *fresh]
    done = {record.trial.identity for record in fresh}
    waiting = (one.trial for one in work if one.trial.identity not in done)
    left = [trial for trial in waiting if not settled(trial, records)]
    if not left:
        return "done", len(fresh)
    trial = left[0]
    arm = "" if trial.arm is None else f" {trial.arm.name}"
    words = f"{trial.shape.name}, {trial.runtime}{arm}, context {trial.context}"
    return words, len(fresh) + len(left)
