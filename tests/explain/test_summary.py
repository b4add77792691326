"""What trials say together: medians of medians, percentiles that were seen, no unlike records."""

import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    failed_record,
    make_environment,
    make_gpu_record,
    make_record,
    shape_of,
    tiny,
)
from decodegap.explain.result import device_of
from decodegap.explain.summary import (
    UnlikeRecords,
    coefficient_of_variation,
    group_by_cell,
    percentile,
    summarise,
)
from decodegap.predict.device import derive_device

CPU = derive_device("Some CPU", None, 16 << 30)
seconds = st.floats(1e-6, 10.0)


def summary(*trials, **changes):
    return summarise([make_record(samples, **changes) for samples in trials], CPU)


# Statistics


def test_the_step_is_the_median_of_the_trials_medians():
    """One trial with more samples or a slow start has no more say than another."""
    found = summary([1.0, 2.0, 9.0], [3.0] * 5, [10.0, 10.0])
    assert found.trial_medians == (2.0, 3.0, 10.0)
    assert found.step == 3.0
    assert found.num_samples == 10


def test_warm_up_steps_are_not_in_it():
    record = make_record([1.0, 1.0, 1.0], timings={"warmup": [99.0]})
    assert summarise([record], CPU).p99 == 1.0


@pytest.mark.parametrize(
    "share, value",
    [(0.95, 95), (0.99, 99), (0.5, 50), (0.951, 96), (1.0, 100), (0.001, 1)],
)
def test_percentiles_of_one_to_a_hundred(share, value):
    assert percentile(list(range(1, 101)), share) == value


def test_the_tail_of_few_samples_is_the_worst_seen():
    found = summary([1.0, 1.0, 5.0])
    assert (found.p95, found.p99) == (5.0, 5.0)


@given(st.lists(seconds, min_size=1), st.floats(0, 1))
def test_a_percentile_is_a_value_that_was_seen_and_has_its_share_below(samples, share):
    ordered = sorted(samples)
    value = percentile(ordered, share)
    assert value in samples
    assert sum(sample <= value for sample in samples) >= share * len(samples) - 1e-9


@given(st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=1, max_size=5))
def test_percentiles_are_over_the_steps_of_all_trials(trials):
    found = summary(*trials)
    seen = [sample for trial in trials for sample in trial]
    assert found.p95 in seen
    assert found.p99 in seen
    assert min(seen) <= found.step <= max(seen)
    assert found.num_samples == len(seen)


def test_spread_is_that_of_the_trials():
    assert summary([2.0, 2.0, 2.0]).between_trial_cv is None
    found = summary([1.0, 1.0, 50.0], [2.0], [3.0])
    assert found.between_trial_cv == pytest.approx(1.0 / 2.0)  # deviation 1, mean 2


@given(st.lists(seconds, min_size=2))
def test_spread_as_the_standard_library_has_it(values):
    expected = statistics.stdev(values) / statistics.mean(values)
    assert coefficient_of_variation(values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_rates_are_bytes_over_the_step():
    found = summarise([make_gpu_record([0.010])], device_of([make_gpu_record()]))
    assert found.achieved_bytes_per_second == found.traffic.bytes / 0.010
    assert found.ratio(found.floor.exact) == pytest.approx(found.traffic.bytes / 4.8e12 / 0.010)
    assert found.ratio(found.floor.reachable) == pytest.approx(found.traffic.bytes / 4.5e12 / 0.010)
    assert found.ratio(None) is None


def test_a_timing_is_the_median_over_trials_of_medians():
    records = [make_record(probes={"linears": samples}) for samples in ([1.0, 2.0, 3.0], [4.0])]
    records.append(make_record())  # a trial without it has no say
    found = summarise(records, CPU)
    assert found.timing("linears") == 3.0
    assert found.timing("wall") == 0.011
    assert found.timing("no such probe") is None


# Which records count


def test_a_trial_without_a_time_does_not_count():
    good, bad = make_record([1.0]), failed_record("oom", "no room")
    assert summarise([bad, good, bad], CPU).records == (good,)
    assert summarise([bad], CPU) is None
    assert summarise([], CPU) is None


@pytest.mark.parametrize("outcome", ["wrong", "impossible"])
def test_a_time_that_is_not_believed_does_not_count(outcome):
    record = msgspec.structs.replace(make_record([1.0]), outcome=outcome, reason="why")
    assert summarise([record], CPU) is None


def test_cells_are_told_apart_in_the_order_they_are_met():
    records = [
        make_record(context=32),
        make_record(context=16),
        make_record(context=32, runtime="hf-static"),
        make_record(context=32, order=5, seed=3),
    ]
    groups = group_by_cell(records)
    assert [(key.context, key.runtime) for key in groups] == [
        *((32, "hf-eager"), (16, "hf-eager"), (32, "hf-static")),
    ]
    assert groups[next(iter(groups))] == [records[0], records[3]]


# Unlike records


LIKE = make_environment()
UNLIKE = {
    "device": make_record(environment=make_environment(device_name="Another CPU")),
    "driver": make_record(environment=make_environment(driver="581.0")),
    "host CPU": make_record(environment=make_environment(host_cpu="Another CPU")),
    "threads": make_record(environment=make_environment(num_threads=2)),
    "torch version": make_record(
        environment=make_environment(packages={"torch": "2.12.0", "transformers": "5.24.0"})
    ),
    "warm-up steps": make_record(num_warmup=9),
    "timed steps": make_record(num_steps=9),
    "cell": make_record(context=17),
    "model shape": make_record(shape=shape_of(tiny(intermediate_size=97), "tiny")),
}


@pytest.mark.parametrize("what, other", UNLIKE.items(), ids=UNLIKE)
def test_unlike_records_are_not_pooled_and_the_difference_is_named(what, other):
    first = make_record(environment=LIKE)
    for pair in ([first, other], [other, first], [first, first, other]):
        with pytest.raises(UnlikeRecords, match=f"differ in {what}") as refused:
            summarise(pair, CPU)
        assert "folders of their own" in str(refused.value)
        assert other.id in str(refused.value)


@pytest.mark.parametrize(
    "packages", [{"torch": "2.13.0"}, {"torch": "2.13.0", "transformers": "5.24.0", "new": "1"}]
)
def test_a_package_that_only_one_record_has_is_a_difference_too(packages):
    first = make_record(environment=LIKE)
    other = make_record(environment=make_environment(packages=packages))
    for pair in ([first, other], [other, first]):
        with pytest.raises(UnlikeRecords, match="version"):
            summarise(pair, CPU)


def test_what_changes_between_trials_of_one_cell_is_no_difference():
    first = make_record(order=0, run="a", environment=LIKE)
    busy = msgspec.structs.replace(LIKE.before, busy_share=0.9)
    other = make_record(order=7, run="b", environment=make_environment(before=busy), minute=9)
    assert len(summarise([first, other], CPU).records) == 2


def test_a_failed_trial_of_another_machine_is_no_difference():
    assert summarise([make_record(), failed_record("oom", "no room", num_steps=9)], CPU)


def test_the_mean_is_not_hurt_by_sizes_far_apart():
    assert coefficient_of_variation([1e-9, 1e9]) == pytest.approx(math.sqrt(2))
