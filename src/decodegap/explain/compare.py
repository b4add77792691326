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
    BadPrediction,
    PredictionOutcome,
    about_words,
    equivalence_bounds,
    outcome_of,
    parse_prediction,
    registered_hash,
)
from decodegap.explain.summary import (
    CellKey,
    coefficient_of_variation,
    conditions,
    key_of,
    refuse_unlike,
)
from decodegap.grouping import grouped
from decodegap.record import Record

ComparisonVerdict = Literal["faster", "slower", "no difference", "inconclusive"]

EXIT_CODES: dict[ComparisonVerdict, int] = {
    "faster": 0,
    "slower": 1,
    "no difference": 3,
    "inconclusive": 4,
}


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
    outcome: PredictionOutcome


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two arms, compared. `ratios` are of the pairs, in order; `interval` is None for fewer pairs
    than `LEAST_PAIRS`; `failures` are the records that left their pair without a ratio, and
    `num_split` the pairs that have none because two nodes ran them."""

    name: str
    device: str
    a: ArmTimes
    b: ArmTimes
    ratios: tuple[float, ...]
    interval: Interval | None
    margin: float
    verdict: ComparisonVerdict
    kernels: KernelIdentity
    prediction: Predicted | None
    failures: tuple[Record, ...]
    num_split: int = 0

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
    pairs, num_split = pairs_of(records)
    failures = dropped(records, pairs)
    if not pairs:
        raise NoComparison(_why_no_pair(records, failures, num_split))
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
        prediction=_predicted(pairs, interval),
        failures=tuple(failures),
        num_split=num_split,
    )


def comparisons_in(records: Sequence[Record]) -> dict[tuple[str, str, CellKey], list[Record]]:
    """Records that carry an arm, by (run, comparison, cell without its runtime)."""
    return grouped((record for record in records if record.trial.arm is not None), _compared)


def _compared(record: Record) -> tuple[str, str, CellKey]:
    assert record.trial.arm is not None, "only records of a comparison come here"
    cell = msgspec.structs.replace(key_of(record), runtime="")
    return record.trial.run, record.trial.arm.comparison, cell


def verdict_of(interval: Interval | None, margin: float) -> ComparisonVerdict:
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
    """About how many pairs would bring the interval inside the margin, or off 1, whichever takes
    fewer, if the ratio stays: its width shrinks with the square root of their number."""
    interval, num_pairs = comparison.interval, len(comparison.ratios)
    if interval is None:
        return LEAST_PAIRS
    least, most = equivalence_bounds(comparison.margin)
    ratio = comparison.ratio
    room = max(abs(ratio - 1), min(ratio - least, most - ratio))
    reach = max(interval.high - ratio, ratio - interval.low)
    return max(num_pairs + 1, math.ceil(num_pairs * (reach / room) ** 2))


def _predicted(pairs: Sequence[Pair], interval: Interval | None) -> Predicted | None:
    """What the records say was predicted, held against the interval; `altered` where they do not
    all say it, or the hash is not of it."""
    said = {
        (record.trial.arm.prediction, record.trial.arm.prediction_sha256)
        for pair in pairs
        for record in (pair.a, pair.b)
        if record.trial.arm is not None
    }
    text, sha256 = max(said, key=str)
    if text is None or sha256 is None:
        return None
    try:
        prediction = parse_prediction(text)
    except BadPrediction:
        return Predicted(text=text, sha256=sha256, outcome="altered")
    about = about_words(pairs[0].a.trial, pairs[0].b.trial)
    outcome: PredictionOutcome = "undecided"
    if len(said) > 1 or registered_hash(prediction, about) != sha256:
        outcome = "altered"
    elif interval is not None:
        outcome = outcome_of(prediction, interval.low, interval.high)
    return Predicted(text=prediction.text, sha256=sha256, outcome=outcome)


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


def _why_no_pair(records: Sequence[Record], failures: Sequence[Record], num_split: int) -> str:
    if num_split:
        return f"two nodes ran each of {num_split} pairs: run the comparison again, on one node"
    if not failures:
        return f"no pair is complete among {len(records)} trials; run the comparison to its end"
    first = failures[0]
    return (
        f"no pair has a time in both arms: {first.trial.runtime} ended {first.outcome} "
        f"({first.reason})"
    )
