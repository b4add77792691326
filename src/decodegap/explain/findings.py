"""What stands out in a run, as values with a hint: computed from records, shown last."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from decodegap.explain.account import Account
from decodegap.explain.part import (
    ATTENTION,
    FLOOR,
    HOST,
    HOST_BEYOND,
    LAUNCH,
    LINEAR,
    NEW_LENGTHS,
    Part,
)
from decodegap.explain.summary import Summary
from decodegap.grouping import grouped
from decodegap.record import Environment, HostState
from decodegap.units import format_bandwidth, format_hertz, format_seconds

Severity = Literal["advice", "warning"]

_NOISY_CV = 0.03
_BUSY_SHARE = 0.1
_LONG_TAIL = 1.5
_HOST_PACED_SHARE = 0.8
_UNSTEADY_HOST = 1.1
_SMALL_SHARE = 0.1


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen, in which cells, and what to do about it."""

    severity: Severity
    cells: tuple[str, ...]
    text: str
    hint: str


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One cell with its account, if a reachable floor is known."""

    summary: Summary
    account: Account | None

    @property
    def name(self) -> str:
        return f"{self.summary.key.runtime} at {self.summary.key.context}"


def findings_on(cells: Sequence[Cell]) -> list[Finding]:
    """Advice on each group of cells that differ in the runtime alone, then what makes the figures
    less certain; findings that differ only in the cell are one."""
    advice = [finding for group in _comparable(cells) for finding in _advice(group)]
    warnings = [finding for cell in cells for finding in _warnings(cell)]
    return [*advice, *merge_findings(warnings), *_unsteady_host(cells)]


def _comparable(cells: Iterable[Cell]) -> list[list[Cell]]:
    groups = grouped(cells, lambda cell: msgspec.structs.replace(cell.summary.key, runtime=""))
    return list(groups.values())


def _advice(group: Sequence[Cell]) -> Iterator[Finding]:
    best = min(group, key=lambda cell: cell.summary.step)
    worst = max(group, key=lambda cell: cell.summary.step)
    step = best.summary.step
    versus = f", {worst.summary.step / step:.2f}× as fast as {worst.summary.key.runtime}"
    yield Finding(
        severity="advice",
        cells=(best.name,),
        text=f"{format_seconds(step)} a step, {format_hertz(step)}"
        + (versus if worst is not best else ""),
        hint=f"deploy {best.summary.key.runtime}, the fastest of those measured"
        if worst is not best
        else "measure another runtime beside it",
    )
    yield from merge_findings(_host_paced(cell) for cell in group if _is_host_paced(cell))
    yield from _what_is_left(best)


def _is_host_paced(cell: Cell) -> bool:
    twin = cell.summary.timing("twin")
    return twin is not None and twin > _HOST_PACED_SHARE * cell.summary.step


def _host_paced(cell: Cell) -> Finding:
    return Finding(
        severity="advice",
        cells=(cell.name,),
        text="the host sets the pace: the same calls on a model of almost no bytes take as long",
        hint="a faster memory would change nothing; fewer launches or a faster host CPU would",
    )


REMEDIES = {
    LAUNCH: "capture the step in a CUDA graph (hf-graph)",
    NEW_LENGTHS: "name an attention kernel that keeps nothing per length (?sdpa=flash)",
    HOST: "keep Python out of the step: a static cache and a captured graph",
    HOST_BEYOND: "keep Python out of the step: a static cache and a captured graph",
    LINEAR: "these matrix-vector kernels do not stream: use an engine built for one row; a 4-bit "
    "format pays only with kernels that do",
    ATTENTION: "attention reads more than the positions attended, or computes slowly: allocate no "
    "longer a cache than needed and try another attention kernel",
    "cache copies (kernels)": "the cache is copied or its heads are repeated in memory each step: "
    "use attention that reads it in place",
    "norms and elementwise (kernels)": "many small kernels: fuse them (torch.compile, an engine)",
}


def _what_is_left(best: Cell) -> Iterator[Finding]:
    """The largest part of the fastest step, or that memory itself is what is left."""
    if best.account is None:
        return
    step = best.account.step
    floor = sum(part.seconds for part in best.account.parts if part.name == FLOOR)
    above = [part for part in best.account.parts if part.name != FLOOR]
    if step - floor < _SMALL_SHARE * step:
        text = f"memory sets the pace: the floor is {floor / step:.0%} of the step"
        hint = "only fewer bytes help: a smaller format, a shorter context, a smaller model"
    elif above:
        left = Part(best.account.residual_name, best.account.residual, "")
        largest = max([*above, left], key=lambda part: part.seconds)
        text = (
            f"the floor is {floor / step:.0%} of the step; the largest part above it is "
            f"{largest.name}: {format_seconds(largest.seconds)}, {largest.seconds / step:.0%}"
        )
        hint = "see the notes of the account" if largest is left else "see the account"
        hint = REMEDIES.get(largest.name, hint)
    else:
        return  # nothing was told apart but the floor
    yield Finding(severity="advice", cells=(best.name,), text=text, hint=hint)


def merge_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Findings that say the same of several cells become one."""
    merged: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        key = (finding.text, finding.hint)
        cells = merged[key].cells if key in merged else ()
        merged[key] = msgspec.structs.replace(finding, cells=cells + finding.cells)
    return list(merged.values())


