"""The two arms of a comparison, as records: which trials are a pair, and whether both arms ran the
same kernels."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

import msgspec

from decodegap.explain.kernels import same_kernels
from decodegap.record import KernelUse, Record


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of each arm, run next to each other. Seconds are the trials' medians."""

    index: int
    a: Record
    b: Record

    @property
    def a_seconds(self) -> float:
        return median(self.a.wall_samples)

    @property
    def b_seconds(self) -> float:
        return median(self.b.wall_samples)

    @property
    def ratio(self) -> float:
        """Step of A ÷ step of B."""
        return self.a_seconds / self.b_seconds


class KernelIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the arms ran the same kernels equally often. `only_a` and `only_b` name the kernels
    of the first pair that differ, the longest first."""

    answer: Literal["same", "different", "same in some pairs", "not profiled"]
    num_same: int
    num_profiled: int
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()


def pairs_of(records: Sequence[Record]) -> tuple[list[Pair], int]:
    """The complete pairs in their order, each run by one machine; and how many are left out because
    two machines ran them. Of two records of one trial the later counts."""
    arms: dict[str, dict[int, Record]] = {"A": {}, "B": {}}
    for record in sorted(records, key=lambda record: record.started_at):
        arm = record.trial.arm
        if arm is not None and record.wall_samples:
            arms[arm.name][arm.pair] = record
    complete = [
        Pair(index=index, a=arms["A"][index], b=arms["B"][index])
        for index in sorted(arms["A"].keys() & arms["B"].keys())
    ]
    pairs = [pair for pair in complete if _node(pair.a) == _node(pair.b)]
    return pairs, len(complete) - len(pairs)


def _node(record: Record) -> str | None:
    return None if record.placement is None else record.placement.node


def dropped(records: Sequence[Record], pairs: Sequence[Pair]) -> list[Record]:
    """Records without a time whose pair has therefore no ratio."""
    complete = {pair.index for pair in pairs}
    return [
        record
        for record in records
        if record.trial.arm is not None
        and not record.wall_samples
        and record.trial.arm.pair not in complete
    ]


def kernel_identity(pairs: Sequence[Pair]) -> KernelIdentity:
    """Compare kernel names and counts within each pair. Only between arms with the same kernels is
    a difference in time one in launching them."""
    profiled = [pair for pair in pairs if _kernels(pair.a) and _kernels(pair.b)]
    if not profiled:
        return KernelIdentity(answer="not profiled", num_same=0, num_profiled=0)
    unlike = [pair for pair in profiled if not same_kernels(_kernels(pair.a), _kernels(pair.b))]
    num_same = len(profiled) - len(unlike)
    if not unlike:
        return KernelIdentity(answer="same", num_same=num_same, num_profiled=len(profiled))
    first_a, first_b = _kernels(unlike[0].a), _kernels(unlike[0].b)
    return KernelIdentity(
        answer="same in some pairs" if num_same else "different",
        num_same=num_same,
        num_profiled=len(profiled),
        only_a=_not_in(first_a, first_b),
        only_b=_not_in(first_b, first_a),
    )


def _not_in(kernels: Sequence[KernelUse], others: Sequence[KernelUse]) -> tuple[str, ...]:
    """Names launched more often here than there; copies and fills, which `same_kernels` passes
    over, are not named either."""
    there = {kernel.name: kernel.count for kernel in others}
    return tuple(
        kernel.name
        for kernel in kernels
        if kernel.count > there.get(kernel.name, 0.0)
        and not kernel.name.lower().startswith(("memcpy", "memset"))
    )


def _kernels(record: Record) -> tuple[KernelUse, ...]:
    measurement = record.measurement
    if measurement is None or measurement.profile is None:
        return ()
    return measurement.profile.kernels
