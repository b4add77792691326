"""The account of the engine's step: each op left out of the graph in turn.

Its kernels overlap by design (the next one's weights are in flight while this one ends), so their
times do not add up. What a step gains when an op is left out does, as far as ops do not share time;
what they share is the residual.
"""

from decodegap.explain.part import SYNCHRONISE, Part, Split, reachable_bandwidth
from decodegap.explain.summary import Summary

WITHOUT = "without_"


def has_op_probes(summary: Summary) -> bool:
    return any(summary.timing(WITHOUT + op) is not None for op in summary.traffic.bytes_by_op())


def engine_split(summary: Summary) -> Split:
    """Each op's cost above its bytes, and the wait for the device."""
    bandwidth = reachable_bandwidth(summary)
    parts = []
    for op, num_bytes in summary.traffic.bytes_by_op().items():
        without = summary.timing(WITHOUT + op)
        if without is not None:
            above = summary.step - without - num_bytes / bandwidth
            parts.append(Part(f"{op} above its bytes", above, "step − the step without it"))
    replay = summary.timing("back_to_back")
    if replay is not None:
        parts.append(Part(SYNCHRONISE, summary.step - replay, "waited for − back to back"))
    return Split(parts=tuple(parts), residual_name="shared by ops, and gaps")
