"""Where a trial runs, as it is before and after: versions, clocks, throttling, power, load."""

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import psutil

from decodegap import __version__
from decodegap.errors import Unavailable
from decodegap.measure.machine import ask, describe_host, gpu_of, nvml
from decodegap.record import Environment, GpuState, HostState

PACKAGES = (
    "torch",
    "transformers",
    "triton",
    "safetensors",
    "numpy",
    "bitsandbytes",
    "gptqmodel",
    "torchao",
    "flash-attn",
    "flashinfer-python",
)


def package_versions() -> dict[str, str]:
    """Installed versions of the packages that can change a step, our own told apart by its source:
    records made before and after a change of it must not pool under one version number."""
    found = {"decodegap": f"{__version__}+src.{_own_source_hash()}"}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


_PACKAGE = Path(__file__).parents[1]
_STEP_FOLDERS = ("measure", "engine")  # what makes a step and times it
_SOURCE_SUFFIXES = {".py", ".toml"}
_HASH_CHARACTERS = 8


@cache
def _own_source_hash() -> str:
    """Of the source that this process runs from. Read once: it can change on disk meanwhile."""
    return source_hash(_PACKAGE)


def source_hash(package: Path) -> str:
    """The start of the sha256 over the relative path and bytes of each source file below the
    folders of `package` that make a step, in the order of their paths."""
    paths = [path for folder in _STEP_FOLDERS for path in (package / folder).rglob("*")]
    sources = {
        path.relative_to(package).as_posix(): path
        for path in paths
        if path.suffix in _SOURCE_SUFFIXES and path.is_file()
    }
    digest = hashlib.sha256()
    for name, path in sorted(sources.items()):
        data = path.read_bytes()
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:_HASH_CHARACTERS]


_LISTEN_SECONDS = 0.2


def host_state(torch_device: str) -> HostState:
    """The host, and the GPU if one is measured, at this moment. Sleeps to hear other work."""
    return HostState(
        load_average=psutil.getloadavg()[0],
        busy_share=psutil.cpu_percent(interval=_LISTEN_SECONDS) / 100,
        available_memory_bytes=psutil.virtual_memory().available,
        gpu=None if torch_device == "cpu" else gpu_state(gpu_of(torch_device).index),
        python_loop_seconds=python_loop_seconds(),
    )


_LOOP_ROUNDS, _LOOP_LENGTH = 9, 20_000


def python_loop_seconds() -> float:
    """Median of a few runs of a fixed loop of plain Python, about a millisecond each. A neighbour
    on the same core, or a lower clock, slows it as it slows a step that Python launches."""
    return median(_time_loop() for _ in range(_LOOP_ROUNDS))


def _time_loop() -> float:
    start = perf_counter()
    total = 0
    for number in range(_LOOP_LENGTH):
        total += number & 7
    return perf_counter() - start


def gpu_state(index: int) -> GpuState | None:
    """What NVML reads now; None without a driver."""
    try:
        with nvml() as lib:
            return _read(lib, lib.nvmlDeviceGetHandleByIndex(index))
    except Unavailable:
        return None


def describe_environment(
    torch_device: str, num_threads: int, before: HostState, after: HostState
) -> Environment:
    host = describe_host()
    gpu = None if torch_device == "cpu" else gpu_of(torch_device)
    return Environment(
        device_name=host.cpu if gpu is None else gpu.name,
        device_uuid=None if gpu is None else gpu.uuid,
        driver=None if gpu is None else gpu.driver,
        device_memory_bytes=host.memory_bytes if gpu is None else gpu.memory_bytes,
        derived_bandwidth_bytes_per_second=None if gpu is None else gpu.derived_bandwidth,
        host_cpu=host.cpu,
        num_cpus=host.num_cpus,
        cpu_limit=host.cpu_limit,
        memory_limit_bytes=host.memory_limit_bytes,
        num_threads=num_threads,
        os=host.os,
        python=host.python,
        packages=package_versions(),
        before=before,
        after=after,
    )


def _read(lib: Any, handle: Any) -> GpuState:
    sm_mhz = ask(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_SM)
    max_sm_mhz = ask(lib.nvmlDeviceGetMaxClockInfo, handle, lib.NVML_CLOCK_SM)
    memory_mhz = ask(lib.nvmlDeviceGetClockInfo, handle, lib.NVML_CLOCK_MEM)
    milliwatts = ask(lib.nvmlDeviceGetPowerUsage, handle)
    millijoules = ask(lib.nvmlDeviceGetTotalEnergyConsumption, handle)
    temperature = ask(lib.nvmlDeviceGetTemperature, handle, lib.NVML_TEMPERATURE_GPU)
    return GpuState(
        sm_clock_hz=None if sm_mhz is None else sm_mhz * 1e6,
        max_sm_clock_hz=None if max_sm_mhz is None else max_sm_mhz * 1e6,
        memory_clock_hz=None if memory_mhz is None else memory_mhz * 1e6,
        temperature_celsius=temperature,
        power_watts=None if milliwatts is None else milliwatts / 1e3,
        energy_joules=None if millijoules is None else millijoules / 1e3,
        throttle_reasons=_throttle_reasons(lib, handle),
    )


# NVML's bits, spelled as nvidia-smi does. Idle and application clocks are not throttling.
_THROTTLE_BITS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


def _throttle_reasons(lib: Any, handle: Any) -> tuple[str, ...] | None:
    mask = ask(lib.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    if mask is None:
        return None
    return tuple(reason for bit, reason in _THROTTLE_BITS.items() if mask & bit)
