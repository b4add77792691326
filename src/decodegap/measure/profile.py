"""Which kernels ran: a few steps under torch's profiler, apart from the timed ones."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from decodegap.measure.positions import NUM_TRACER_STEPS
from decodegap.record import KernelUse, Profile


def profile_steps(step: Callable[[], object], num_steps: int, on_gpu: bool) -> Profile:
    """Run `num_steps` under the profiler after one that is thrown away (the tracer's own start).

    On a GPU the device's kernels are listed, on a CPU the operators by their self time.
    """
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    activities = [ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities):
        for _ in range(NUM_TRACER_STEPS):
            step()
        synchronize()
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        synchronize()
        start = perf_counter()
        for _ in range(num_steps):
            step()
        synchronize()
        elapsed = perf_counter() - start
    events = profiler.events()
    kernels = [event for event in events if event.device_type.name == "CUDA"]
    return Profile(
        num_steps=num_steps,
        wall_seconds=elapsed / num_steps,
        busy_seconds=busy_seconds(_spans(kernels)) / num_steps if on_gpu else None,
        kernels=tuple(_uses(kernels, num_steps) if on_gpu else _operators(profiler, num_steps)),
    )


def busy_seconds(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end) spans: kernels that overlap count once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _spans(kernels: list[Any]) -> list[tuple[float, float]]:
    return [(event.time_range.start * 1e-6, event.time_range.end * 1e-6) for event in kernels]


def _uses(kernels: list[Any], num_steps: int) -> list[KernelUse]:
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for event in kernels:
        seconds[event.name] += event.time_range.elapsed_us() * 1e-6
        counts[event.name] += 1
    return _sorted_uses(
        KernelUse(name=name, count=counts[name] / num_steps, seconds=seconds[name] / num_steps)
        for name in counts
    )


def _operators(profiler: Any, num_steps: int) -> list[KernelUse]:
    return _sorted_uses(
        KernelUse(
            name=row.key,
            count=row.count / num_steps,
            seconds=row.self_cpu_time_total * 1e-6 / num_steps,
        )
        for row in profiler.key_averages()
        if row.key.startswith("aten::")
    )


def _sorted_uses(uses: Iterable[KernelUse]) -> list[KernelUse]:
    return sorted(uses, key=lambda use: use.seconds, reverse=True)
