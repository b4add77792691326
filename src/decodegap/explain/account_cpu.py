"""The account of a step on a CPU: host and memory take turns, so switching off subtracts."""

from decodegap.explain.part import (
    ATTENTION,
    HOST,
    LINEAR,
    Part,
    Split,
    kv_bytes,
    linear_bytes,
    reachable_bandwidth,
)
from decodegap.explain.summary import Summary

# What the residual holds of each part that was not told apart.
_TOLD_APART = {LINEAR: "linears", ATTENTION: "attention", HOST: "host work"}


def cpu_split(summary: Summary) -> Split:
    """Parts by switching one thing off at a time."""
    bandwidth = reachable_bandwidth(summary)
    parts = []
    linears, twin = summary.timing("linears"), summary.timing("twin")
    bypassed, twin_linears = summary.timing("no_attention"), summary.timing("twin_linears")
    weights, kv = linear_bytes(summary), kv_bytes(summary)
    if linears is not None:
        basis = "all linears alone, in order"
        parts.append(Part(LINEAR, linears - weights / bandwidth, basis))
    if bypassed is not None:
        basis = "step − the step with attention passed through"
        parts.append(Part(ATTENTION, summary.step - bypassed - kv / bandwidth, basis))
    if twin is not None and twin_linears is not None:
        basis = "the same calls on a model of almost no bytes, its linears left out"
        parts.append(Part(HOST, twin - twin_linears, basis))
    found = {part.name for part in parts}
    missing = [words for name, words in _TOLD_APART.items() if name not in found]
    note = "measured without all interventions: the residual holds what they would tell apart"
    return Split(
        parts=tuple(parts),
        residual_name=", ".join([*missing, "cache copies, norms, elementwise"]),
        notes=(note,) if missing else (),
    )
