"""Comparisons: which way the ratio goes, what the interval honours, what a verdict needs."""

import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest

from builders import failed_record, make_environment, make_profile, make_record, make_trial
from decodegap.explain.compare import (
    NoComparison,
    compare,
    comparisons_in,
    pairs_needed,
    verdict_of,
)
from decodegap.explain.interval import LEAST_PAIRS, raised_level, ratio_interval
from decodegap.explain.prediction import about_words, parse_prediction, registered_hash
from decodegap.explain.summary import UnlikeRecords
from decodegap.record import Arm, Placement

RUNTIMES = {"A": "hf-eager", "B": "hf-static"}


def arm(name, pair, margin=0.05, **changes):
    return Arm(comparison="one", name=name, pair=pair, margin=margin, **changes)


def record(name, pair, seconds, minute=0, profile=None, environment=None, **changes):
    trial = make_trial(runtime=RUNTIMES[name], arm=arm(name, pair, **changes))
    samples = [seconds, seconds * 0.5, seconds * 3]  # the median is the trial's figure
    return make_record(
        samples, trial=trial, minute=minute, profile=profile, environment=environment
    )


def study(a_seconds, b_seconds, **changes):
    arms = zip(a_seconds, b_seconds, strict=True)
    return [
        one
        for pair, (a, b) in enumerate(arms)
        for one in (record("A", pair, a, **changes), record("B", pair, b, **changes))
    ]


def noisy(center, num, spread=0.005, seed=0):
    return center * np.exp(np.random.default_rng(seed).normal(0, spread, num))


def test_the_ratio_is_a_over_b_so_that_above_one_b_is_faster():
    result = compare(study(noisy(0.030, 10), noisy(0.010, 10, seed=1)))
    assert result.ratio == pytest.approx(3, rel=0.01)
    assert result.interval.low < result.ratio < result.interval.high
    assert (result.verdict, result.exit_code) == ("faster", 0)
    assert (result.a.key.runtime, result.b.key.runtime) == ("hf-eager", "hf-static")
    assert result.a.step == pytest.approx(0.030, rel=0.01)
    assert 0.001 < result.a.between_trial_cv < 0.01


def test_arms_that_change_places_give_the_reciprocal_and_the_opposite_verdict():
    a, b = noisy(0.030, 10), noisy(0.010, 10, seed=1)
    forth, back = compare(study(a, b)), compare(study(b, a))
    assert back.ratio == pytest.approx(1 / forth.ratio)
    assert back.interval.low == pytest.approx(1 / forth.interval.high, rel=2e-3)
    assert (back.verdict, back.exit_code) == ("slower", 1)


def test_the_figure_is_the_median_of_paired_ratios_not_the_ratio_of_medians():
    a, b = [1.0, 2.0, 9.0], [1.0, 1.0, 1.0]
    assert compare(study(a, b)).ratio == 2.0
    a, b = [1.0, 2.0, 3.0], [1.0, 1.0, 6.0]
    assert compare(study(a, b)).ratio == 1.0


def test_pairs_are_matched_by_number_whatever_the_order_of_the_files():
    records = study([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert compare(records[::-1]).ratios == (2.0, 2.0, 2.0)


def test_equal_values_have_an_interval_too():
    result = compare(study([0.01] * 10, [0.01] * 10))
    assert (result.interval.low, result.interval.high) == (1.0, 1.0)
    assert result.interval.method == "constant"
    assert (result.verdict, result.exit_code) == ("no difference", 3)


def test_equal_ratios_that_are_not_one_are_a_difference():
    assert compare(study([0.02] * 10, [0.01] * 10)).verdict == "faster"


@pytest.mark.filterwarnings("error")
def test_ratios_of_which_most_are_equal_get_an_interval_without_a_warning():
    ratios = [1.0] * 8 + [1.1, 0.8]
    found = ratio_interval(ratios)
    assert 0.8 <= found.low <= 1.0 <= found.high <= 1.1
    assert not math.isnan(found.width)


def test_few_pairs_have_no_interval_and_no_verdict():
    few = LEAST_PAIRS - 1
    result = compare(study([0.03] * few, [0.01] * few))
    assert result.interval is None
    assert (result.verdict, result.exit_code) == ("inconclusive", 4)
    assert pairs_needed(result) == LEAST_PAIRS
    assert ratio_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5]) is not None


@pytest.mark.parametrize(
    "low, high, margin, verdict",
    [
        (0.96, 1.04, 0.05, "no difference"),
        (1.01, 1.04, 0.05, "no difference"),
        (1.01, 1.04, 0.01, "faster"),
        (1.01, 1.30, 0.05, "faster"),
        (0.70, 0.99, 0.05, "slower"),
        (0.97, 1.06, 0.05, "inconclusive"),
        (0.50, 2.00, 0.05, "inconclusive"),
        (1.00, 1.30, 0.05, "inconclusive"),
    ],
)
def test_verdicts(low, high, margin, verdict):
    interval = ratio_interval([1.0] * 6)
    moved = msgspec.structs.replace(interval, low=low, high=high)
    assert verdict_of(moved, margin) == verdict


