"""From what `decodegap compare` was asked to a plan, every refusal made before any trial."""

import msgspec

from decodegap.errors import Unavailable
from decodegap.explain.interval import CONFIDENCE, LEAST_PAIRS
from decodegap.explain.prediction import parse_prediction
from decodegap.measure.machine import local_device
from decodegap.measure.runtimes.registry import get_runtime, why_unavailable
from decodegap.measure.trial import Request, plan_trials
from decodegap.record import Trial
from decodegap.study.pairs import PairPlan


class PairRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What `decodegap compare` was asked beside the two arms of `base.runtimes`."""

    base: Request
    num_pairs: int
    max_pairs: int
    margin: float
    predict: str | None
    until_width: float | None


def plan_comparison(request: PairRequest) -> PairPlan:
    """The plan of a comparison on this machine.

    Raises:
        DecodegapError: as `plan_trials`, or a prediction that does not parse, or a runtime that
            cannot run here.
    """
    prediction = None if request.predict is None else parse_prediction(request.predict)
    a, b = plan_trials(request.base)
    for trial in (a, b):
        _refuse_unavailable(trial)
    return PairPlan(
        name=f"{a.runtime} against {b.runtime}",
        a=a,
        b=b,
        num_pairs=request.num_pairs,
        max_pairs=request.max_pairs,
        margin=request.margin,
        prediction=prediction,
        until_width=request.until_width,
    )


def comparison_words(plan: PairPlan) -> str:
    """What will be compared, and by what it will be judged."""
    trial, share = plan.a, f"{plan.margin * 100:g} %"
    lines = [
        f"{trial.shape.name}, {trial.format}, {trial.weights_words}, context {trial.context}, on "
        f"{local_device(trial.device).title}",
        f"A: {plan.a.runtime}    B: {plan.b.runtime}",
        f"{plan.num_pairs} pairs in the order A B, B A, …; each trial a fresh process: prefill, "
        f"{trial.num_warmup} warm-up steps, {trial.num_steps} timed",
        f"no difference if the {CONFIDENCE:.0%} interval of A ÷ B lies within ±{share} of 1",
    ]
    if plan.until_width is not None:
        lines.append(
            f"goes on until that interval is {plan.until_width * 100:g} % wide, up to "
            f"{plan.max_pairs} pairs"
        )
    if plan.num_pairs < LEAST_PAIRS and plan.until_width is None:
        lines.append(f"fewer than {LEAST_PAIRS} pairs give no interval, so no verdict")
    if plan.prediction is not None and plan.sha256 is not None:
        lines.append(f"predicted: {plan.prediction.text} (sha256 {plan.sha256[:12]})")
    return "\n".join(lines)


def _refuse_unavailable(trial: Trial) -> None:
    reason = why_unavailable(get_runtime(trial.runtime), trial.device)
    if reason is not None:
        raise Unavailable(f"{trial.runtime} {reason}")
