"""Slopes against hand-computed ones, and against every choice of trials spelt out."""

from itertools import product

import numpy as np
import pytest

from builders import (
    GPU_ENVIRONMENT,
    failed_record,
    make_environment,
    make_gpu_record,
    make_profile,
    make_record,
    shape_of,
    tiny,
)
from decodegap.explain.curve import CurvePoint, curves_of, fit_slope, pooled, times
from decodegap.explain.result import Result, read_result
from decodegap.explain.runs import read_runs

# The tiny model keeps 2 layers × 2 × 32 numbers × 4 bytes (fp32) a position.
BYTES_A_TOKEN = 512
BANDWIDTH = 1e9
NEED = 16 * BYTES_A_TOKEN / BANDWIDTH  # seconds for 16 tokens more


def point(kv_bytes: int, *trials: float) -> CurvePoint:
    step = float(np.median(trials))
    return CurvePoint(
        context=kv_bytes, kv_bytes=kv_bytes, step=step, trial_medians=trials, floor=None
    )


def records(runtime: str, context: int, *steps: float, **changes):
    settings = {"reachable_bytes_per_second": BANDWIDTH} | changes
    return [make_gpu_record([step], runtime=runtime, context=context, **settings) for step in steps]


def curves(*groups):
    return read_result([record for group in groups for record in group]).curves


# The fit


def test_a_line_through_three_contexts():
    """Offsets −1, 0, 1 about the middle: (6 − 1) ÷ 2; the line passes 1 above the middle step."""
    slope = fit_slope([point(1, 1.0), point(2, 2.0), point(3, 6.0)])
    assert slope.seconds_per_byte == pytest.approx(2.5)
    assert slope.largest_miss == pytest.approx(1.0)


def test_two_contexts_leave_nothing_to_miss():
    slope = fit_slope([point(100, 0.010), point(300, 0.014)])
    assert slope.seconds_per_byte == pytest.approx(2e-5)
    assert slope.largest_miss is None


def test_uneven_contexts_against_an_independent_fit():
    kv, steps = [256, 1024, 4096, 16384], [0.010, 0.0105, 0.013, 0.020]
    slope = fit_slope([point(x, y) for x, y in zip(kv, steps, strict=True)])
    fitted, offset = np.polyfit(np.array(kv, float), steps, 1)
    assert slope.seconds_per_byte == pytest.approx(fitted)
    misses = np.abs(np.array(steps) - fitted * np.array(kv) - offset)
    assert slope.largest_miss == pytest.approx(misses.max())


def test_the_range_is_that_of_every_choice_of_one_trial_per_context():
    trials = {256: (0.010, 0.014, 0.011), 1024: (0.012, 0.013), 4096: (0.013, 0.012, 0.019)}
    slope = fit_slope([point(kv, *steps) for kv, steps in trials.items()])
    kv = np.array([*trials], float)
    slopes = [np.polyfit(kv, choice, 1)[0] for choice in product(*trials.values())]
    assert slope.low == pytest.approx(min(slopes))
    assert slope.high == pytest.approx(max(slopes))
    assert slope.low < slope.seconds_per_byte < slope.high


def test_no_range_where_a_context_has_one_trial():
    slope = fit_slope([point(100, 0.010, 0.011), point(300, 0.014)])
    assert slope.low is None
    assert slope.high is None


def test_no_slope_where_the_bytes_do_not_grow():
    assert fit_slope([point(100, 0.010), point(100, 0.014)]) is None


@pytest.mark.parametrize("factor, words", [(412.3, "412×"), (40.14, "40.1×"), (-1.74, "-1.7×")])
def test_factors_in_words(factor, words):
    assert times(factor) == words


# Curves of records


