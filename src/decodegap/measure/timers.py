"""The stopwatches. A timer's name is its regime, and its docstring says when it lies."""

from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

Clock = Callable[[], float]


def wall(
    step: Callable[[], object],
    num_steps: int,
    synchronize: Callable[[], None],
    between: Callable[[], object] = lambda: None,
    clock: Clock = perf_counter,
) -> list[float]:
    """Seconds of each step with the device idle before and after it: what a control loop sees.

    `between` runs after each step outside the time. It lies for throughput: a loop that never
    waits for its token overlaps the host's work with the device's, and this timer forbids that.
    """
    samples = []
    for _ in range(num_steps):
        synchronize()
        start = clock()
        step()
        synchronize()
        samples.append(clock() - start)
        between()
    return samples


def back_to_back(
    step: Callable[[], object],
    num_steps: int,
    synchronize: Callable[[], None],
    clock: Clock = perf_counter,
) -> list[float]:
    """One sample: seconds per step of `num_steps` steps with no wait between them.

    It lies for latency: launches of the next step hide behind the kernels of this one.
    """
    synchronize()
    start = clock()
    for _ in range(num_steps):
        step()
    synchronize()
    return [(clock() - start) / num_steps]


def events(step: Callable[[], object], num_steps: int, device: str) -> list[float]:
    """Seconds between CUDA events recorded around each of `num_steps` back-to-back steps.

    The device's own clock, so host jitter between the two records is inside and host work before
    the first is not. It lies when the host is slower than the device: then it times the host.
    """
    import torch

    marks = [torch.cuda.Event(enable_timing=True) for _ in range(num_steps + 1)]
    with torch.cuda.device(device):
        torch.cuda.synchronize()
        marks[0].record()
        for mark in marks[1:]:
            step()
            mark.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairwise(marks)]