def test_a_real_difference_inside_the_margin_is_none_that_matters_until_the_margin_shrinks():
    a, b = noisy(0.0103, 10, 0.001), noisy(0.0100, 10, 0.001, seed=1)
    assert compare(study(a, b)).verdict == "no difference"
    assert compare(study(a, b, margin=0.01)).verdict == "faster"


def test_more_pairs_are_asked_for_when_the_interval_is_wide():
    wide = compare(study(noisy(0.01, 10, 0.2), noisy(0.01, 10, 0.2, seed=1)))
    assert wide.verdict == "inconclusive"
    assert pairs_needed(wide) > 40


@pytest.mark.parametrize(
    "ratio, low, high, num_pairs",
    [
        # 0.035 to the farther end, and 0.025 of room to 1 and to 1.05: 10 × 1.96.
        (1.025, 0.990, 1.060, 20),
        # A difference twice the margin: 0.12 to the farther end, 0.10 off 1.
        (1.10, 0.98, 1.22, 15),
        # Equal arms: 0.10 to the farther end, 1 ÷ 1.05 below and 1.05 above: 0.0476 of room.
        (1.00, 0.90, 1.10, 45),
        # A hair from telling: one more at least.
        (1.03, 0.9999, 1.0501, 11),
    ],
)
def test_pairs_that_would_tell_are_more_than_those_that_did_not(ratio, low, high, num_pairs):
    result = compare(study([0.01 * ratio] * 10, [0.01] * 10))
    interval = msgspec.structs.replace(result.interval, low=low, high=high)
    assert pairs_needed(msgspec.structs.replace(result, interval=interval)) == num_pairs


def on_node(record, name):
    return msgspec.structs.replace(record, placement=Placement(node=name, retried=False))


def test_pairs_that_two_nodes_ran_are_left_out_and_told():
    records = study(noisy(0.03, 10), noisy(0.01, 10))
    split = [
        on_node(one, "far" if one.trial.arm.name == "B" and one.trial.arm.pair < 3 else "near")
        for one in records
    ]
    result = compare(split)
    assert (len(result.ratios), result.num_split, result.failures) == (7, 3, ())
    alone = [on_node(one, one.trial.arm.name) for one in records]
    with pytest.raises(NoComparison, match="two nodes ran each of 10 pairs"):
        compare(alone)


def test_a_failed_trial_drops_its_pair_and_is_told():
    records = study(noisy(0.03, 8), noisy(0.01, 8))
    failed = failed_record("oom", "no memory", runtime="hf-static", arm=arm("B", 3))
    records[7] = failed
    result = compare(records)
    assert len(result.ratios) == 7
    assert result.failures == (failed,)


def test_a_trial_repeated_after_a_failure_completes_its_pair():
    records = [*study([0.03] * 6, [0.01] * 6), failed_record("crash", "", arm=arm("B", 3))]
    result = compare(records)
    assert len(result.ratios) == 6
    assert result.failures == ()


def test_no_pair_at_all_says_why():
    broken = failed_record("unavailable", "needs a CUDA GPU", runtime="hf-graph", arm=arm("B", 0))
    with pytest.raises(NoComparison, match=r"hf-graph ended unavailable \(needs a CUDA GPU"):
        compare([record("A", 0, 0.01), broken])
    with pytest.raises(NoComparison, match="run the comparison to its end"):
        compare([record("A", 0, 0.01)])


def test_arms_from_two_machines_are_refused():
    elsewhere = make_environment(host_cpu="Another CPU")
    records = [record("A", 0, 0.01), record("B", 0, 0.01, environment=elsewhere)]
    with pytest.raises(UnlikeRecords, match="host CPU"):
        compare(records)


def test_kernels_are_compared_pair_by_pair():
    profile, other = make_profile({"gemv": 1e-3}), make_profile({"gemv": 2e-3, "copy": 1e-3})
    same = compare(study([0.01] * 6, [0.01] * 6, profile=profile))
    assert (same.kernels.answer, same.kernels.num_same) == ("same", 6)

    records = [record("A", 0, 0.01, profile=profile), record("B", 0, 0.01, profile=other)]
    different = compare(records).kernels
    assert different.answer == "different"
    assert (different.only_a, different.only_b) == ((), ("copy",))

    more = [record("A", 1, 0.01, profile=profile), record("B", 1, 0.01, profile=profile)]
    assert compare(records + more).kernels.answer == "same in some pairs"
    assert compare(study([0.01], [0.01])).kernels.answer == "not profiled"