def _warnings(cell: Cell) -> Iterator[Finding]:
    summary = cell.summary
    cv = summary.between_trial_cv
    if cv is None:
        text = "one trial: no spread between processes is known"
        yield _warning(cell, text, "--trials 3 or more")
    elif cv > _NOISY_CV:
        hint = "more --trials narrow it; steps paced by the host vary with what the host does"
        yield _warning(cell, f"trial medians differ by more than {_NOISY_CV:.0%} (CV)", hint)
    if summary.p99 > _LONG_TAIL * summary.step:
        text = f"p99 is more than {_LONG_TAIL}× the median step"
        yield _warning(cell, text, "plan a control loop on p99, not on the median")
    yield from _environment_warnings(cell)


def _warning(cell: Cell, text: str, hint: str) -> Finding:
    return Finding(severity="warning", cells=(cell.name,), text=text, hint=hint)


def _unsteady_host(cells: Sequence[Cell]) -> Iterator[Finding]:
    """What a host did beside cells whose trials differ: the same Python, slower."""
    noisy = [cell for cell in cells if (cell.summary.between_trial_cv or 0.0) > _NOISY_CV]
    loops = [
        state.python_loop_seconds
        for cell in noisy
        for environment in _environments(cell)
        for state in (environment.before, environment.after)
        if state.python_loop_seconds is not None
    ]
    if loops and max(loops) > _UNSTEADY_HOST * min(loops):
        yield Finding(
            severity="warning",
            cells=tuple(cell.name for cell in noisy),
            text="the host was not always as fast: beside these trials a loop of plain Python "
            f"took {format_seconds(min(loops))} to {format_seconds(max(loops))}",
            hint="steps paced by the host vary with it, whatever the GPU does: keep other work and "
            "other tenants off its cores, and compare such steps inside one run only",
        )


def _environments(cell: Cell) -> list[Environment]:
    return [r.environment for r in cell.summary.records if r.environment is not None]


def _environment_warnings(cell: Cell) -> Iterator[Finding]:
    environments = _environments(cell)
    num_cards = len({env.device_uuid for env in environments if env.device_uuid is not None})
    if num_cards > 1:
        text = f"its trials ran on {num_cards} GPUs of one kind"
        yield _warning(cell, text, "their spread holds what cards and hosts differ by")
    reasons = sorted({reason for env in environments for reason in _throttling(env)})
    if reasons:
        text = f"the driver said the GPU was held back ({', '.join(reasons)})"
        yield _warning(cell, text, "compare the clocks in the records; cool it or raise its limit")
    if any(env.before.busy_share > _BUSY_SHARE for env in environments):
        text = f"other work took more than {_BUSY_SHARE:.0%} of this host's cores"
        yield _warning(cell, text, "stop other programs and measure again")
    device = cell.summary.device
    if device.derived and device.bandwidth_bytes_per_second is not None:
        figure = format_bandwidth(device.bandwidth_bytes_per_second)
        text = f"{device.title} is not in the catalogue: its bandwidth, {figure}, is derived"
        yield _warning(cell, text, "add a sourced row to facts/devices.toml")


def _throttling(environment: Environment) -> Iterator[str]:
    states: tuple[HostState, ...] = (environment.before, environment.after)
    for state in states:
        if state.gpu is not None:
            yield from state.gpu.slowed_by
