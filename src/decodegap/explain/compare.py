"""Does B really beat A? Two arms of paired trials, one ratio, an interval and a verdict.

The ratio is step of A ÷ step of B, so above 1 B is the faster. A pair is a trial of each arm, run
next to each other; its ratio is of the two trial medians; the figure is the median of the pairs'
ratios, which one disturbed process cannot move.
"""

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from decodegap.errors import DecodegapError
from decodegap.explain.arms import KernelIdentity, Pair, dropped, kernel_identity, pairs_of
from decodegap.explain.interval import LEAST_PAIRS, Interval, ratio_interval
from decodegap.explain.prediction import (
    Outcome,
    equivalence_bounds,
    outcome_of,
    parse_prediction,
)
from decodegap.explain.summary import (
    CellKey,
    coefficient_of_variation,
    conditions,
    key_of,
    refuse_unlike,
)
from decodegap.record import Record

Verdict = Literal["faster", "slower", "no difference", "inconclusive"]

EXIT_CODES: dict[Verdict, int] = {
    "faster": 0,
    "slower": 1,
    "no difference": 3,
    "inconclusive": 4,
}

# A change of a twentieth is the least that alters what one deploys; the reference study's null,
# CUDA Graphs on an L4, was 1.028.
DEFAULT_MARGIN = 0.05


class NoComparison(DecodegapError):
    """Records that hold no pair with a time in both arms."""


class ArmTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One arm: its runtime, the median step of each of its pairs' trials, in the order of pairs."""

    key: CellKey
    trial_medians: tuple[float, ...]

    @property
    def step(self) -> float:
        return median(self.trial_medians)

    @property
    def between_trial_cv(self) -> float | None:
        return coefficient_of_variation(self.trial_medians)


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction that every record of the comparison carries, and what became of it."""

    text: str
    sha256: str
    outcome: Outcome


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms, compared. `ratios` are of the pairs, in order; `interval` is None for fewer pairs
    than `LEAST_PAIRS`; `failures` are the records that left their pair without a ratio."""

    name: str
    device: str
    a: ArmTimes
    b: ArmTimes
    ratios: tuple[float, ...]
    interval: Interval | None
    margin: float
    verdict: Verdict
    kernels: KernelIdentity
    prediction: Predicted | None
    failures: tuple[Record, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]


def compare(records: Sequence[Record]) -> Comparison:
    """Compare the two arms of one comparison, whose records all carry their arm.

    Raises:
        NoComparison: no pair has a time in both arms; the message says why.
        UnlikeRecords: the arms differ in more than the runtime.
    """
    pairs = pairs_of(records)
    failures = dropped(records, pairs)
    if not pairs:
        raise NoComparison(_why_no_pair(records, failures))
    _refuse_unlike(pairs)
    ratios = tuple(pair.ratio for pair in pairs)
    interval = ratio_interval(ratios)
    first = pairs[0].a.trial.arm
    assert first is not None
    return Comparison(
        name=first.comparison,
        device=_device_name(pairs[0].a),
        a=ArmTimes(key=key_of(pairs[0].a), trial_medians=tuple(pair.a_seconds for pair in pairs)),
        b=ArmTimes(key=key_of(pairs[0].b), trial_medians=tuple(pair.b_seconds for pair in pairs)),
        ratios=ratios,
        interval=interval,
        margin=first.margin,
        verdict=verdict_of(interval, first.margin),
        kernels=kernel_identity(pairs),
        prediction=_predicted(pairs[0].a, interval),
        failures=tuple(failures),
    )


def comparisons_in(records: Sequence[Record]) -> dict[tuple[str, str, CellKey], list[Record]]:
    """Records that carry an arm, by (run, comparison, cell without its runtime)."""
    groups: dict[tuple[str, str, CellKey], list[Record]] = {}
    for record in records:
        if record.trial.arm is not None:
            cell = msgspec.structs.replace(key_of(record), runtime="")
            groups.setdefault((record.trial.run, record.trial.arm.comparison, cell), []).append(
                record
            )
    return groups


def verdict_of(interval: Interval | None, margin: float) -> Verdict:
    """`no difference` for an interval inside the margin, be it wholly on one side of 1 or not;
    else `faster` or `slower` if it leaves 1 out; else `inconclusive`."""
    if interval is None:
        return "inconclusive"
    least, most = equivalence_bounds(margin)
    if least < interval.low and interval.high < most:
        return "no difference"
    if interval.low > 1:
        return "faster"
    return "slower" if interval.high < 1 else "inconclusive"


def pairs_needed(comparison: Comparison) -> int:
    """About how many pairs would bring the interval inside the margin, were the arms equal: its
    width shrinks with the square root of their number."""
    if comparison.interval is None:
        return LEAST_PAIRS
    least, most = equivalence_bounds(comparison.margin)
    shrink = comparison.interval.width / (most - least)
    return max(len(comparison.ratios), math.ceil(len(comparison.ratios) * shrink**2))


def _predicted(record: Record, interval: Interval | None) -> Predicted | None:
    arm = record.trial.arm
    assert arm is not None
    if arm.prediction is None or arm.prediction_sha256 is None:
        return None
    prediction = parse_prediction(arm.prediction)
    outcome: Outcome = "undecided"
    if interval is not None:
        outcome = outcome_of(prediction, interval.low, interval.high)
    return Predicted(text=prediction.text, sha256=arm.prediction_sha256, outcome=outcome)


def _refuse_unlike(pairs: Sequence[Pair]) -> None:
    """Each arm must be one cell under one protocol, and the arms alike but for the runtime."""
    refuse_unlike([pair.a for pair in pairs])
    refuse_unlike([pair.b for pair in pairs])
    refuse_unlike([_without_runtime(record) for record in (pairs[0].a, pairs[0].b)])


def _without_runtime(record: Record) -> Record:
    trial = msgspec.structs.replace(record.trial, runtime="")
    return msgspec.structs.replace(record, trial=trial)


def _device_name(record: Record) -> str:
    return str(conditions(record).get("device", record.trial.device))


def _why_no_pair(records: Sequence[Record], failures: Sequence[Record]) -> str:
    if not failures:
        return f"no pair is complete among {len(records)} trials; run the comparison to its end"
    first = failures[0]
    return (
        f"no pair has a time in both arms: {first.trial.runtime} ended {first.outcome} "
        f"({first.reason})"
    )
