"""A part of an account, its names, and the bytes each kind of work has to move."""

import msgspec

from decodegap.explain.summary import Summary

FLOOR = "reachable floor"
SYNCHRONISE = "synchronise and read back"
GAPS = "gaps between kernels"
LAUNCH = "launch side"
NEW_LENGTHS = "work for each new KV length"
HOST = "host work"
HOST_BEYOND = "host work beyond hf-static's"
LINEAR, ATTENTION = "linears above their bytes", "attention above its bytes"


class Part(msgspec.Struct, frozen=True):
    """Seconds of a step with one cause, and how they were told apart. May be negative where an
    intervention gave time back. `family`: the part of other accounts that it is one of, if any."""

    name: str
    seconds: float
    basis: str
    family: str | None = None


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of runtime's step was split into, the floor aside; what the rest is called."""

    parts: tuple[Part, ...]
    residual_name: str
    notes: tuple[str, ...] = ()


def kv_bytes(summary: Summary) -> int:
    return sum(flow.bytes for flow in summary.traffic.flows if flow.tensor.startswith("kv_cache"))


def linear_bytes(summary: Summary) -> int:
    """All bytes but the cache's: norms, biases and logits are a rounding error beside weights."""
    return summary.traffic.bytes - kv_bytes(summary)


def reachable_bandwidth(summary: Summary) -> float:
    bandwidth = summary.device.reachable_bytes_per_second
    assert bandwidth is not None, "only steps with a reachable floor are split"
    return bandwidth