def test_the_factor_is_what_an_added_byte_costs_over_what_the_memory_needs():
    (curve,) = curves(
        records("hf-eager", 16, 0.010, 0.010),
        records("hf-eager", 32, 0.010 + 21 * NEED, 0.010 + 23 * NEED),
    )
    assert [p.context for p in curve.points] == [16, 32]
    # Keys and values of the context and of the token itself.
    assert [p.kv_bytes for p in curve.points] == [17 * BYTES_A_TOKEN, 33 * BYTES_A_TOKEN]
    assert curve.points[1].floor - curve.points[0].floor == pytest.approx(NEED)
    assert curve.factor == pytest.approx(22)
    assert curve.factor_range == pytest.approx((21, 23))
    assert curve.device == "NVIDIA H200 SXM 141GB"
    assert curve.shows_growth


def test_contexts_are_sorted_and_runtimes_keep_their_order():
    found = curves(
        *(records("hf-static", context, 0.010) for context in (64, 16, 32)),
        *(records("hf-eager", context, 0.012) for context in (64, 16)),
    )
    assert [(c.runtime, [p.context for p in c.points]) for c in found] == [
        ("hf-static", [16, 32, 64]),
        ("hf-eager", [16, 64]),
    ]


def test_one_context_is_no_curve():
    assert curves(records("hf-eager", 16, 0.010), records("hf-static", 16, 0.010)) == ()


def test_a_context_that_failed_is_no_point():
    failed = failed_record("oom", "no room", runtime="hf-eager", context=32)
    assert curves(records("hf-eager", 16, 0.010), [failed]) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"reachable_bytes_per_second": 2 * BANDWIDTH},
        {"num_steps": 7},
        {"format": "bf16"},
        {"weights": "checkpoint"},
        {"environment": make_environment(**GPU_ENVIRONMENT | {"driver": "581.0"})},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_unlike_cells_make_no_common_curve(changes):
    plain, changed, other = (
        read_result(records("hf-eager", context, 0.010, **settings)).cells[0].summary
        for context, settings in ((16, {}), (32, changes), (16, changes))
    )
    assert curves_of([plain, changed]) == ()
    assert len(curves_of([other, changed])) == 1


def test_a_range_that_holds_zero_shows_no_growth():
    (curve,) = curves(
        records("hf-eager", 16, 0.010, 0.012), records("hf-eager", 32, 0.0115, 0.0125)
    )
    assert curve.factor > 0
    assert not curve.shows_growth


def test_a_window_shorter_than_all_contexts():
    config = tiny(model_type="mistral", sliding_window=8)
    shape = shape_of(config, "tiny")
    trials = [make_record([0.010], shape=shape, context=context) for context in (16, 32)]
    (curve,) = read_result(trials).curves
    assert curve.slope is None
    assert curve.factor is None
    assert curve.factor_range is None
    assert not curve.shows_growth


# Across runs


def test_like_cells_of_two_runs_make_one_curve_after_them():
    runs = read_runs(
        [
            *records("engine", 16, 0.010, 0.010, run="a"),
            *records("engine", 32, 0.010 + 2 * NEED, 0.010 + 2 * NEED, run="b"),
        ]
    ).read
    assert [len(run.cells) for run in runs] == [1, 1, 0]
    assert [len(run.curves) for run in runs] == [0, 0, 1]
    (curve,) = runs[-1].curves
    assert curve.runs == ("a", "b")
    assert curve.factor == pytest.approx(2)


def test_a_curve_within_one_run_is_not_told_twice():
    (run,) = read_runs([*records("engine", 16, 0.010), *records("engine", 32, 0.011)]).read
    assert isinstance(run, Result)
    assert len(run.curves) == 1


def test_a_cell_of_two_runs_is_one_point_with_all_trials():
    summaries = [
        cell.summary
        for run in (
            [*records("engine", 16, 0.010, 0.012, run="a"), *records("engine", 32, 0.013, run="a")],
            records("engine", 16, 0.020, run="b"),
        )
        for cell in read_result(run).cells
    ]
    (curve,) = curves_of(pooled(summaries))
    assert curve.points[0].trial_medians == (0.010, 0.012, 0.020)
    assert curve.points[0].step == 0.012
    assert curve.runs == ("a", "b")


