"""Results for programs: the same values as on the screen, in base units, as plain dicts."""

from typing import Any

import msgspec

from decodegap.explain.findings import Cell
from decodegap.explain.result import Result
from decodegap.predict.device import Device
from decodegap.predict.floor import Floor
from decodegap.predict.traffic import Traffic
from decodegap.report.curve import curve_document


def floor_document(device: Device, floor: Floor, traffic: Traffic) -> dict[str, Any]:
    """One floor: bytes and seconds."""
    return {
        "model": traffic.model,
        "device": device.name,
        "context": traffic.context,
        "format": traffic.format,
        "bytes": {"published": floor.published_bytes, "exact": floor.exact_bytes},
        "floor_s": floor_seconds(floor),
        "flows": msgspec.to_builtins(traffic.flows),
    }


def floor_seconds(floor: Floor) -> dict[str, float | None]:
    return {
        "published": floor.published,
        "exact": floor.exact,
        "reachable": floor.reachable,
    }


def result_document(result: Result, folder: str) -> dict[str, Any]:
    """A run: cells with statistics and accounts, length curves, failures, findings, the records'
    folder."""
    return {
        "cells": [_cell_document(cell) for cell in result.cells],
        "curves": [curve_document(curve) for curve in result.curves],
        "failures": [
            {
                "runtime": record.trial.runtime,
                "context": record.trial.context,
                "outcome": record.outcome,
                "reason": record.reason,
            }
            for record in result.failures
        ],
        "findings": msgspec.to_builtins(result.findings),
        "records": folder,
    }


def _cell_document(cell: Cell) -> dict[str, Any]:
    summary = cell.summary
    return {
        **msgspec.to_builtins(summary.key),
        "device": summary.device.name,
        "step_s": summary.step,
        "p95_s": summary.p95,
        "p99_s": summary.p99,
        "trial_medians_s": list(summary.trial_medians),
        "between_trial_cv": summary.between_trial_cv,
        "num_samples": summary.num_samples,
        "achieved_bytes_per_second": summary.achieved_bytes_per_second,
        "bytes": {
            "published": summary.floor.published_bytes,
            "exact": summary.floor.exact_bytes,
        },
        "floor_s": floor_seconds(summary.floor),
        "r_floor": {
            name: summary.ratio(seconds) for name, seconds in floor_seconds(summary.floor).items()
        },
        "account": msgspec.to_builtins(cell.account),
    }
