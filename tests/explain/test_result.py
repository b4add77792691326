"""A run read as a whole."""

import pytest

from builders import (
    GPU_ENVIRONMENT,
    failed_record,
    make_environment,
    make_gpu_record,
    make_record,
    make_trial,
)
from decodegap.explain.result import device_of, group_by_run, read_result
from decodegap.explain.summary import UnlikeRecords


def test_cells_come_in_the_order_measured_and_failures_apart():
    bad = failed_record("oom", "no room", runtime="hf-static")
    records = [make_record(context=32), bad, make_record(context=16), make_record(context=32)]
    result = read_result(records)
    assert [cell.summary.key.context for cell in result.cells] == [32, 16]
    assert len(result.cells[0].summary.records) == 2
    assert result.failures == (bad,)


def test_a_cell_with_one_good_trial_counts_and_its_failures_are_kept():
    result = read_result([failed_record("crash", "why"), make_record()])
    assert len(result.cells) == len(result.failures) == 1


def test_nothing_but_failures():
    result = read_result([failed_record("timeout", "too slow")])
    assert (result.cells, result.findings) == ((), ())
    assert len(result.failures) == 1


def test_unlike_trials_of_one_cell_are_refused():
    other = make_environment(num_threads=1)
    with pytest.raises(UnlikeRecords, match="threads"):
        read_result([make_record(), make_record(environment=other)])


def test_runs_are_told_apart_in_the_order_they_are_met():
    records = [make_record(run=run) for run in ("b", "a", "b")]
    assert {run: len(trials) for run, trials in group_by_run(records).items()} == {"b": 2, "a": 1}
    assert list(group_by_run(records)) == ["b", "a"]


# Which device a cell was measured on


def test_a_known_gpu_is_its_row_with_the_bandwidth_of_its_trials():
    device = device_of([make_gpu_record()])
    assert device.name == "h200"
    assert device.bandwidth_bytes_per_second == 4.8e12
    assert device.reachable_bytes_per_second == 4.5e12


def test_an_unknown_gpu_has_what_its_driver_said():
    environment = make_environment(
        **GPU_ENVIRONMENT
        | {"device_name": "NVIDIA Unknown", "derived_bandwidth_bytes_per_second": 1e12}
    )
    device = device_of([make_gpu_record(environment=environment)])
    assert (device.title, device.derived) == ("NVIDIA Unknown", True)
    assert device.bandwidth_bytes_per_second == 1e12


def test_a_cpu_has_only_what_was_measured():
    device = device_of([make_record()])
    assert device.bandwidth_bytes_per_second is None
    assert device.reachable_bytes_per_second == 50e9
    assert device_of([make_record(trial=make_trial())]).reachable_bytes_per_second is None


def test_a_failed_trial_does_not_hide_the_device():
    assert device_of([failed_record("oom", "no room"), make_gpu_record()]).name == "h200"


def test_without_any_environment_the_device_is_unknown():
    device = device_of([failed_record("oom", "no room")])
    assert device.title == "unknown device"
    assert device.bandwidth_bytes_per_second is None
