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
    note = "measured without all interventions: the residual holds what they would tell apart"
    return Split(
        parts=tuple(parts),
        residual_name="cache copies, norms, elementwise",
        notes=() if len(parts) == 3 else (note,),
    )
