"""Runs of either kind, on the screen and as documents."""

from typing import Any

from rich.console import Group

from decodegap.explain.compare import Comparison
from decodegap.explain.result import Result
from decodegap.report.comparison import comparison_document, comparison_view
from decodegap.report.machine import result_document
from decodegap.report.text import result_view, run_heading


def run_view(run: Result | Comparison) -> Group:
    """One run with its heading."""
    if isinstance(run, Comparison):
        return comparison_view(run)
    if not run.cells and not run.failures:  # curves of several runs, which name themselves
        return result_view(run)
    return Group(run_heading(run), result_view(run))


def run_document(run: Result | Comparison, folder: str) -> dict[str, Any]:
    """One run in base units."""
    if isinstance(run, Comparison):
        return comparison_document(run) | {"records": folder}
    return result_document(run, folder)
