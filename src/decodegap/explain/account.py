"""The account: one step split by cause, closed by a residual that is printed.

Parts come from interventions, a step that differs in one respect, and from device-side busy time;
never from a sum over host-side traces. A part that an arm is missing for is not guessed: its time
stays in the residual and a note says which run would separate it.
"""

from collections.abc import Mapping
from statistics import median

import msgspec

from decodegap.explain.kernels import num_launches, same_kernels, seconds_by_kind
from decodegap.explain.summary import Summary
from decodegap.record import KernelUse


class Part(msgspec.Struct, frozen=True):
    """Seconds of a step with one cause, and how they were told apart. May be negative where an
    intervention gave time back."""

    name: str
    seconds: float
    basis: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A step's parts. They and `residual` sum to `step`, by construction and by test."""

    runtime: str
    step: float
    parts: tuple[Part, ...]
    residual: float
    residual_name: str
    notes: tuple[str, ...]


FLOOR = "reachable floor"
SYNCHRONISE = "synchronise and read back"
GAPS = "gaps between kernels"
LAUNCH = "launch side"
HOST = "host work"
LINEAR, ATTENTION = "linears above their bytes", "attention above its bytes"


def account_for(summary: Summary, others: Mapping[str, Summary]) -> Account | None:
    """Split the step of `summary`. `others` are the summaries of the same model, format and
    context by runtime name, measured in the same run. None where no reachable floor is known."""
    if summary.floor.reachable is None:
        return None
    parts = [Part(FLOOR, summary.floor.reachable, "bytes ÷ bandwidth measured here")]
    if _on_gpu(summary):
        more, residual_name, notes = _gpu_parts(summary, others)
    else:
        more, residual_name, notes = _cpu_parts(summary)
    parts += more
    return Account(
        runtime=summary.key.runtime,
        step=summary.step,
        parts=tuple(parts),
        residual=summary.step - sum(part.seconds for part in parts),
        residual_name=residual_name,
        notes=tuple(notes),
    )


def _on_gpu(summary: Summary) -> bool:
    return summary.records[0].trial.device != "cpu"


def _cpu_parts(summary: Summary) -> tuple[list[Part], str, list[str]]:
    """On a CPU host and memory work in turns, so what is switched off comes off the step."""
    bandwidth = summary.device.reachable_bytes_per_second
    assert bandwidth is not None, "a reachable floor has a bandwidth"
    parts, notes = [], []
    linears, twin = summary.timing("linears"), summary.timing("twin")
    bypassed, twin_linears = summary.timing("no_attention"), summary.timing("twin_linears")
    weights, kv = _linear_bytes(summary), _kv_bytes(summary)
    if linears is not None:
        basis = "all linears alone, in order"
        parts.append(Part(LINEAR, linears - weights / bandwidth, basis))
    if bypassed is not None:
        basis = "step − the step with attention passed through"
        parts.append(Part(ATTENTION, summary.step - bypassed - kv / bandwidth, basis))
    if twin is not None and twin_linears is not None:
        basis = "the same calls on a model of almost no bytes, its linears left out"
        parts.append(Part(HOST, twin - twin_linears, basis))
    if len(parts) < 3:
        notes.append("measured without all interventions (--no-probes): the residual holds them")
    return parts, "cache copies, norms, elementwise", notes


class _DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """What the profiler saw of a step on the device. Seconds per step."""

    busy: float
    profiled_wall: float
    kernels: tuple[KernelUse, ...]


def _gpu_parts(
    summary: Summary, others: Mapping[str, Summary]
) -> tuple[list[Part], str, list[str]]:
    own = _device_time(summary)
    if own is None:
        return [], "not split", ["no trial has a kernel profile"]
    parts = _kernel_parts(summary, own)
    notes = [
        f"{num_launches(own.kernels):.0f} kernels a step; the profiler made the step "
        f"{own.profiled_wall / summary.step:.2f}× as long, kernel times are the device's own"
    ]
    graph, static = others.get("hf-graph"), others.get("hf-static")
    if summary.key.runtime == "hf-graph":
        return [*parts, *_replay_parts(summary, own.busy)], "residual", notes
    if summary.key.runtime == "hf-static":
        static = summary
    replayed = None if graph is None else _device_time(graph)
    if graph is None or static is None or replayed is None:
        notes.append("run hf-static and hf-graph beside it to separate gaps, launch and host work")
        return parts, "not separated: launch side, gaps, host work", notes
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
    return parts, "residual", notes


def _kernel_parts(summary: Summary, own: _DeviceTime) -> list[Part]:
    """Device time above the bytes each kind of kernel has to move."""
    bandwidth = summary.device.reachable_bytes_per_second
    assert bandwidth is not None, "a reachable floor has a bandwidth"
    floors = {
        "linear": _linear_bytes(summary) / bandwidth,
        "attention": _kv_bytes(summary) / bandwidth,
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


def _kv_bytes(summary: Summary) -> int:
    return sum(flow.bytes for flow in summary.traffic.flows if flow.tensor.startswith("kv_cache"))


def _linear_bytes(summary: Summary) -> int:
    return summary.traffic.bytes - _kv_bytes(summary)
