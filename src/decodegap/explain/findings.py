"""What stands out in a summary, as values with a hint: computed from records, shown last."""

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from decodegap.explain.account import ATTENTION, FLOOR, HOST, LAUNCH, LINEAR, Account
from decodegap.explain.summary import Summary
from decodegap.record import HostState
from decodegap.units import format_bandwidth, format_seconds

Severity = Literal["advice", "warning"]

_NOISY_CV = 0.03
_BUSY_SHARE = 0.1
_LONG_TAIL = 1.5
_HOST_PACED_SHARE = 0.8


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence of fact and one of what to do about it."""

    severity: Severity
    text: str
    hint: str


def findings_on(
    summary: Summary, account: Account | None, others: Mapping[str, Summary]
) -> list[Finding]:
    """Advice first, then what makes the figures less certain."""
    advice = [
        *_faster_runtime(summary, others),
        *_host_paced(summary),
        *_largest_part(summary, account),
    ]
    return [*advice, *_warnings(summary)]


def _faster_runtime(summary: Summary, others: Mapping[str, Summary]) -> Iterator[Finding]:
    best = min([summary, *others.values()], key=lambda other: other.step)
    if best.step < 0.95 * summary.step:
        yield Finding(
            severity="advice",
            text=f"{best.key.runtime} runs the same step in {format_seconds(best.step)}, "
            f"{summary.step / best.step:.2f}× as fast as {summary.key.runtime}",
            hint=f"deploy {best.key.runtime}",
        )


def _host_paced(summary: Summary) -> Iterator[Finding]:
    twin = summary.timing("twin")
    if twin is not None and twin > _HOST_PACED_SHARE * summary.step:
        yield Finding(
            severity="advice",
            text=f"{summary.key.runtime}: the same calls on a model of almost no bytes take "
            f"{format_seconds(twin)}: the host sets the pace",
            hint="a faster memory would change nothing, a faster host CPU or fewer launches would",
        )


_REMEDIES = {
    LAUNCH: "capture the step in a CUDA graph (hf-graph)",
    HOST: "keep Python out of the step: a static cache and a captured graph",
    LINEAR: "the matrix-vector kernels do not stream: use an engine built for one row, or fewer "
    "bytes (a 4-bit format) only with kernels that do",
    ATTENTION: "attention reads more than the keys and values attended, or computes them slowly: "
    "allocate no longer a cache than needed and try another attention kernel",
}


def _largest_part(summary: Summary, account: Account | None) -> Iterator[Finding]:
    if account is None:
        return
    candidates = [part for part in account.parts if part.name != FLOOR]
    floor = next(part for part in account.parts if part.name == FLOOR)
    if not candidates:
        return
    floor_share = floor.seconds / account.step
    part = max(candidates, key=lambda candidate: candidate.seconds)
    share = part.seconds / account.step
    if share < 0.1:
        yield Finding(
            severity="advice",
            text=f"memory sets the pace: the floor is {floor_share:.0%} of the step",
            hint="only fewer bytes help: a smaller format, a shorter context, a smaller model",
        )
        return
    yield Finding(
        severity="advice",
        text=f"{summary.key.runtime}: {part.name} takes {format_seconds(part.seconds)}, "
        f"{share:.0%} of the step; the floor is {floor_share:.0%}",
        hint=_REMEDIES.get(part.name, "see the account"),
    )


def _warnings(summary: Summary) -> Iterator[Finding]:
    name = summary.key.runtime
    cv = summary.between_trial_cv
    if cv is None:
        yield Finding(
            severity="warning",
            text=f"{name}: one trial, so no spread between processes is known",
            hint="--trials 3 or more",
        )
    elif cv > _NOISY_CV:
        yield Finding(
            severity="warning",
            text=f"{name}: trials differ by {cv:.1%} (CV of their medians)",
            hint="close other work, or raise --trials",
        )
    if summary.p99 > _LONG_TAIL * summary.step:
        yield Finding(
            severity="warning",
            text=f"{name}: p99 is {summary.p99 / summary.step:.1f}× the median",
            hint="plan a control loop on p99, and look for other work on this host",
        )
    yield from _environment_warnings(summary)


def _environment_warnings(summary: Summary) -> Iterator[Finding]:
    environments = [r.environment for r in summary.records if r.environment is not None]
    reasons = {reason for env in environments for reason in _throttling(env.before, env.after)}
    if reasons:
        yield Finding(
            severity="warning",
            text=f"{summary.key.runtime}: the GPU was held back ({', '.join(sorted(reasons))})",
            hint="cool it or raise its power limit, then measure again",
        )
    busiest = max((env.before.busy_share for env in environments), default=0.0)
    if busiest > _BUSY_SHARE:
        yield Finding(
            severity="warning",
            text=f"{summary.key.runtime}: other work took up to {busiest:.0%} of this host's cores",
            hint="stop other programs; host-paced steps suffer first",
        )
    if summary.device.derived and summary.device.bandwidth_bytes_per_second is not None:
        yield Finding(
            severity="warning",
            text=f"{summary.device.title} is not in the catalogue: its bandwidth, "
            f"{format_bandwidth(summary.device.bandwidth_bytes_per_second)}, is derived",
            hint="add a sourced row to facts/devices.toml",
        )


def _throttling(*states: HostState) -> Iterator[str]:
    for state in states:
        if state.gpu is not None and state.gpu.throttle_reasons is not None:
            yield from state.gpu.throttle_reasons