def test_a_prediction_travels_with_the_records():
    claim = parse_prediction("ratio > 2")
    a, b = (record(name, 0, 1.0).trial for name in "AB")
    sha256 = registered_hash(claim, about_words(a, b))
    said = {"prediction": claim.text, "prediction_sha256": sha256}
    result = compare(study(noisy(0.03, 10), noisy(0.01, 10, seed=1), **said))
    assert (result.prediction.text, result.prediction.outcome) == ("ratio > 2", "confirmed")
    assert result.prediction.sha256 == said["prediction_sha256"]
    few = compare(study([0.03], [0.01], **said))
    assert few.prediction.outcome == "undecided"


@pytest.mark.parametrize(
    "changes",
    [
        {"prediction": "ratio > 1"},
        {"prediction_sha256": "0" * 64},
        {"prediction": "ratio > 1e-5"},
    ],
    ids=["another claim", "another hash", "no claim at all"],
)
@pytest.mark.parametrize("in_all", [True, False], ids=["in all records", "in one"])
def test_a_claim_that_was_not_registered_so_is_altered(changes, in_all):
    claim = parse_prediction("ratio > 2")
    a, b = (record(name, 0, 1.0).trial for name in "AB")
    said = {
        "prediction": claim.text,
        "prediction_sha256": registered_hash(claim, about_words(a, b)),
    }
    records = study(noisy(0.03, 10), noisy(0.01, 10, seed=1), **said)
    edited = [
        msgspec.structs.replace(
            one,
            trial=msgspec.structs.replace(
                one.trial, arm=msgspec.structs.replace(one.trial.arm, **changes)
            ),
        )
        for one in (records if in_all else records[3:4])
    ]
    result = compare(edited if in_all else [*records[:3], *edited, *records[4:]])
    assert result.prediction.outcome == "altered"


def test_one_run_may_hold_several_comparisons_and_trials_of_none():
    longer = make_trial(context=32, arm=arm("A", 0))
    records = [*study([0.01] * 2, [0.01] * 2), make_record(trial=longer), make_record()]
    groups = comparisons_in(records)
    assert sorted(map(len, groups.values())) == [1, 4]


def test_the_raised_level_is_students_t_for_few_and_the_level_itself_for_many():
    # t(0.975, 9) = 2.262157; times √(10 ÷ 9) = 2.384524; Φ(2.384524) = 0.991449.
    assert raised_level(10, 0.95) == pytest.approx(2 * 0.991449 - 1, abs=1e-5)
    assert raised_level(100_000, 0.95) == pytest.approx(0.95, abs=1e-5)


def test_reading_a_comparison_loads_neither_scipy_nor_torch():
    code = "import decodegap.explain.compare, sys; print({'scipy', 'torch'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"


def simulated_ratios(rng, num_pairs, speed_up=1.0):
    """Trial medians of a study run A B B A on a machine that drifts 3 % over the run, wanders,
    whose processes differ by 1 %, and of whose trials 8 % are disturbed by 5 to 30 %."""
    num_trials = 2 * num_pairs
    when = np.arange(num_trials) / num_trials
    logs = rng.normal(0, 0.03) * when + np.cumsum(rng.normal(0, 0.003, num_trials))
    logs += rng.normal(0, 0.01, num_trials)
    disturbed = rng.random(num_trials) < 0.08
    logs[disturbed] += np.log1p(rng.uniform(0.05, 0.3, disturbed.sum()))
    is_a = np.isin(np.arange(num_trials) % 4, (0, 3))
    return np.exp(logs[is_a] - logs[~is_a]) * speed_up


@pytest.fixture
def fewer_resamples(monkeypatch):
    """A thousand studies in seconds: 1,999 resamples each."""
    monkeypatch.setattr("decodegap.explain.interval._NUM_RESAMPLES", 1999)


@pytest.mark.parametrize("num_pairs", [6, 10])
@pytest.mark.usefixtures("fewer_resamples")
def test_a_thousand_studies_of_equal_arms_find_a_difference_in_at_most_six_percent(num_pairs):
    rng = np.random.default_rng(20_261_130)
    intervals = [ratio_interval(simulated_ratios(rng, num_pairs)) for _ in range(1000)]
    misses = sum(not found.low <= 1 <= found.high for found in intervals)
    verdicts = [verdict_of(found, 0.05) for found in intervals]
    false_positives = verdicts.count("faster") + verdicts.count("slower")
    assert misses <= 60
    assert false_positives <= 60
    if num_pairs == 10:
        assert verdicts.count("no difference") >= 700


@pytest.mark.usefixtures("fewer_resamples")
def test_a_real_difference_is_found_and_lies_in_the_interval():
    rng = np.random.default_rng(1)
    intervals = [ratio_interval(simulated_ratios(rng, 10, speed_up=1.1)) for _ in range(1000)]
    assert sum(verdict_of(found, 0.05) == "faster" for found in intervals) >= 900
    assert sum(found.low <= 1.1 <= found.high for found in intervals) >= 940
