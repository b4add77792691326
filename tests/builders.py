"""Small things many tests need: configs, trials, records, a run of the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from decodegap.predict.hf_config import from_hf
from decodegap.predict.model import ModelShape
from decodegap.record import (
    Environment,
    GpuState,
    HostState,
    KernelUse,
    Measurement,
    Profile,
    Record,
    Trial,
    Verdict,
    new_id,
)

TINY_LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def tiny(**changes: Any) -> dict[str, Any]:
    """The tiny config with some settings changed; a setting of None is left out."""
    return {key: value for key, value in (TINY_LLAMA | changes).items() if value is not None}


def write_config(folder: Path, config: Mapping[str, Any] = TINY_LLAMA) -> Path:
    """`folder`/config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


def make_trial(config: Mapping[str, Any] = TINY_LLAMA, **changes: Any) -> Trial:
    """A short CPU trial of the tiny model."""
    settings: dict[str, Any] = {
        "run": "run0",
        "order": 0,
        "shape": from_hf(dict(config), "tiny"),
        "config": dict(config),
        "runtime": "hf-eager",
        "format": "fp32",
        "context": 16,
        "num_warmup": 1,
        "num_steps": 3,
        "weights": "synthetic",
        "folder": None,
        "device": "cpu",
        "seed": 0,
        "timeout_seconds": 60.0,
        "probes": False,
    }
    return Trial(**settings | changes)


PASSED = Verdict(
    passed=True,
    kl_divergence=1e-4,
    top1_agreement=1.0,
    worst_gap=0.0,
    max_kl_divergence=2e-2,
    max_gap=0.25,
    reference="made up",
    decoded_tokens=(1, 2, 3, 4, 5),
)


def make_profile(
    kernels: Mapping[str, float], busy: float | None = None, wall: float = 0.02
) -> Profile:
    """Seconds by kernel name, each launched once a step."""
    uses = tuple(KernelUse(name=name, count=1.0, seconds=s) for name, s in kernels.items())
    return Profile(num_steps=3, wall_seconds=wall, busy_seconds=busy, kernels=uses)


def make_host_state(
    busy_share: float = 0.0,
    throttled: Sequence[str] | None = None,
    python_loop_seconds: float | None = None,
) -> HostState:
    """`throttled` None: no GPU."""
    gpu = None
    if throttled is not None:
        gpu = GpuState(
            sm_clock_hz=1.9e9,
            memory_clock_hz=3.2e9,
            temperature_celsius=40.0,
            power_watts=200.0,
            energy_joules=None,
            throttle_reasons=tuple(throttled),
        )
    return HostState(
        load_average=0.5,
        busy_share=busy_share,
        available_memory_bytes=8 << 30,
        gpu=gpu,
        python_loop_seconds=python_loop_seconds,
    )


def make_environment(**changes: Any) -> Environment:
    settings: dict[str, Any] = {
        "device_name": "Some CPU",
        "driver": None,
        "device_memory_bytes": 16 << 30,
        "derived_bandwidth_bytes_per_second": None,
        "host_cpu": "Some CPU",
        "num_cpus": 4,
        "cpu_limit": None,
        "memory_limit_bytes": None,
        "num_threads": 4,
        "os": "Linux",
        "python": "3.11.7",
        "packages": {"torch": "2.13.0", "transformers": "5.24.0"},
        "before": make_host_state(),
        "after": make_host_state(),
    }
    return Environment(**settings | changes)


GPU_ENVIRONMENT = {
    "device_name": "NVIDIA H200",
    "driver": "580.0",
    "before": make_host_state(throttled=()),
    "after": make_host_state(throttled=()),
}


def make_record(
    samples: Sequence[float] = (0.010, 0.011, 0.012),
    *,
    trial: Trial | None = None,
    timings: Mapping[str, list[float]] | None = None,
    probes: Mapping[str, list[float]] | None = None,
    profile: Profile | None = None,
    verdict: Verdict = PASSED,
    environment: Environment | None = None,
    minute: int = 0,
    **trial_changes: Any,
) -> Record:
    """A record whose timed steps took `samples`; other keywords change its trial."""
    trial = trial or make_trial(reachable_bytes_per_second=50e9, **trial_changes)
    measurement = Measurement(
        load_seconds=0.1,
        prepare_seconds=0.01,
        prefill_seconds=0.02,
        timings={"warmup": [0.02], "wall": list(samples), **(timings or {})},
        probes=dict(probes or {}),
        verdict=verdict,
        profile=profile,
        held_bytes={"parameters": 1, "kv_cache": 1},
    )
    return Record(
        id=new_id(),
        trial=trial,
        outcome="ok",
        reason=None,
        started_at=datetime(2026, 11, 30, 12, tzinfo=UTC) + timedelta(minutes=minute),
        seconds=1.0,
        measurement=measurement,
        environment=environment or make_environment(),
    )


def make_gpu_record(samples: Sequence[float] = (0.010,), **changes: Any) -> Record:
    """As `make_record`, on the catalogue's H200 at 4.5 TB/s."""
    settings = {"device": "cuda:0", "reachable_bytes_per_second": 4.5e12}
    # Here what was measured, not whether it is.
    trial_keys = set(Trial.__struct_fields__) - {"probes", "profile"}
    trial = make_trial(**settings | {k: v for k, v in changes.items() if k in trial_keys})
    rest = {key: value for key, value in changes.items() if key not in trial_keys}
    rest.setdefault("environment", make_environment(**GPU_ENVIRONMENT))
    return make_record(samples, trial=trial, **rest)


def failed_record(outcome: str, reason: str, **trial_changes: Any) -> Record:
    """A record without a time."""
    return msgspec.structs.replace(
        make_record(**trial_changes),
        outcome=outcome,
        reason=reason,
        measurement=None,
        environment=None,
    )


def shape_of(config: Mapping[str, Any], name: str = "made-up") -> ModelShape:
    return from_hf(dict(config), name)


def write_known_bandwidth(bytes_per_second: float) -> float:
    """Leave a probe's result for this CPU in the cache that XDG_CACHE_HOME names."""
    from decodegap.measure.bandwidth import Bandwidth, StreamShape, cache_path, device_identity

    name, driver = device_identity("cpu")
    known = Bandwidth(
        device_name=name,
        driver=driver,
        num_threads=2,
        buffer_bytes=1 << 30,
        measured_at=datetime(2026, 11, 30, tzinfo=UTC),
        torch="2.13.0",
        shapes=(StreamShape(name="sum", samples=[(1 << 30) / bytes_per_second] * 2),),
    )
    path = cache_path(name, driver)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(known))
    return known.bytes_per_second


class ProgramEnd(NamedTuple):
    """How a run of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run_program(*arguments: object, timeout: float = 120, **environment: str) -> ProgramEnd:
    """The command line in a process of its own."""
    ended = subprocess.run(
        [sys.executable, "-m", "decodegap", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=os.environ | environment,
        check=False,
    )
    return ProgramEnd(ended.returncode, ended.stdout, ended.stderr)


def assert_refused(ended: ProgramEnd, *words: str) -> None:
    """One line that says what is wrong and what to do; exit code 2; nothing else."""
    lines = ended.err.splitlines()
    assert ended.code == 2, ended
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("decodegap: ")
    for word in words:
        assert word in lines[0]
    assert ended.out == ""


def one_by_one(run):
    """What runs the trials of a process, from what makes one's record."""
    return lambda trials: (run(trial) for trial in trials)


def run_trial(trial):
    """The record of one trial in a real process of its own."""
    from decodegap.measure.parent import run_process

    (record,) = run_process([trial])
    return record
