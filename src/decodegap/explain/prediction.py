"""A prediction: what somebody says of a ratio before it is measured, and what became of it.

The ratio is always step of A ÷ step of B, so `ratio > 1.2` says that B is over 1.2 times as fast.
"""

import hashlib
import re
from typing import Literal

import msgspec

from decodegap.errors import DecodegapError
from decodegap.record import Trial

# `altered`: the records' claim is not the one that was registered.
PredictionOutcome = Literal["confirmed", "refuted", "undecided", "altered"]


class BadPrediction(DecodegapError):
    """A prediction, or a percentage in one, that does not parse."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """The open interval the ratio is said to lie in; None is no bound on that side. `text` is the
    canonical spelling: two that mean the same are spelled the same."""

    text: str
    low: float | None
    high: float | None


_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_BOUND = re.compile(rf"ratio\s*([<>])\s*{_NUMBER}", re.IGNORECASE)
_WITHIN = re.compile(rf"no\s+difference\s+within\s+(?:±\s*)?{_NUMBER}\s*%", re.IGNORECASE)
_SHARE = re.compile(rf"(?:±\s*)?{_NUMBER}\s*(%?)")


def parse_prediction(text: str) -> Prediction:
    """Read `ratio > 1.2`, `ratio < 0.9` or `no difference within 5 %`.

    Raises:
        BadPrediction: none of the three, or a bound no ratio can meet.
    """
    stripped = text.strip()
    if bound := _BOUND.fullmatch(stripped):
        return _bounded(bound[1], bound[2], text)
    if within := _WITHIN.fullmatch(stripped):
        percent = _canonical(within[1], text)
        low, high = equivalence_bounds(float(percent) / 100)
        return Prediction(text=f"no difference within {percent} %", low=low, high=high)
    raise BadPrediction(
        f"cannot read the prediction {text!r}; write `ratio > 1.2`, `ratio < 0.9` or "
        "`no difference within 5 %`"
    )


def _bounded(sign: str, figure: str, text: str) -> Prediction:
    value = _canonical(figure, text)
    if sign == ">":
        return Prediction(text=f"ratio > {value}", low=float(value), high=None)
    return Prediction(text=f"ratio < {value}", low=None, high=float(value))


# What a ratio can be said to be, and what the canonical spelling writes without an exponent.
_LEAST, _MOST = 1e-4, 1e6


def _canonical(figure: str, text: str) -> str:
    """A figure as it is spelled, hashed and read back."""
    if not _LEAST <= float(figure) <= _MOST:
        raise BadPrediction(f"{text!r}: the figure must lie between {_LEAST:g} and {_MOST:,.0f}")
    return f"{float(figure):.10g}"


def equivalence_bounds(margin: float) -> tuple[float, float]:
    """The ratios that differ from 1 by less than `margin`, whichever arm is called A."""
    return 1 / (1 + margin), 1 + margin


def parse_share(text: str, what: str = "a share") -> float:
    """`5%`, `5 %` or `0.05` as 0.05. `what` names it where it is refused.

    Raises:
        BadPrediction: not a share between 0 and 1.
    """
    matched = _SHARE.fullmatch(text.strip())
    share = float(matched[1]) / (100 if matched[2] else 1) if matched else 0.0
    if not 0 < share < 1:
        raise BadPrediction(f"{what}: {text!r} is not above 0 and below 100 %; write `5%`")
    return share


def about_words(a: Trial, b: Trial) -> str:
    """What the ratio of two arms is of, from a trial of each: the part of a prediction's hash that
    is not the claim."""
    return (
        f"{a.shape.name}, {a.format}, {a.weights} weights, seed {a.seed}, context {a.context}, "
        f"{a.num_steps} steps after {a.num_warmup}: step of {a.runtime} ÷ step of {b.runtime}"
    )


def registered_hash(prediction: Prediction, about: str) -> str:
    """What proves later that exactly this was said of exactly that: the sha256 of both."""
    return hashlib.sha256(f"{about}: {prediction.text}".encode()).hexdigest()


def outcome_of(prediction: Prediction, low: float, high: float) -> PredictionOutcome:
    """Hold a prediction against the interval [low, high] of the measured ratio: confirmed if all
    of it lies where it was said to, refuted if none does."""
    least = 0.0 if prediction.low is None else prediction.low
    most = float("inf") if prediction.high is None else prediction.high
    if least < low and high < most:
        return "confirmed"
    return "refuted" if high <= least or low >= most else "undecided"
