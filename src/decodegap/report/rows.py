"""Measured cells as rows: one a cell, the same columns for every format that is written.

Base units, named in each column. A cell without a time has a row with its outcome.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from decodegap.explain.result import device_of, group_by_run
from decodegap.explain.summary import Summary, key_of, summarise
from decodegap.grouping import grouped
from decodegap.record import Environment, Record


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of one run; the columns, in order. None where it has no time or nothing is known.

    arm: A or B of a comparison. outcome: `ok`, or how the cell's first trial ended if none has a
    time. num_trials: those that count; num_failed_trials: those that failed. process: how far one
    went, `trial` or `round`. bytes: what one step moves. r_floor: exact floor ÷ step.
    """

    run: str
    arm: str | None
    model: str
    device: str
    device_name: str | None
    runtime: str
    format: str
    weights: str
    context_tokens: int
    outcome: str
    num_trials: int
    num_failed_trials: int
    process: str
    num_warmup_steps: int
    num_timed_steps: int
    step_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    between_trial_cv: float | None = None
    bytes: int | None = None
    published_bytes: int | None = None
    achieved_bytes_per_s: float | None = None
    published_floor_s: float | None = None
    exact_floor_s: float | None = None
    reachable_floor_s: float | None = None
    r_published: float | None = None
    r_floor: float | None = None
    r_reachable: float | None = None
    top1_agreement: float | None = None
    kl_divergence_nats: float | None = None
    driver: str | None = None
    host_cpu: str | None = None
    torch_version: str | None = None
    transformers_version: str | None = None
    started_at: datetime


def export_rows(records: Sequence[Record]) -> list[Row]:
    """A row for each cell of each run, arms of a comparison apart, in the order measured.

    Raises:
        UnlikeRecords: one cell's trials come from different machines, versions or protocols.
    """
    return [
        _row(cell, run) for run in group_by_run(records).values() for cell in _by_cell(run).values()
    ]


def _by_cell(records: Iterable[Record]) -> Mapping[tuple[object, object], list[Record]]:
    return grouped(records, lambda record: (key_of(record), _arm_of(record)))


def _arm_of(record: Record) -> tuple[str, str] | None:
    arm = record.trial.arm
    return None if arm is None else (arm.comparison, arm.name)


def _row(records: Sequence[Record], run: Sequence[Record]) -> Row:
    """`run` says where a cell was tried that has no environment of its own: its worker died."""
    first, trial = records[0], records[0].trial
    placed = [record for record in (*records, *run) if record.environment is not None]
    device = device_of(placed)
    summary = summarise(records, device_of(records))
    timed = 0 if summary is None else len(summary.records)
    failed = [record for record in records if record.outcome != "ok"]
    steps = max(record.trial.num_steps for record in records)  # a trial that lists kernels has none
    return Row(
        run=trial.run,
        arm=None if trial.arm is None else trial.arm.name,
        model=trial.shape.name,
        device=device.name,
        runtime=trial.runtime,
        format=trial.format,
        weights=trial.weights,
        context_tokens=trial.context,
        outcome=first.outcome if summary is None else "ok",
        num_trials=timed,
        num_failed_trials=len(failed),
        process="trial" if trial.process is None else "round",
        num_warmup_steps=trial.num_warmup,
        num_timed_steps=steps,
        started_at=first.started_at,
        **_where(placed[0].environment if placed else None),
        **({} if summary is None else _figures(summary)),
    )


def _where(environment: Environment | None) -> dict[str, Any]:
    if environment is None:
        return {"device_name": None}
    return {
        "device_name": environment.device_name,
        "driver": environment.driver,
        "host_cpu": environment.host_cpu,
        "torch_version": environment.packages.get("torch"),
        "transformers_version": environment.packages.get("transformers"),
    }


def _figures(summary: Summary) -> dict[str, Any]:
    floor = summary.floor
    verdicts = [r.measurement.verdict for r in summary.records if r.measurement is not None]
    return {
        "step_s": summary.step,
        "p95_s": summary.p95,
        "p99_s": summary.p99,
        "between_trial_cv": summary.between_trial_cv,
        "bytes": floor.exact_bytes,
        "published_bytes": floor.published_bytes,
        "achieved_bytes_per_s": summary.achieved_bytes_per_second,
        "published_floor_s": floor.published,
        "exact_floor_s": floor.exact,
        "reachable_floor_s": floor.reachable,
        "r_published": summary.ratio(floor.published),
        "r_floor": summary.ratio(floor.exact),
        "r_reachable": summary.ratio(floor.reachable),
        "top1_agreement": min(verdict.top1_agreement for verdict in verdicts),
        "kl_divergence_nats": max(verdict.kl_divergence for verdict in verdicts),
    }
