"""The record: what one trial wrote. The waist of the project.

Measuring ends in records; explaining, planning and reporting begin with them. A record keeps raw
samples and their context, is written once, atomically, and never changed; every statistic is
computed when it is read. Seconds, bytes and bytes per second throughout.

Schema history
    1   first version
    2   Trial gains `arm`, `study` and `identity`, Record gains `placement`; all absent before
    3   Trial gains `process` and `profile`, Record gains `place_in_process`; before, each trial had
        its own process, and a profile of its steps. GpuState gains `max_sm_clock_hz`
    4   HostState gains `python_loop_seconds`, Environment `device_uuid`; not known before
"""

import secrets
from datetime import datetime
from typing import Any, Literal

import msgspec

from decodegap.predict.model import ModelShape

SCHEMA_VERSION = 4

# The longest a trial may be given: what clocks and timers of all systems take.
MOST_SECONDS = 7 * 24 * 3600.0
# The most trials of a cell, or pairs: all are planned before the first, and more are a slip.
MOST_TRIALS = 10_000

Outcome = Literal["ok", "wrong", "impossible", "oom", "timeout", "crash", "unavailable"]
Weights = Literal["synthetic", "checkpoint"]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every part of a record: an unknown key is an error."""


class Arm(_Part, frozen=True, kw_only=True):
    """Which side of a comparison a trial is for, all of it said before the trial ran.

    comparison: the comparison's name, one of its run. pair: trials of A and B with one number ran
    next to each other and are divided by each other. margin: the difference that does not matter.
    """

    comparison: str
    name: Literal["A", "B"]
    pair: int
    margin: float
    prediction: str | None = None
    prediction_sha256: str | None = None


class Trial(_Part, frozen=True, kw_only=True):
    """One measurement of a cell, as asked for: everything the worker needs and nothing else.

    `device` is torch's name of it (`cpu`, `cuda:0`); `order` counts trials of one run in the
    order they were started. `reachable_bytes_per_second` is the bandwidth measured before, against
    which an impossible time is refused. `study` is the hash of the study a trial belongs to and
    `identity` that of what it measures there, by which a resumed study knows it again. Trials of a
    run with one `process` are run in turn by one process, which loads the weights once; None: by a
    process of its own. `profile`: whether the kernels are listed, last of all; a trial without
    timed steps is there for that alone.
    """

    run: str
    order: int
    shape: ModelShape
    config: dict[str, Any]
    runtime: str
    format: str
    context: int
    num_warmup: int
    num_steps: int
    weights: Weights
    folder: str | None
    device: str
    seed: int
    timeout_seconds: float
    probes: bool = True
    reachable_bytes_per_second: float | None = None
    arm: Arm | None = None
    study: str | None = None
    identity: str | None = None
    process: str | None = None
    profile: bool = True

    @property
    def weights_words(self) -> str:
        """Which weights, for a person: that they are made up, or where they lie."""
        return "synthetic weights (seeded)" if self.weights == "synthetic" else str(self.folder)


class Verdict(_Part, frozen=True, kw_only=True):
    """Whether the runtime computed what the reference computes: transformers' forward pass
    without a cache, over the prompt and the very tokens that were decoded while timing.

    kl_divergence: nats, at the last timed step, reference against runtime.
    top1_agreement: share of the decoded tokens that are the reference's own first choice.
    worst_gap: the most a decoded token's reference logit lies below the reference's best, in
        standard deviations of that step's logits; 0 where all agree.
    """

    passed: bool
    kl_divergence: float
    top1_agreement: float
    worst_gap: float
    max_kl_divergence: float
    max_gap: float
    reference: str
    decoded_tokens: tuple[int, ...]


class KernelUse(_Part, frozen=True, kw_only=True):
    """One kernel (GPU) or operator (CPU) as the profiler saw it, per step."""

    name: str
    count: float
    seconds: float


class Profile(_Part, frozen=True, kw_only=True):
    """A few steps under the profiler: what ran. Times are inflated; `wall_seconds` says by how
    much. `busy_seconds` is the time at least one kernel was running, per step (GPU only)."""

    num_steps: int
    wall_seconds: float
    busy_seconds: float | None
    kernels: tuple[KernelUse, ...]


class Measurement(_Part, frozen=True, kw_only=True):
    """What a worker measured. Each list holds raw samples in the order taken.

    timings: by timer name (`timers.py`); `wall` is the headline, `warmup` its discarded start.
    probes: by intervention name (`interventions.py`): seconds of the step so changed.
    prepare_seconds: making the runtime on the loaded weights: buffers, stacking, compiling,
        capturing a graph.
    prefill_seconds: the prompt through it; in the first `hf-graph` records, those of 30 November
        2026, the capture too.
    held_bytes: sizes of the tensors the runtime really holds: `parameters`, `kv_cache`.
    """

    load_seconds: float
    prepare_seconds: float
    prefill_seconds: float
    timings: dict[str, list[float]]
    probes: dict[str, list[float]]
    verdict: Verdict
    profile: Profile | None
    held_bytes: dict[str, int]
    notes: tuple[str, ...] = ()


_NEAR_HIGHEST = 0.98


class GpuState(_Part, frozen=True, kw_only=True):
    """What NVML reads at one moment; None where the driver does not say."""

    sm_clock_hz: float | None
    max_sm_clock_hz: float | None = None
    memory_clock_hz: float | None
    temperature_celsius: float | None
    power_watts: float | None
    energy_joules: float | None
    throttle_reasons: tuple[str, ...] | None

    @property
    def slowed_by(self) -> tuple[str, ...]:
        """The driver's reasons, unless the clock is within 2 % of the highest: drivers name a power
        cap that lowers next to nothing."""
        clock, most = self.sm_clock_hz, self.max_sm_clock_hz
        near = clock is not None and most is not None and clock >= _NEAR_HIGHEST * most
        return () if near else self.throttle_reasons or ()


class HostState(_Part, frozen=True, kw_only=True):
    """The host at one moment. `load_average` is over the last minute, this trial's own start
    included; `busy_share` is what all processes took of all cores while the worker slept;
    `python_loop_seconds` is what a loop of plain Python takes, always the same: how fast the core
    is that paces an eager step."""

    load_average: float
    busy_share: float
    available_memory_bytes: int
    gpu: GpuState | None
    python_loop_seconds: float | None = None


class Environment(_Part, frozen=True, kw_only=True):
    """Where a trial ran. `device_uuid` tells one GPU from another of its kind; a CPU has none."""

    device_name: str
    device_uuid: str | None = None
    driver: str | None
    device_memory_bytes: int | None
    derived_bandwidth_bytes_per_second: float | None
    host_cpu: str
    num_cpus: int
    cpu_limit: float | None
    memory_limit_bytes: int | None
    num_threads: int
    os: str
    python: str
    packages: dict[str, str]
    before: HostState
    after: HostState


class Placement(_Part, frozen=True, kw_only=True):
    """Which node of a cluster ran a trial, and whether one was lost in the middle of it before."""

    node: str
    retried: bool


class Record(_Part, frozen=True, kw_only=True):
    """One trial's whole outcome. `seconds` is what the parent waited for it; no `placement`: on
    the machine that was asked. `place_in_process` counts the trials its process had run before; all
    but the first found the weights loaded, so their `load_seconds` is 0."""

    schema_version: int = SCHEMA_VERSION
    id: str
    trial: Trial
    outcome: Outcome
    reason: str | None
    started_at: datetime
    seconds: float
    measurement: Measurement | None
    environment: Environment | None
    placement: Placement | None = None
    place_in_process: int = 0

    @property
    def wall_samples(self) -> list[float]:
        """Timed steps in seconds; only a record with outcome `ok` has any."""
        if self.outcome != "ok" or self.measurement is None:
            return []
        return self.measurement.timings["wall"]


def new_id() -> str:
    """A name no other record has."""
    return secrets.token_hex(6)
