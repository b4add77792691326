"""The interval of a median ratio of few pairs, at a level it keeps.

The interval is a BCa bootstrap over pairs, at a level raised for small samples: a bootstrap of n
values acts as if a normal distribution stood where Student's t on n − 1 degrees belongs, and as if
the sample's spread were the population's; the raised level undoes both. Share of 1,000 simulated
A/A studies (trial CV 1 %, drift 3 % over the run, 8 % of the trials 5 to 30 % late, A B B A) whose
95 % interval misses 1, and the interval's median width, with 10 pairs:

    median of ratios,  BCa at the raised level    3.8 %   width 0.035   (this module)
    median of ratios,  plain BCa                  6.9 %   width 0.028
    geometric mean,    BCa at the raised level   14.9 %   width 0.098
    geometric mean,    plain BCa                 22.3 %   width 0.078
    geometric mean,    Student's t                1.4 %   width 0.087
"""

import math
import warnings
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import msgspec

from decodegap.errors import Unavailable

CONFIDENCE = 0.95
# Of 5 values, even the span from least to greatest holds their median in only 94 % of samples.
LEAST_PAIRS = 6

_NUM_RESAMPLES = 9999
_SEED = 0


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Where the ratio lies, at `confidence`. `method`: `BCa`; `percentile` where BCa has no value
    (many equal ratios); `constant` where all are equal."""

    low: float
    high: float
    confidence: float
    method: str

    @property
    def width(self) -> float:
        return self.high - self.low


def ratio_interval(ratios: Sequence[float]) -> Interval | None:
    """The interval of the median ratio; None for fewer than `LEAST_PAIRS`.

    Computed on logarithms, so that it is the reciprocal when the arms change places.

    Raises:
        Unavailable: scipy is not installed.
    """
    if len(ratios) < LEAST_PAIRS:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    if max(logs) == min(logs):
        return Interval(low=ratios[0], high=ratios[0], confidence=CONFIDENCE, method="constant")
    for method in ("BCa", "percentile"):
        low, high = _bootstrap(logs, method)
        if not math.isnan(low + high):
            break
    return Interval(low=math.exp(low), high=math.exp(high), confidence=CONFIDENCE, method=method)


def _bootstrap(values: Sequence[float], method: str) -> tuple[float, float]:
    """The interval of the median of `values`. NaN where the method has no value."""
    try:
        import numpy
        from scipy import stats
    except ImportError:
        raise Unavailable("comparing needs scipy: pip install 'decodegap[measure]'") from None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of degenerate data, which the NaN already tells
        found: Any = stats.bootstrap(
            (values,),
            numpy.median,
            n_resamples=_NUM_RESAMPLES,
            confidence_level=raised_level(len(values), CONFIDENCE),
            method=method,
            rng=numpy.random.default_rng(_SEED),
        )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def raised_level(num_values: int, confidence: float) -> float:
    """The level at which a bootstrap of so few values reaches `confidence`: the normal quantile is
    replaced by t · √(n ÷ (n − 1))."""
    from scipy.stats import t

    quantile = float(t.ppf((1 + confidence) / 2, num_values - 1))
    return 2 * NormalDist().cdf(quantile * math.sqrt(num_values / (num_values - 1))) - 1
