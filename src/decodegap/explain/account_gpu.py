"""The account of a transformers step on a GPU: device time, replays, launches, host.

A runtime that names an attention kernel (`?sdpa=…`) is split against `hf-static` and `hf-graph`
that name the same one and no others: with another they launch, and wait for, something else.
"""

from collections.abc import Mapping, Sequence

from decodegap.explain.device_time import DeviceTime, device_time
from decodegap.explain.kernels import num_launches, same_kernels, seconds_by_kind
from decodegap.explain.part import (
    ATTENTION,
    GAPS,
    HOST_BEYOND,
    LAUNCH,
    LINEAR,
    NEW_LENGTHS,
    SYNCHRONISE,
    Part,
    Split,
    kv_bytes,
    linear_bytes,
    reachable_bandwidth,
)
from decodegap.explain.summary import Summary
from decodegap.record import KernelUse
from decodegap.runtime_name import RuntimeName, split_runtime
from decodegap.units import format_count

_STATIC, _GRAPH, _COMPILED = "hf-static", "hf-graph", "hf-compile"
# Their step is one replay already: there is no launching to tell apart from it.
_REPLAYED = {_GRAPH, _COMPILED}
# A static step this many times as long as its replay waits for the host, not for the device.
_HOST_PACED = 1.1


def gpu_split(summary: Summary, others: Mapping[str, Summary], untimed: Mapping[str, str]) -> Split:
    """Parts of a replayed step from its own replays, of an eager one with the others'."""
    own = device_time(summary)
    if own is None:
        note = "no trial has a kernel profile"
        return Split(parts=(), residual_name="not split", notes=(note,))
    parts = _kernel_parts(summary, own)
    runtime = split_runtime(summary.key.runtime)
    notes = [
        f"{num_launches(own.kernels):.0f} kernels a step; the profiler made the step "
        f"{own.profiled_wall / summary.step:.2f}× as long, kernel times are the device's own"
    ]
    if runtime.options.get("sdpa") == "math":
        notes.append("attention by plain matrix products: their kernels count among the linears'")
    if runtime.name == _COMPILED:
        notes.append(
            f"what torch.compile checks before each replay is in {SYNCHRONISE!r}: back to back it "
            "passes under the step before"
        )
    if runtime.name in _REPLAYED:
        parts += _replay_parts(summary, own.busy)
        notes += _profiled_slower(summary, own.busy)
        return Split(parts=tuple(parts), residual_name="residual", notes=tuple(notes))
    parts += _new_length_parts(summary)
    timed = {**others, summary.key.runtime: summary}
    needed = _arms_needed(summary)
    static, graph = (timed.get(name) for name in needed)
    replayed = None if graph is None else device_time(graph)
    if graph is None or static is None or replayed is None:
        notes.append(_why_not_separated(needed, timed, untimed))
        name = "not separated: launch side, gaps, host work"
        return Split(parts=tuple(parts), residual_name=name, notes=tuple(notes))
    parts += _replay_parts(graph, replayed.busy)
    notes += _profiled_slower(graph, replayed.busy)
    notes.append(_launch_note(static, needed, replayed.kernels))
    if static is summary:
        parts.append(Part(LAUNCH, static.step - graph.step, " − ".join(needed)))
    else:
        launch_and_host, note = _beside_static(summary, own, static, graph)
        parts += launch_and_host
        notes.append(note)
    return Split(parts=tuple(parts), residual_name="residual", notes=tuple(notes))


def _arms_needed(summary: Summary) -> list[str]:
    """`hf-static` and `hf-graph`, with the attention kernel of this runtime if it is torch's."""
    options = split_runtime(summary.key.runtime).options
    shared = {key: value for key, value in options.items() if key == "sdpa"}
    return [RuntimeName(name, shared).text for name in (_STATIC, _GRAPH)]


def _why_not_separated(
    needed: Sequence[str], timed: Mapping[str, Summary], untimed: Mapping[str, str]
) -> str:
    """What to run; or that it was run and has no time, as will be again where an attention kernel
    refuses the mask that a static cache needs."""
    what = "gaps, launch and host work"
    missing = [name for name in needed if name not in timed]
    ended = [f"{name} ended {untimed[name]}" for name in missing if name in untimed]
    if ended:
        return f"{' and '.join(ended)} in this run, so {what} are not separated"
    if missing:
        return f"run {' and '.join(missing)} beside it to separate {what}"
    return f"no kernel profile of {needed[1]} in this run, so {what} are not separated"


