"""What stands out, once, with its cells and a hint."""

import msgspec
import pytest

from builders import (
    GPU_ENVIRONMENT,
    make_environment,
    make_gpu_record,
    make_host_state,
    make_profile,
    make_record,
)
from decodegap.explain.findings import Finding
from decodegap.explain.result import read_result


def findings(*records) -> list[Finding]:
    return list(read_result(records).findings)


def three(samples, **changes):
    return [make_record(samples, **changes) for _ in range(3)]


def find(words: str, *records) -> list[Finding]:
    return [found for found in findings(*records) if words in found.text]


def test_the_fastest_runtime_is_named_with_its_lead():
    records = [*three([0.030], runtime="hf-eager"), *three([0.010], runtime="hf-static")]
    (found,) = find("a step", *records)
    assert found.cells == ("hf-static at 16",)
    assert "10.0 ms a step, 100 Hz" in found.text
    assert "3.00× as fast as hf-eager" in found.text
    assert "deploy hf-static" in found.hint


def test_one_runtime_alone_has_nothing_to_beat():
    (found,) = find("a step,", *three([0.010]))
    assert "as fast as" not in found.text
    assert "measure another runtime" in found.hint


def test_runtimes_are_held_against_each_other_at_one_context_only():
    records = [*three([0.010], context=16), *three([0.030], context=32)]
    leads = find("a step,", *records)
    assert [found.cells for found in leads] == [("hf-eager at 16",), ("hf-eager at 32",)]


@pytest.mark.parametrize("twin, num_found", [(0.009, 1), (0.005, 0), (None, 0)])
def test_a_step_paced_by_the_host(twin, num_found):
    probes = {} if twin is None else {"twin": [twin]}
    assert len(find("the host sets the pace", *three([0.010], probes=probes))) == num_found


def test_the_largest_part_of_the_fastest_step_comes_with_a_remedy():
    """20 µs of bytes at 4.5 TB/s, and 9 ms of attention."""
    kernels = {"flash_fwd": 9e-3, "gemm": 1e-3}
    records = [
        make_gpu_record([0.011], runtime="hf-graph", profile=make_profile(kernels, busy=0.01))
        for _ in range(3)
    ]
    (found,) = find("the largest part above it", *records)
    assert "attention above its bytes" in found.text
    assert "try another attention kernel" in found.hint


def test_what_was_not_told_apart_may_be_the_largest_part():
    """10 ms of which kernels take 1: launching and host work are the rest, if anything told."""
    kernels = {"flash_fwd": 0.6e-3, "gemm": 0.4e-3}
    profile = make_profile(kernels, busy=1e-3)
    (found,) = find(
        "the largest part above it", make_gpu_record([0.010], runtime="hf-static", profile=profile)
    )
    assert "not separated: launch side, gaps, host work: 9." in found.text
    assert found.hint == "see the notes of the account"


def test_a_step_close_to_its_floor_is_paced_by_memory():
    record = make_record()
    seconds = read_result([record]).cells[0].summary.floor.reachable
    (found,) = find("memory sets the pace", *three([seconds * 1.05]))
    assert "95% of the step" in found.text
    assert "fewer bytes" in found.hint


@pytest.mark.parametrize("medians, words", [([0.01], "one trial"), ([0.01, 0.012, 0.014], "CV")])
def test_an_uncertain_spread_is_a_warning(medians, words):
    (found,) = find(words, *(make_record([median]) for median in medians))
    assert found.severity == "warning"
    assert "--trials" in found.hint


def test_a_steady_cell_has_no_warning():
    assert [found for found in findings(*three([0.010])) if found.severity == "warning"] == []


def test_a_long_tail_is_a_warning():
    (found,) = find("p99", *three([0.010] * 9 + [0.016]))
    assert "control loop" in found.hint
    assert find("p99", *three([0.010] * 9 + [0.0149])) == []


def test_throttling_is_a_warning_whenever_it_was_seen():
    for before, after in (((), ("hardware slowdown",)), (("hardware slowdown",), ())):
        environment = make_environment(
            **GPU_ENVIRONMENT
            | {
                "before": make_host_state(throttled=before),
                "after": make_host_state(throttled=after),
            }
        )
        (found,) = find("held back", make_gpu_record(environment=environment))
        assert "hardware slowdown" in found.text
    assert find("held back", make_gpu_record()) == []


@pytest.mark.parametrize("share, num_found", [(0.05, 0), (0.5, 1)])
def test_other_work_is_a_warning(share, num_found):
    environment = make_environment(before=make_host_state(busy_share=share))
    assert len(find("other work", make_record(environment=environment))) == num_found


def beside_loops(step: float, *loops: float | None):
    """A record of one step, with what the Python loop took before and after it."""
    before, after = (make_host_state(python_loop_seconds=loop) for loop in loops)
    return make_record([step], environment=make_environment(before=before, after=after))


@pytest.mark.parametrize(
    "slow_step, slow_loop, num_found",
    [(0.020, 1.7e-3, 1), (0.020, 1.05e-3, 0), (0.010, 1.7e-3, 0), (0.020, None, 0)],
    ids=["both slow", "a steady host", "steady steps", "before it was recorded"],
)
def test_a_host_that_is_slower_at_times_is_told_beside_steps_that_spread(
    slow_step, slow_loop, num_found
):
    records = [beside_loops(0.010, 1e-3, 1e-3), beside_loops(slow_step, 1e-3, slow_loop)]
    found = find("loop of plain Python took 1.00 ms to 1.70 ms", *records)
    assert len(found) == num_found


@pytest.mark.parametrize("uuids, num_found", [("ab", 1), ("aa", 0), ([None, None], 0)])
def test_trials_on_two_cards_are_a_warning(uuids, num_found):
    records = [
        make_gpu_record(environment=make_environment(**GPU_ENVIRONMENT | {"device_uuid": uuid}))
        for uuid in uuids
    ]
    assert len(find("2 GPUs of one kind", *records)) == num_found


def test_a_derived_bandwidth_is_a_warning():
    environment = make_environment(
        **GPU_ENVIRONMENT
        | {"device_name": "NVIDIA Unknown", "derived_bandwidth_bytes_per_second": 1e12}
    )
    (found,) = find("is derived", make_gpu_record(environment=environment))
    assert "NVIDIA Unknown" in found.text
    assert "1.00 TB/s" in found.text
    assert find("is derived", make_record()) == []  # a CPU's is measured, not derived


def test_a_warning_of_two_cells_is_one_finding():
    records = [make_record(context=16), make_record(context=32)]
    (found,) = find("one trial", *records)
    assert found.cells == ("hf-eager at 16", "hf-eager at 32")


def test_advice_comes_before_warnings():
    severities = [found.severity for found in findings(make_record(), make_record(context=32))]
    assert severities == sorted(severities)
    assert set(severities) == {"advice", "warning"}


def test_a_failed_trial_has_no_finding():
    wrong = msgspec.structs.replace(make_record(), outcome="wrong", reason="why")
    assert findings(wrong) == []
