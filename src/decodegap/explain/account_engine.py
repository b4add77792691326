"""The account of the engine's step: each op left out of the graph in turn.

Its kernels overlap by design (the next one's weights are in flight while this one ends), so their
times do not add up. What replays gain when an op is left out does, as far as ops do not share time;
what they share is the residual.
"""

from decodegap.explain.part import ATTENTION, LINEAR, SYNCHRONISE, Part, Split, reachable_bandwidth
from decodegap.explain.summary import Summary
from decodegap.runtime_name import split_runtime

WITHOUT = "replay_without_"
# Records of schema 1 and the first of schema 2 timed waited-for steps, with no step beside them
# from which nothing was left out.
_WITHOUT_WAITED = "without_"


def is_engine(summary: Summary) -> bool:
    return split_runtime(summary.key.runtime).name == "engine"


def has_op_probes(summary: Summary) -> bool:
    return any(summary.timing(prefix + "attend") for prefix in (WITHOUT, _WITHOUT_WAITED))


def engine_split(summary: Summary) -> Split:
    """Each op's cost above its bytes, and the wait for the device. A step without probes is not
    split: its kernels overlap, and transformers' launch nothing that it launches."""
    if not has_op_probes(summary):
        note = "no trial left an op out: measure it without --no-probes to split it"
        return Split(parts=(), residual_name="not split", notes=(note,))
    replay, whole = summary.timing("back_to_back"), summary.timing(WITHOUT + "nothing")
    prefix, notes = WITHOUT, ("ops: graph replays, back to back, with and without the op",)
    if whole is None:
        prefix, whole = _WITHOUT_WAITED, summary.step
        notes = (
            "ops were timed with a wait after each step and no whole step beside them: all may "
            "read too low by the same time, which the residual holds",
        )
    parts = [
        Part(
            f"{op} above its bytes",
            whole - without - floor,
            "step − the step without it",
            family=ATTENTION if op == "attend" else LINEAR,
        )
        for op, floor in _op_floors(summary).items()
        if (without := summary.timing(prefix + op)) is not None
    ]
    if replay is not None:
        parts.append(Part(SYNCHRONISE, summary.step - replay, "waited for − back to back"))
    return Split(parts=tuple(parts), residual_name="shared by ops, and gaps", notes=notes)


def _op_floors(summary: Summary) -> dict[str, float]:
    bandwidth = reachable_bandwidth(summary)
    return {op: num / bandwidth for op, num in summary.traffic.bytes_by_op().items()}
