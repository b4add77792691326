"""What the profiler saw of a cell's step on the device."""

from statistics import median

import msgspec

from decodegap.explain.summary import Summary
from decodegap.record import KernelUse


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step. busy: at least one kernel was running. profiled_wall: the step with the
    profiler on, which is longer."""

    busy: float
    profiled_wall: float
    kernels: tuple[KernelUse, ...]


def device_time(summary: Summary) -> DeviceTime | None:
    """Of the trial whose median step is the middle one, or of a trial run for nothing else; None if
    none was profiled on a GPU."""
    by_step = sorted(summary.records, key=lambda record: median(record.wall_samples))
    profiles = [
        record.measurement.profile
        for record in (*by_step, *summary.profiled)
        if record.measurement is not None and record.measurement.profile is not None
    ]
    if not profiles:
        return None
    profile = profiles[len(profiles) // 2]
    if profile.busy_seconds is None:
        return None
    return DeviceTime(
        busy=profile.busy_seconds,
        profiled_wall=profile.wall_seconds,
        kernels=profile.kernels,
    )
