"""A run read as a whole: each cell's summary and account, the findings, and what failed."""

from collections.abc import Mapping, Sequence

import msgspec

from decodegap.explain.account import Account, account_for
from decodegap.explain.attention_choice import findings_on_attention
from decodegap.explain.curve import Curve, curves_of
from decodegap.explain.findings import Cell, Finding, findings_on
from decodegap.explain.growth import findings_on_curves
from decodegap.explain.summary import CellKey, Summary, group_by_cell, summarise
from decodegap.grouping import grouped
from decodegap.predict.catalogue import catalogue_devices
from decodegap.predict.device import Device, derive_device, match_runtime_name, with_measured
from decodegap.record import Record


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Cells in the order measured; `failures` are the records without a time; `curves` are of the
    runtimes measured at several contexts."""

    cells: tuple[Cell, ...]
    findings: tuple[Finding, ...]
    failures: tuple[Record, ...]
    curves: tuple[Curve, ...] = ()


def read_result(records: Sequence[Record]) -> Result:
    """Interpret the records of one run.

    Raises:
        UnlikeRecords: one cell's trials come from different machines, versions or protocols.
    """
    trials = group_by_cell(records)
    read = {key: summarise(found, device_of(found)) for key, found in trials.items()}
    summaries = [summary for summary in read.values() if summary is not None]
    untimed = {key: trials[key][0].outcome for key, summary in read.items() if summary is None}
    cells = [
        Cell(summary=summary, account=_account(summary, summaries, untimed))
        for summary in summaries
    ]
    curves = curves_of(summaries)
    findings = [
        *findings_on(cells),
        *findings_on_attention(cells),
        *findings_on_curves(curves, cells),
    ]
    return Result(
        cells=tuple(cells),
        findings=tuple(sorted(findings, key=lambda finding: finding.severity != "advice")),
        failures=tuple(record for record in records if record.outcome != "ok"),
        curves=curves,
    )


def group_by_run(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each run, in the order the runs are first met."""
    return grouped(records, lambda record: record.trial.run)


def _account(
    summary: Summary, summaries: Sequence[Summary], untimed: Mapping[CellKey, str]
) -> Account | None:
    others = {
        other.key.runtime: other
        for other in summaries
        if other is not summary and _same_but_runtime(other.key, summary.key)
    }
    ended = {
        key.runtime: outcome
        for key, outcome in untimed.items()
        if _same_but_runtime(key, summary.key)
    }
    return account_for(summary, others, ended)


def _same_but_runtime(first: CellKey, second: CellKey) -> bool:
    return msgspec.structs.replace(first, runtime=second.runtime) == second


def device_of(records: Sequence[Record]) -> Device:
    """The device row of a cell's records, with the bandwidth the trials were held against."""
    for record in records:
        environment = record.environment
        if environment is not None:
            row = match_runtime_name(environment.device_name, catalogue_devices())
            device = row or derive_device(
                environment.device_name,
                environment.derived_bandwidth_bytes_per_second,
                environment.device_memory_bytes,
            )
            reachable = record.trial.reachable_bytes_per_second
            if reachable is None:
                return device
            return with_measured(device, reachable, f"run {record.trial.run}")
    return derive_device("unknown device", None, None)