def _kernel_parts(summary: Summary, own: DeviceTime) -> list[Part]:
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


def _profiled_slower(graph: Summary, busy: float) -> list[str]:
    """Why gaps can be below zero."""
    replay = graph.timing("back_to_back")
    if replay is None or busy <= replay:
        return []
    return [
        f"under the profiler the kernels of {graph.key.runtime} took {busy / replay - 1:.1%} "
        f"longer than a whole replay without it: {GAPS} are below zero by that"
    ]


def _beside_static(
    summary: Summary, own: DeviceTime, static: Summary, graph: Summary
) -> tuple[list[Part], str]:
    """The launch side and the host work of a step that is neither static nor replayed, and a note.

    It and the static step differ in device time too. Where the host sets the pace of the static
    step, device time passes under its launches: the two steps then differ in host work alone, and
    less device time leaves more of the launches uncovered. Elsewhere it is in the difference.
    """
    in_turn = summary.in_turn_seconds("static_cache")
    static_step = static.step if in_turn is None else in_turn
    how = static.key.runtime if in_turn is None else f"{static.key.runtime} in turn"
    launch = static_step - graph.step
    static_time = device_time(static)
    if static_time is None:
        note = f"no kernel profile of {static.key.runtime} in this run: host work is not separated"
        return [Part(LAUNCH, launch, f"{how} − {graph.key.runtime}")], note
    less_device = static_time.busy - own.busy
    is_covered = static_step > _HOST_PACED * graph.step
    uncovered = max(less_device, -launch) if is_covered else 0.0
    new_lengths = summary.new_length_seconds or 0.0
    host = summary.step - static_step - new_lengths + less_device - uncovered
    taken_out = [] if is_covered else ["device time"]
    if summary.new_length_seconds is not None:
        taken_out.append("new lengths")
    less = f", less {' and '.join(taken_out)}" if taken_out else ""
    at_device_time = " at this device time" if is_covered else ""
    parts = [
        Part(LAUNCH, launch + uncovered, f"{how} − {graph.key.runtime}{at_device_time}"),
        Part(HOST_BEYOND, host, f"{summary.key.runtime} − {how}{less}"),
    ]
    fewer = num_launches(static_time.kernels) - num_launches(own.kernels)
    return parts, _host_note(summary, static.key.runtime, fewer, is_covered, in_turn is not None)


def _host_note(
    summary: Summary, static: str, fewer: float, is_covered: bool, is_in_turn: bool
) -> str:
    """What the difference to the static step holds."""
    more_or_fewer = "fewer" if fewer > 0 else "more"
    kernels, holds = "as many kernels as", ["a cache kept another way"]
    if round(fewer):
        kernels = f"{format_count(round(abs(fewer)), 'kernel')} {more_or_fewer} than"
        holds.append(f"{more_or_fewer} launches")
    if summary.new_length_seconds is None:
        holds.append("what a library does for each new KV length")
    if not is_in_turn:
        holds.append("what the processes differ by")
    paced = "the host sets the pace of both" if is_covered else "their device time is taken out"
    return (
        f"{summary.key.runtime} launches {kernels} {static}, and {paced}; {HOST_BEYOND}: "
        f"{', '.join(holds)}"
    )


def _new_length_parts(summary: Summary) -> list[Part]:
    seconds = summary.new_length_seconds
    if seconds is None:
        return []
    return [Part(NEW_LENGTHS, seconds, "steps over lengths seen, in turn with new ones")]


def _launch_note(
    static: Summary, names: Sequence[str], graph_kernels: tuple[KernelUse, ...]
) -> str:
    static_time, both = device_time(static), " and ".join(names)
    if static_time is not None and same_kernels(static_time.kernels, graph_kernels):
        return f"{both} launch the same kernels, equally often"
    return f"{both} do not launch the same kernels: launch side is approximate"
