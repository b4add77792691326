"""A comparison on the screen and as a document: both arms, the ratio, what it means."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from decodegap.explain.arms import KernelIdentity
from decodegap.explain.compare import ArmTimes, Comparison, pairs_needed
from decodegap.explain.prediction import PredictionOutcome, equivalence_bounds
from decodegap.units import format_seconds

_NAMES_SHOWN = 3
_OUTCOME_WORDS: dict[PredictionOutcome, str] = {
    "confirmed": "confirmed",
    "refuted": "refuted",
    "undecided": "undecided",
    "altered": "not what was registered: claim and hash do not belong together, or records differ",
}
_MOST_PAIRS_ADVISED = 200


def comparison_view(comparison: Comparison) -> Group:
    """The screen of `compare`."""
    parts: list[RenderableType] = [
        Text(_heading(comparison), style="bold"),
        _arms_table(comparison),
        Text(f"A ÷ B: {_ratio_words(comparison)}"),
        Text(verdict_sentence(comparison), style="bold"),
        *(Text(line) for line in _kernel_lines(comparison.kernels)),
        *(Text(line, style="yellow") for line in _failure_lines(comparison)),
    ]
    if comparison.prediction is not None:
        said = comparison.prediction
        text = f"predicted “{said.text}” ({said.sha256[:12]}): {_OUTCOME_WORDS[said.outcome]}"
        parts.append(Text(text, style="bold"))
    return Group(*parts)


def _heading(comparison: Comparison) -> str:
    key = comparison.a.key
    return (
        f"{key.model}, {key.format}, {key.weights} weights, context {key.context}, on "
        f"{comparison.device}"
    )


def _arms_table(comparison: Comparison) -> Table:
    table = Table(box=None)
    table.add_column("")
    table.add_column("runtime")
    for name in ("step", "trials", "between-trial CV"):
        table.add_column(name, justify="right")
    for name, arm in (("A", comparison.a), ("B", comparison.b)):
        table.add_row(name, *_arm_row(arm))
    return table


def _arm_row(arm: ArmTimes) -> list[str]:
    cv = arm.between_trial_cv
    num_trials = str(len(arm.trial_medians))
    return [
        arm.key.runtime,
        format_seconds(arm.step),
        num_trials,
        "" if cv is None else f"{cv:.1%}",
    ]


def _ratio_words(comparison: Comparison) -> str:
    words = f"{comparison.ratio:.3f}, the median of {len(comparison.ratios)} pairs' ratios"
    interval = comparison.interval
    if interval is None:
        return f"{words}; too few pairs for an interval"
    bounds = f"{interval.confidence:.0%} interval [{interval.low:.3f}, {interval.high:.3f}]"
    how = (
        "all ratios are equal" if interval.method == "constant" else f"{interval.method} bootstrap"
    )
    return f"{words}; {bounds} ({how} over pairs)"


def verdict_sentence(comparison: Comparison) -> str:
    """What the interval says, in a sentence that names the margin where it decided."""
    within = f"within ±{comparison.margin * 100:g} %"
    ratio = comparison.ratio
    if comparison.verdict == "faster":
        return f"B is faster: {ratio:.2f} times as fast as A"
    if comparison.verdict == "slower":
        return f"B is slower: its step is {1 / ratio:.2f} times as long as A's"
    if comparison.verdict == "no difference":
        return f"no difference {within}{_real_but_small(comparison)}"
    shown = f"neither a difference nor its absence {within} is shown"
    return f"inconclusive: {shown}; {_remedy(comparison)}"


def _remedy(comparison: Comparison) -> str:
    more = pairs_needed(comparison)
    if more > _MOST_PAIRS_ADVISED:
        return "the trials differ too much among themselves: close other work, or raise --steps"
    return f"about {more} pairs would tell, or a quieter machine"


def _real_but_small(comparison: Comparison) -> str:
    interval = comparison.interval
    if interval is None or interval.low <= 1 <= interval.high:
        return ""
    faster = "B" if interval.low > 1 else "A"
    return f" (though {faster} is the faster; a smaller --margin would count that)"


def _kernel_lines(kernels: KernelIdentity) -> list[str]:
    if kernels.answer == "not profiled":
        return ["kernels: not profiled, so what differs between the arms is not known"]
    if kernels.answer == "same":
        return ["kernels: both arms run the same, equally often: what differs is launching them"]
    if kernels.answer == "same in some pairs":
        counted = f"the same in {kernels.num_same} of {kernels.num_profiled} pairs"
        return [f"kernels: {counted}: the library chose anew in some processes"]
    return [
        "kernels: the arms do not run the same: the ratio is of kernels and launching together",
        *_names("more in A", kernels.only_a),
        *_names("more in B", kernels.only_b),
    ]


def _names(what: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    shown = ", ".join(name[:60] for name in names[:_NAMES_SHOWN])
    rest = len(names) - _NAMES_SHOWN
    return [f"  {what}: {shown}{f' and {rest} more' if rest > 0 else ''}"]


def _failure_lines(comparison: Comparison) -> list[str]:
    lines = [
        f"{record.trial.runtime}: {record.outcome}: {record.reason}; its pair is left out"
        for record in comparison.failures
    ]
    if comparison.num_split:
        lines.append(f"pairs left out because two nodes ran them: {comparison.num_split}")
    return lines


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The same values for programs; seconds and shares."""
    interval = comparison.interval
    said = comparison.prediction
    key = comparison.a.key
    return {
        "comparison": comparison.name,
        "model": key.model,
        "format": key.format,
        "weights": key.weights,
        "context": key.context,
        "device": comparison.device,
        "a": _arm_document(comparison.a),
        "b": _arm_document(comparison.b),
        "ratio": comparison.ratio,
        "pair_ratios": list(comparison.ratios),
        "interval": None
        if interval is None
        else {
            "low": interval.low,
            "high": interval.high,
            "confidence": interval.confidence,
            "method": interval.method,
        },
        "margin": comparison.margin,
        "no_difference_between": list(equivalence_bounds(comparison.margin)),
        "verdict": comparison.verdict,
        "kernels": {
            "answer": comparison.kernels.answer,
            "num_same": comparison.kernels.num_same,
            "num_profiled": comparison.kernels.num_profiled,
        },
        "prediction": None
        if said is None
        else {"text": said.text, "sha256": said.sha256, "outcome": said.outcome},
        "failures": [
            {"runtime": r.trial.runtime, "outcome": r.outcome, "reason": r.reason}
            for r in comparison.failures
        ],
        "pairs_on_two_nodes": comparison.num_split,
        "exit_code": comparison.exit_code,
    }


def _arm_document(arm: ArmTimes) -> dict[str, Any]:
    return {
        "runtime": arm.key.runtime,
        "step_s": arm.step,
        "trial_medians_s": list(arm.trial_medians),
        "between_trial_cv": arm.between_trial_cv,
    }
