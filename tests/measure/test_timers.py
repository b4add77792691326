"""The stopwatches against known answers: a fake clock to the digit, a real sleep within bounds."""

from time import sleep

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodegap.measure.timers import back_to_back, wall

SLEEP_SECONDS = 0.02


class FakeMachine:
    """A clock that moves only by what a step, a wait and a pause are said to take."""

    def __init__(self, step: float, wait: float = 0.0, pause: float = 0.0) -> None:
        self.now = 100.0
        self.calls: list[str] = []
        self._times = {"step": step, "synchronize": wait, "between": pause}

    def clock(self) -> float:
        return self.now

    def _spend(self, what: str) -> None:
        self.calls.append(what)
        self.now += self._times[what]

    def step(self) -> None:
        self._spend("step")

    def synchronize(self) -> None:
        self._spend("synchronize")

    def between(self) -> None:
        self._spend("between")


def test_wall_is_a_step_and_the_wait_after_it():
    machine = FakeMachine(step=2.0, wait=0.5, pause=64.0)
    samples = wall(machine.step, 3, machine.synchronize, machine.between, machine.clock)
    assert samples == [2.5, 2.5, 2.5]  # not the wait before, not the pause


def test_wall_waits_before_and_after_each_step():
    machine = FakeMachine(step=1.0)
    wall(machine.step, 2, machine.synchronize, machine.between, machine.clock)
    assert machine.calls == ["synchronize", "step", "synchronize", "between"] * 2


def test_wall_keeps_every_sample_in_order():
    machine = FakeMachine(step=0.0)
    lengths = iter([1.0, 4.0, 2.0])

    def step() -> None:
        machine.now += next(lengths)

    assert wall(step, 3, machine.synchronize, clock=machine.clock) == [1.0, 4.0, 2.0]


def test_back_to_back_waits_once_for_all():
    machine = FakeMachine(step=2.0, wait=1.0)
    samples = back_to_back(machine.step, 4, machine.synchronize, machine.clock)
    assert samples == [(4 * 2.0 + 1.0) / 4]
    assert machine.calls == ["synchronize", *["step"] * 4, "synchronize"]


def test_no_steps_are_no_samples():
    machine = FakeMachine(step=1.0)
    assert wall(machine.step, 0, machine.synchronize, clock=machine.clock) == []


@given(st.integers(1, 50), st.integers(0, 1000), st.integers(0, 1000))
def test_on_a_fake_clock_both_are_exact(num_steps, step, wait):
    machine = FakeMachine(step=step / 8, wait=wait / 8)
    samples = wall(machine.step, num_steps, machine.synchronize, clock=machine.clock)
    assert samples == [(step + wait) / 8] * num_steps
    (mean,) = back_to_back(machine.step, num_steps, machine.synchronize, machine.clock)
    assert mean == pytest.approx((step + wait / num_steps) / 8)


def test_wall_on_a_known_sleep():
    samples = wall(lambda: sleep(SLEEP_SECONDS), 5, lambda: None)
    assert len(samples) == 5
    assert min(samples) >= SLEEP_SECONDS
    assert min(samples) < 5 * SLEEP_SECONDS  # the least of five: a busy host delays some


def test_back_to_back_on_a_known_sleep():
    (mean,) = back_to_back(lambda: sleep(SLEEP_SECONDS), 5, lambda: None)
    assert SLEEP_SECONDS <= mean < 10 * SLEEP_SECONDS


def test_the_wait_for_a_device_is_inside_the_time():
    """A step that only starts work, and a synchronise that waits for it."""
    (sample,) = wall(lambda: None, 1, lambda: sleep(SLEEP_SECONDS))
    assert sample >= SLEEP_SECONDS


def test_a_step_that_fails_is_not_swallowed():
    def fail() -> None:
        raise RuntimeError("no step")

    with pytest.raises(RuntimeError, match="no step"):
        wall(fail, 3, lambda: None)
