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
    HOST,
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

_STATIC, _GRAPH = "hf-static", "hf-graph"
# Their step is one replay already: there is no launching to tell apart from it.
_REPLAYED = {_GRAPH, "hf-compile"}


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
    if runtime.name in _REPLAYED:
        parts += _replay_parts(summary, own.busy)
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
    static_step, how = _static_step(summary, static)
    parts.append(Part(LAUNCH, static_step - graph.step, f"{how} − {needed[1]}"))
    notes.append(_launch_note(static, needed, replayed.kernels))
    if static is not summary:
        parts += _host_parts(summary, static, own)
        notes.append(
            f"{summary.key.runtime} and {needed[0]} do not run the same kernels: the difference of "
            f"their device time is taken out of host work; {_what_host_work_holds(summary)}"
        )
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


def _static_step(summary: Summary, static: Summary) -> tuple[float, str]:
    """Seconds of the step with a static cache, and where they were measured: in turn with this
    runtime's own, in its processes, or else in others, where the host may have had another pace."""
    in_turn = summary.in_turn_seconds("static_cache")
    if in_turn is None:
        return static.step, static.key.runtime
    return in_turn, f"{static.key.runtime} in turn with it"


def _host_parts(summary: Summary, static: Summary, own: DeviceTime) -> list[Part]:
    static_time = device_time(static)
    if static_time is None:
        return []
    static_step, how = _static_step(summary, static)
    seconds = summary.step - static_step - (own.busy - static_time.busy)
    taken_out = ["device time"]
    for part in _new_length_parts(summary):
        seconds -= part.seconds
        taken_out.append("new lengths")
    basis = f"{summary.key.runtime} − {how}, less {' and '.join(taken_out)}"
    return [Part(HOST, seconds, basis)]


def _new_length_parts(summary: Summary) -> list[Part]:
    seconds = summary.new_length_seconds
    if seconds is None:
        return []
    return [Part(NEW_LENGTHS, seconds, "steps over lengths seen, in turn with new ones")]


def _what_host_work_holds(summary: Summary) -> str:
    if summary.new_length_seconds is None:
        return "what remains mixes cache growth with attention planning"
    if summary.in_turn_seconds("static_cache") is None:
        return "what remains is the growing of the cache, and what the processes differ by"
    return "what remains is the growing of the cache"


def _launch_note(
    static: Summary, names: Sequence[str], graph_kernels: tuple[KernelUse, ...]
) -> str:
    static_time, both = device_time(static), " and ".join(names)
    if static_time is not None and same_kernels(static_time.kernels, graph_kernels):
        return f"{both} launch the same kernels, equally often"
    return f"{both} do not launch the same kernels: launch side is approximate"
