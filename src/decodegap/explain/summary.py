"""What the trials of one cell say together. Statistics are computed here, on reading.

The unit of evidence is the trial, not the step: trials of a cell come from processes of their own,
steps of one process share its memory layout, its clocks and its luck. The step's figure is the
median of the trials' medians and its spread is theirs; p95 and p99 are over all timed steps, since
a control loop meets each of them.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import median

import msgspec

from decodegap.errors import DecodegapError
from decodegap.grouping import grouped
from decodegap.predict.device import Device
from decodegap.predict.floor import Floor, step_floor
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import Traffic, step_traffic
from decodegap.record import Record


class UnlikeRecords(DecodegapError):
    """Records that must not be pooled; the message names the difference."""


class CellKey(msgspec.Struct, frozen=True, order=True):
    """What makes two trials the same cell."""

    model: str
    runtime: str
    format: str
    context: int
    weights: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of one cell. Seconds; ratios are of medians.

    records: the trials that count. profiled: those that were run to list the kernels and timed
    nothing. trial_medians: one per trial that counts.
    """

    key: CellKey
    device: Device
    records: tuple[Record, ...]
    profiled: tuple[Record, ...] = ()
    trial_medians: tuple[float, ...]
    p95: float
    p99: float
    num_samples: int
    traffic: Traffic
    floor: Floor

    @property
    def step(self) -> float:
        return median(self.trial_medians)

    @property
    def shares_processes(self) -> bool:
        """Whether its trials ran in processes that other cells' trials ran in too."""
        return any(record.trial.process is not None for record in self.records)

    @property
    def between_trial_cv(self) -> float | None:
        """Standard deviation ÷ mean of the trial medians; None for a single trial."""
        return coefficient_of_variation(self.trial_medians)

    @property
    def achieved_bytes_per_second(self) -> float:
        return self.traffic.bytes / self.step

    def ratio(self, floor: float | None) -> float | None:
        """R_floor against one of the floors."""
        return None if floor is None else floor / self.step

    def timing(self, name: str) -> float | None:
        """Median over trials of the median of a timer or probe; None where none has it."""
        medians = [
            median(samples)
            for record in self.records
            if record.measurement is not None
            for samples in (_samples(record, name),)
            if samples
        ]
        return median(medians) if medians else None

    def in_turn_seconds(self, name: str) -> float | None:
        """What a step changed in one respect would have taken among the timed ones: of this step,
        the share that it took of the unchanged steps it took turns with. Neighbours, and a share:
        hosts double their pace for seconds. None where no trial has such steps."""
        shares = [
            median(step / own for own, step in zip(unchanged, changed, strict=True))
            for record in self.records
            for unchanged in (_samples(record, "lengths_new"),)
            for changed in (_samples(record, name),)
            if unchanged and changed
        ]
        return median(shares) * self.step if shares else None

    @property
    def new_length_seconds(self) -> float | None:
        """What a step takes longer because its KV length is new to the process."""
        seen = self.in_turn_seconds("lengths_seen")
        return None if seen is None else self.step - seen


def _samples(record: Record, name: str) -> Sequence[float]:
    assert record.measurement is not None
    return record.measurement.timings.get(name) or record.measurement.probes.get(name) or []


def key_of(record: Record) -> CellKey:
    trial = record.trial
    return CellKey(trial.shape.name, trial.runtime, trial.format, trial.context, trial.weights)


def group_by_cell(records: Iterable[Record]) -> dict[CellKey, list[Record]]:
    """Records by cell, cells in the order they are first met."""
    return grouped(records, key_of)


def summarise(records: Sequence[Record], device: Device) -> Summary | None:
    """Pool the trials of one cell; None if not one of them has a time.

    Raises:
        UnlikeRecords: they come from different devices, versions or protocols.
    """
    timed = [record for record in records if record.wall_samples]
    profiled = [record for record in records if record.outcome == "ok" and not record.wall_samples]
    if not timed:
        return None
    refuse_unlike(timed)
    refuse_unlike([timed[0], *profiled], but=("warm-up steps", "timed steps"))
    trial = timed[0].trial
    samples = sorted(sample for record in timed for sample in record.wall_samples)
    fmt = get_format(trial.format)
    return Summary(
        key=key_of(timed[0]),
        device=device,
        records=tuple(timed),
        profiled=tuple(profiled),
        trial_medians=tuple(median(record.wall_samples) for record in timed),
        p95=percentile(samples, 0.95),
        p99=percentile(samples, 0.99),
        num_samples=len(samples),
        traffic=step_traffic(trial.shape, trial.context, fmt),
        floor=step_floor(trial.shape, trial.context, fmt, device),
    )


def refuse_unlike(records: Sequence[Record], but: Sequence[str] = ()) -> None:
    """Raises UnlikeRecords, naming the first difference in a condition that is none of `but`."""
    for record in records[1:]:
        first, other = conditions(records[0]), conditions(record)
        for what in first | other:
            if what not in but and first.get(what) != other.get(what):
                raise UnlikeRecords(
                    f"records {records[0].id} and {record.id} differ in {what} "
                    f"({_difference(first.get(what), other.get(what))}); put them in folders of "
                    "their own"
                )


def _difference(first: object, other: object) -> str:
    """Two values in words; of two structures what differs, not all they hold."""
    if not (isinstance(first, msgspec.Struct) and isinstance(other, msgspec.Struct)):
        return f"{first} and {other}"
    ours, theirs = msgspec.structs.asdict(first), msgspec.structs.asdict(other)
    return ", ".join(
        f"{name} {value} and {theirs.get(name)}"
        for name, value in ours.items()
        if theirs.get(name) != value
    )


def conditions(record: Record) -> dict[str, object]:
    """Everything that must be equal for two trials to be pooled."""
    trial, environment = record.trial, record.environment
    same: dict[str, object] = {
        "cell": key_of(record),
        "model shape": trial.shape,
        "warm-up steps": trial.num_warmup,
        "timed steps": trial.num_steps,
        "process": "its own" if trial.process is None else "one a round",
    }
    if environment is not None:
        same |= {
            "device": environment.device_name,
            "driver": environment.driver,
            "host CPU": environment.host_cpu,
            "threads": environment.num_threads,
        }
        same |= {f"{name} version": version for name, version in environment.packages.items()}
    return same


def coefficient_of_variation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return math.sqrt(variance) / mean


def percentile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank percentile of sorted values: a value that was really seen."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
