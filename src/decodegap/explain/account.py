"""The account: one step split by cause, closed by a residual that is printed.

Parts come from interventions, a step that differs in one respect, and from device-side busy time;
never from a sum over host-side traces. A part that an arm is missing for is not guessed: its time
stays in the residual and a note says which run would separate it.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from decodegap.explain.account_cpu import cpu_split
from decodegap.explain.account_engine import engine_split, is_engine
from decodegap.explain.account_gpu import gpu_split
from decodegap.explain.part import FLOOR, Part, Split
from decodegap.explain.summary import Summary


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A step's parts, the floor first. They and `residual` sum to `step`."""

    runtime: str
    step: float
    parts: tuple[Part, ...]
    residual: float
    residual_name: str
    notes: tuple[str, ...]


def account_for(
    summary: Summary,
    others: Mapping[str, Summary],
    untimed: Mapping[str, str] = MappingProxyType({}),
) -> Account | None:
    """Split the step of `summary`. `others` are the summaries of the same model, format and
    context by runtime, measured in the same run; `untimed` says how those ended that were tried and
    have no time. None where no reachable floor is known."""
    if summary.floor.reachable is None:
        return None
    split = _split(summary, others, untimed)
    floor = Part(FLOOR, summary.floor.reachable, "bytes ÷ bandwidth measured here")
    parts = (floor, *split.parts)
    return Account(
        runtime=summary.key.runtime,
        step=summary.step,
        parts=parts,
        residual=summary.step - sum(part.seconds for part in parts),
        residual_name=split.residual_name,
        notes=split.notes,
    )


def _split(summary: Summary, others: Mapping[str, Summary], untimed: Mapping[str, str]) -> Split:
    if summary.records[0].trial.device == "cpu":
        return cpu_split(summary)
    if is_engine(summary):
        return engine_split(summary)
    return gpu_split(summary, others, untimed)
