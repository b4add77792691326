"""Busy time is a union of spans; operators of a CPU step are counted per step."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodegap.measure.profile import busy_seconds, profile_steps


@pytest.mark.parametrize(
    "spans, seconds",
    [
        ([], 0),
        ([(1, 3)], 2),
        ([(0, 1), (2, 3)], 2),
        ([(0, 2), (1, 3)], 3),
        ([(0, 10), (2, 3), (4, 5)], 10),  # kernels on a second stream, inside the first
        ([(0, 1), (1, 2)], 2),
        ([(4, 5), (0, 1)], 2),
        ([(0, 1), (0, 1)], 1),
        ([(3, 3)], 0),
    ],
)
def test_busy_time_counts_overlap_once(spans, seconds):
    assert busy_seconds(spans) == seconds


# Whole numbers far apart enough to count the covered ticks one by one.
spans_of_ticks = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20)).map(lambda s: (s[0], s[0] + s[1])),
    max_size=12,
)


@given(spans_of_ticks)
def test_busy_time_is_the_number_of_covered_ticks(spans):
    covered = {tick for start, end in spans for tick in range(start, end)}
    assert busy_seconds(spans) == len(covered)


@given(spans_of_ticks, st.randoms())
def test_busy_time_does_not_depend_on_the_order(spans, random):
    shuffled = list(spans)
    random.shuffle(shuffled)
    assert busy_seconds(shuffled) == busy_seconds(spans)


def test_operators_of_a_cpu_step_are_counted_per_step():
    left = torch.ones(8, 8)
    profile = profile_steps(lambda: left @ left @ left, 4, on_gpu=False)
    (product,) = [use for use in profile.kernels if use.name == "aten::mm"]
    assert product.count == 2
    assert 0 < product.seconds < profile.wall_seconds
    assert profile.num_steps == 4
    assert profile.busy_seconds is None


def test_operators_come_slowest_first():
    big, small = torch.ones(400, 400), torch.ones(2)
    profile = profile_steps(lambda: (big @ big, small + small), 3, on_gpu=False)
    seconds = [use.seconds for use in profile.kernels]
    assert seconds == sorted(seconds, reverse=True)
    assert profile.kernels[0].name == "aten::mm"


def test_steps_outside_the_count_are_not_in_it():
    """One step is thrown away first, so a step is called once more than it is counted."""
    calls = []
    profile_steps(lambda: calls.append(1), 3, on_gpu=False)
    assert len(calls) == 4
