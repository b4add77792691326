"""What it costs, where the cache grows, that torch chooses the attention kernel.

A growing cache meets a KV length at each step that no step has had before. A kernel whose library
makes a plan for each length pays for that on the host, in every step: the kernels are as fast as
another's and the step is not. Two things show it: the same lengths a second time in one process,
and a sibling that names its kernel, in the same run.
"""

from collections.abc import Iterator, Sequence

import msgspec

from decodegap.explain.device_time import DeviceTime, device_time
from decodegap.explain.findings import Cell, Finding
from decodegap.explain.kernels import kind_of
from decodegap.explain.summary import Summary
from decodegap.grouping import grouped
from decodegap.runtime_name import RuntimeName, split_runtime
from decodegap.units import format_seconds

_GROWING_CACHE = "hf-eager"
_OPTION, _TORCH_CHOOSES = "sdpa", "auto"
_LEAST_SPEEDUP = 1.1
_LARGE_SHARE = 0.1


def findings_on_attention(cells: Sequence[Cell]) -> list[Finding]:
    """Advice on each cell of one run that spends more than a tenth of its step on new lengths; and
    on each that left the choice to torch, if the fastest of those that did not is faster by more
    than a tenth."""
    runtimes = grouped(cells, lambda cell: cell.summary.key.runtime).values()
    found = [finding for of_runtime in runtimes for finding in _cost_of_new_lengths(of_runtime)]
    for cell in filter(_leaves_it_to_torch, cells):
        named = min(_siblings(cell, cells), key=lambda one: one.summary.step, default=None)
        if named is not None and cell.summary.step > _LEAST_SPEEDUP * named.summary.step:
            found.append(_cost_of_choice(cell, named))
    return found


def _cost_of_new_lengths(of_runtime: Sequence[Cell]) -> Iterator[Finding]:
    """One finding for a runtime's cells that have it, whatever their contexts."""
    shares = {cell.name: _new_length_share(cell) for cell in of_runtime}
    large = {name: share for name, share in shares.items() if share > _LARGE_SHARE}
    if not large:
        return
    of_cells = [cell for cell in of_runtime if cell.name in large]
    least, most = (f"{share:.0%}" for share in (min(large.values()), max(large.values())))
    own = device_time(of_cells[0].summary)
    whose = ": cuDNN's plans" if own is not None and _runs_cudnn(own) else ""
    yield Finding(
        severity="advice",
        cells=tuple(large),
        text=f"{least if least == most else f'{least} to {most}'} of a step go into its KV length "
        f"being new to the process{whose}; met a second time, a length costs none of it",
        hint="name a kernel that keeps nothing per length (hf-eager?sdpa=flash), or take a static "
        "cache; a benchmark that decodes the same lengths twice does not see it",
    )


def _new_length_share(cell: Cell) -> float:
    seconds = cell.summary.new_length_seconds
    return 0.0 if seconds is None else seconds / cell.summary.step


def _leaves_it_to_torch(cell: Cell) -> bool:
    return _runtime(cell).name == _GROWING_CACHE and not _names_kernel(cell)


def _siblings(cell: Cell, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that differ from this one in naming a kernel, and in nothing else."""
    alike = [other for other in cells if _all_but_kernel(other) == _all_but_kernel(cell)]
    return [other for other in alike if _names_kernel(other)]


def _names_kernel(cell: Cell) -> bool:
    return _runtime(cell).options.get(_OPTION, _TORCH_CHOOSES) != _TORCH_CHOOSES


def _runtime(cell: Cell) -> RuntimeName:
    return split_runtime(cell.summary.key.runtime)


def _all_but_kernel(cell: Cell) -> object:
    runtime = _runtime(cell)
    rest = {key: value for key, value in runtime.options.items() if key != _OPTION}
    plain = RuntimeName(runtime.name, rest).text
    return msgspec.structs.replace(cell.summary.key, runtime=plain)


def _cost_of_choice(cell: Cell, named: Cell) -> Finding:
    own, other = device_time(cell.summary), device_time(named.summary)
    name = named.summary.key.runtime
    saved = cell.summary.step - named.summary.step
    plans = own is not None and _runs_cudnn(own)
    text = (
        f"torch's own choice of attention kernel{' (cuDNN)' if plans else ''} takes "
        f"{format_seconds(saved)} a step more than {name}"
    )
    hint = f"take {name}"
    if own is not None and other is not None:
        busy = own.busy - other.busy
        host = saved - busy
        text += f": {format_seconds(host)} host work, {format_seconds(busy)} device busy time"
        hint += f": {_reason(host, busy, plans)}"
    if _overlap(cell.summary, named.summary):
        hint += "; trials of both overlap, so see first whether `decodegap compare` agrees"
    return Finding(severity="advice", cells=(cell.name,), text=text, hint=hint)


def _runs_cudnn(own: DeviceTime) -> bool:
    """Whether attention was cuDNN's, which the records show by its kernels' names alone."""
    names = [kernel.name for kernel in own.kernels if kind_of(kernel.name) == "attention"]
    return any("cudnn" in name.lower() for name in names)


def _reason(host: float, busy: float, plans: bool) -> str:
    if busy > host:
        return "its kernels keep the device busy for less time"
    if plans:
        return "cuDNN plans for every new KV length, and a growing cache has one each step"
    return "it costs the host less"


def _overlap(slow: Summary, fast: Summary) -> bool:
    return min(slow.trial_medians) <= max(fast.trial_medians)
