"""An A/B comparison as trials: which runs when, what was said before, when it is enough."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from decodegap.explain.arms import pairs_of
from decodegap.explain.interval import LEAST_PAIRS, ratio_interval
from decodegap.explain.prediction import Prediction, about_words, registered_hash
from decodegap.files import write_once
from decodegap.measure.session import StoredRecord
from decodegap.measure.trial import held_against
from decodegap.record import Arm, Record, Trial

ArmName = Literal["A", "B"]

_FAILURES_TO_STOP = 2


class PairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison to run. `a` and `b` are a trial of each arm, without its place in the order.

    until_width: go on after `num_pairs` until the interval is no wider than this share of the
    ratio, or `max_pairs` are there.
    """

    name: str
    a: Trial
    b: Trial
    num_pairs: int
    max_pairs: int
    margin: float
    prediction: Prediction | None = None
    until_width: float | None = None

    @property
    def about(self) -> str:
        return about_words(self.a, self.b)

    def held_against(self, bytes_per_second: float) -> "PairPlan":
        """The plan with the bandwidth that no step of it may beat."""
        a, b = (held_against(trial, bytes_per_second) for trial in (self.a, self.b))
        return msgspec.structs.replace(self, a=a, b=b)

    @property
    def sha256(self) -> str | None:
        return None if self.prediction is None else registered_hash(self.prediction, self.about)


def pair_trials(plan: PairPlan, pairs: Sequence[int]) -> list[Trial]:
    """The trials of some pairs in the order they run: A B, B A, A B, …, so that a steady drift of
    the machine favours neither arm."""
    return [
        _placed(plan, name, pair, order)
        for pair in pairs
        for order, name in enumerate(_order_of(pair), start=2 * pair)
    ]


def _order_of(pair: int) -> tuple[ArmName, ArmName]:
    return ("A", "B") if pair % 2 == 0 else ("B", "A")


def _placed(plan: PairPlan, name: ArmName, pair: int, order: int) -> Trial:
    arm = Arm(
        comparison=plan.name,
        name=name,
        pair=pair,
        margin=plan.margin,
        prediction=None if plan.prediction is None else plan.prediction.text,
        prediction_sha256=plan.sha256,
    )
    trial = plan.a if name == "A" else plan.b
    return msgspec.structs.replace(trial, order=order, arm=arm)


def run_pairs(
    plan: PairPlan, run: Callable[[Sequence[Trial]], Iterator[StoredRecord]]
) -> Iterator[StoredRecord]:
    """Run the plan's pairs, and two more at a time while the interval is too wide. Ends early when
    an arm has failed twice and never succeeded: it would not the third time."""
    records: list[Record] = []
    pairs = range(plan.num_pairs)
    while pairs:
        for stored in run(pair_trials(plan, pairs)):
            records.append(stored.record)
            yield stored
            if hopeless(records):
                return
        pairs = range(pairs.stop, next_stop(plan, pairs.stop, records))


def next_stop(plan: PairPlan, num_pairs: int, records: Sequence[Record]) -> int:
    """How many pairs to have next; as many as there are if that is enough.

    Stopping looks at the interval's width and never at where it lies, which keeps its level: of 400
    simulated A/A studies that grew from 10 pairs until 2 % wide, 4.5 % missed 1.
    """
    if plan.until_width is None or num_pairs >= plan.max_pairs:
        return num_pairs
    pairs, _ = pairs_of(records)
    ratios = [pair.ratio for pair in pairs]
    interval = ratio_interval(ratios)
    if interval is None:
        return min(plan.max_pairs, max(num_pairs + 2, LEAST_PAIRS))
    middle = (interval.low + interval.high) / 2
    enough = interval.width <= plan.until_width * middle
    return num_pairs if enough else min(plan.max_pairs, num_pairs + 2)


def hopeless(records: Sequence[Record]) -> bool:
    """Whether one arm has failed twice and has no time."""
    for name in ("A", "B"):
        own = [r for r in records if r.trial.arm is not None and r.trial.arm.name == name]
        failed = [record for record in own if not record.wall_samples]
        if len(failed) == len(own) >= _FAILURES_TO_STOP:
            return True
    return False


def register(plan: PairPlan, folder: Path) -> Path | None:
    """Write the prediction down before the first trial; None where nothing is predicted.

    Raises:
        OutputFolder: it could not be written.
    """
    if plan.prediction is None:
        return None
    lines = (
        "# Written before the first trial; every record of the run carries the hash,",
        "# which is the sha256 of `ABOUT: CLAIM`.",
        f"run = {_quoted(plan.a.run)}",
        f"about = {_quoted(plan.about)}",
        f"claim = {_quoted(plan.prediction.text)}",
        f"sha256 = {_quoted(str(plan.sha256))}",
        f"registered_at = {datetime.now(UTC).isoformat(timespec='seconds')}",
    )
    data = ("\n".join(lines) + "\n").encode()
    return write_once(data, folder / f"prediction-{plan.a.run}.toml")


def _quoted(text: str) -> str:
    """A TOML string: JSON's, whose escapes are TOML's too, but for the one that JSON leaves out."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
