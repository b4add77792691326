"""The account of a transformers step on a GPU: device time, replays, launches, host."""

from collections.abc import Mapping
from statistics import median

import msgspec

from decodegap.explain.kernels import num_launches, same_kernels, seconds_by_kind
from decodegap.explain.part import (
    ATTENTION,
    GAPS,
    HOST,
    LAUNCH,
    LINEAR,
    SYNCHRONISE,
    Part,
    Split,
    kv_bytes,
    linear_bytes,
    reachable_bandwidth,
)
from decodegap.explain.summary import Summary
from decodegap.record import KernelUse


class _DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """What the profiler saw of a step on the device. Seconds per step."""

    busy: float
    profiled_wall: float
    kernels: tuple[KernelUse, ...]


def gpu_split(summary: Summary, others: Mapping[str, Summary]) -> Split:
    """Parts of `hf-graph` from its own replays; of `hf-static` and `hf-eager` with the others'."""
    own = _device_time(summary)
    if own is None:
        note = "no trial has a kernel profile"
        return Split(parts=(), residual_name="not split", notes=(note,))
    parts = _kernel_parts(summary, own)
    notes = [
        f"{num_launches(own.kernels):.0f} kernels a step; the profiler made the step "
        f"{own.profiled_wall / summary.step:.2f}× as long, kernel times are the device's own"
    ]
    graph, static = others.get("hf-graph"), others.get("hf-static")
    if summary.key.runtime == "hf-graph":
        parts += _replay_parts(summary, own.busy)
        return Split(parts=tuple(parts), residual_name="residual", notes=tuple(notes))
    if summary.key.runtime == "hf-static":
        static = summary
    replayed = None if graph is None else _device_time(graph)
    if graph is None or static is None or replayed is None:
        notes.append("run hf-static and hf-graph beside it to separate gaps, launch and host work")
        name = "not separated: launch side, gaps, host work"
        return Split(parts=tuple(parts), residual_name=name, notes=tuple(notes))
    parts += _replay_parts(graph, replayed.busy)
    parts.append(Part(LAUNCH, static.step - graph.step, "hf-static − hf-graph"))
    notes.append(_launch_note(static, replayed.kernels))
    if static is not summary:
        parts += _host_parts(summary, static, own)
        notes.append(
            f"{summary.key.runtime} and hf-static do not run the same kernels: the difference of "
            "their device time is taken out of host work; what remains mixes cache growth with "
            "attention planning"
        )
    return Split(parts=tuple(parts), residual_name="residual", notes=tuple(notes))


def _kernel_parts(summary: Summary, own: _DeviceTime) -> list[Part]:
    """Device time above the bytes each kind of kernel has to move."""
    bandwidth = reachable_bandwidth(summary)
    floors = {
        "linear": linear_bytes(summary) / bandwidth,
        "attention": kv_bytes(summary) / bandwidth,
    }
    parts = []
    for kind, seconds in seconds_by_kind(own.kernels).items():
        name = {"linear": LINEAR, "attention": ATTENTION}.get(kind, f"{kind} (kernels)")
        above = seconds - floors.get(kind, 0.0)
        parts.append(Part(name, above, "kernel times on the device"))
    return parts


def _replay_parts(graph: Summary, busy: float) -> list[Part]:
    replay = graph.timing("back_to_back")
    if replay is None:
        return []
    return [
        Part(GAPS, replay - busy, "graph replays back to back − busy"),
        Part(SYNCHRONISE, graph.step - replay, "graph replay waited for − back to back"),
    ]


def _host_parts(summary: Summary, static: Summary, own: _DeviceTime) -> list[Part]:
    static_time = _device_time(static)
    if static_time is None:
        return []
    seconds = summary.step - static.step - (own.busy - static_time.busy)
    return [Part(HOST, seconds, f"{summary.key.runtime} − hf-static, device time taken out")]


def _launch_note(static: Summary, graph_kernels: tuple[KernelUse, ...]) -> str:
    static_time = _device_time(static)
    if static_time is not None and same_kernels(static_time.kernels, graph_kernels):
        return "hf-static and hf-graph launch the same kernels, equally often"
    return "hf-static and hf-graph do not launch the same kernels: launch side is approximate"


def _device_time(summary: Summary) -> _DeviceTime | None:
    """Of the trial whose median step is the middle one; None if none was profiled on a GPU."""
    profiles = [
        record.measurement.profile
        for record in sorted(summary.records, key=lambda record: median(record.wall_samples))
        if record.measurement is not None and record.measurement.profile is not None
    ]
    if not profiles:
        return None
    profile = profiles[len(profiles) // 2]
    if profile.busy_seconds is None:
        return None
    return _DeviceTime(
        busy=profile.busy_seconds,
        profiled_wall=profile.wall_seconds,
        kernels=profile.kernels,
    )