def test_runs_on_unlike_machines_are_not_joined():
    other = make_environment(**GPU_ENVIRONMENT | {"driver": "581.0"})
    runs = read_runs(
        [
            *records("engine", 16, 0.010, run="a"),
            *records("engine", 32, 0.011, run="b", environment=other),
        ]
    ).read
    assert len(runs) == 2


def test_a_run_that_cannot_be_read_is_told_and_hides_no_other():
    other = make_environment(**GPU_ENVIRONMENT | {"driver": "581.0"})
    found = read_runs(
        [
            *records("engine", 16, 0.010, run="a"),
            *records("engine", 16, 0.010, run="b"),
            *records("engine", 16, 0.011, run="b", environment=other),
            *records("engine", 16, 0.011, run="c", format="nope"),
        ]
    )
    assert [run.cells[0].summary.records[0].trial.run for run in found.read] == ["a"]
    differ, unknown = map(str, found.errors)
    assert differ.startswith("run b is left out: records ")
    assert "differ in driver" in differ
    assert unknown.startswith("run c is left out: unknown format 'nope'")


# What is advised


def growth_findings(*groups):
    found = read_result([record for group in groups for record in group]).findings
    return [finding for finding in found if "each added KV byte" in finding.text]


@pytest.mark.parametrize("factor, num_found", [(21, 1), (3.5, 1), (2.9, 0), (-5, 0)])
def test_a_steep_curve_is_advised_on(factor, num_found):
    found = growth_findings(
        records("hf-eager", 16, 0.010, 0.010),
        records("hf-eager", 32, *[0.010 + factor * NEED] * 2),
    )
    assert len(found) == num_found


def test_the_advice_names_factor_growth_and_floor():
    (found,) = growth_findings(
        records("hf-eager", 16, 0.010, 0.010), records("hf-eager", 32, *[0.010 + 21 * NEED] * 2)
    )
    # 16 tokens of 512 bytes at 1 GB/s are 8.192 µs; 21 times that are 172.0.
    assert "costs 21.0× what the memory needs" in found.text
    assert "the step grows by 172 µs, its floor by 8.19 µs" in found.text
    assert found.severity == "advice"
    assert found.cells == ("hf-eager at 16", "hf-eager at 32")


def test_a_slope_that_may_be_the_memory_s_own_is_no_finding():
    spread = [0.010 + 0.5 * NEED, 0.010 + 10 * NEED]
    assert growth_findings(records("e", 16, 0.010, 0.010), records("e", 32, *spread)) == []


def profiled(context, copies, **changes):
    """A step of 3 ms and its cache copies."""
    profile = make_profile({"gemm": 1e-3, "CatArrayBatchedCopy": copies}, busy=2e-3)
    return records("hf-graph", context, 0.003 + copies, profile=profile, **changes)


def test_the_part_that_grew_most_is_named_with_its_remedy():
    (found,) = growth_findings(profiled(16, 0.001), profiled(32, 0.004))
    assert "what grows most is cache copies (kernels): 3.00 ms" in found.text
    assert "reads it in place" in found.hint


def test_across_runs_only_the_accounts_of_the_curve_s_own_runs_count():
    other = profiled(16, 0.002, run="other", reachable_bytes_per_second=2 * BANDWIDTH)
    groups = (other, profiled(16, 0.001, run="a"), profiled(32, 0.004, run="b"))
    (found,) = read_runs([record for group in groups for record in group]).read[-1].findings
    assert "what grows most is cache copies (kernels): 3.00 ms" in found.text


def test_advice_still_comes_before_warnings():
    result = read_result([*records("hf-eager", 16, 0.010), *records("hf-eager", 32, 0.020)])
    severities = [finding.severity for finding in result.findings]
    assert severities == sorted(severities)
    assert any("each added KV byte" in finding.text for finding in result.findings)
    assert "warning" in severities
