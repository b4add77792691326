"""How fast this device's memory can be read: the denominator of the reachable floor.

A read-only stream over a buffer several times the last-level cache, in a few shapes, best of all.
Measured in a fresh process and kept per device and driver, so that one figure serves a machine.
"""

import os
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import msgspec

from decodegap.errors import Unavailable
from decodegap.files import write_over
from decodegap.measure.machine import Gpu, describe_host, gpu_of, list_gpus, local_device
from decodegap.measure.parent import require_ok, run_worker
from decodegap.predict.device import Device, match_runtime_name, with_measured
from decodegap.units import format_bytes

_TIMEOUT_SECONDS = 180.0


class StreamShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way of streaming and the seconds of each pass over the buffer."""

    name: str
    samples: list[float]


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A measured bandwidth, with every sample of every shape. `driver` is the GPU driver's
    version, or the operating system's on a CPU; `num_threads` is 0 on a GPU."""

    device_name: str
    driver: str
    num_threads: int
    buffer_bytes: int
    measured_at: datetime
    torch: str
    shapes: tuple[StreamShape, ...]

    @property
    def bytes_per_second(self) -> float:
        return self.buffer_bytes / min(min(shape.samples) for shape in self.shapes)

    @property
    def figure_and_source(self) -> tuple[float, str]:
        """For `with_measured`: bytes per second, and how they were read."""
        best = min(self.shapes, key=lambda shape: min(shape.samples))
        return self.bytes_per_second, f"{best.name} over {format_bytes(self.buffer_bytes)}"


class BandwidthJob(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe's worker is asked."""

    device: str


def reachable_bandwidth(torch_device: str, again: bool = False) -> Bandwidth:
    """The bandwidth of this device: from the cache, else measured now and cached.

    Raises:
        DecodegapError: the probe failed.
    """
    path = cache_path(*device_identity(torch_device))
    known = read_bandwidth(path)
    if known is not None and not again:
        return known
    measured = probe_bandwidth(torch_device)
    write_over(msgspec.json.format(msgspec.json.encode(measured)), path)
    return measured


def probe_bandwidth(torch_device: str) -> Bandwidth:
    """Measure now, in a fresh process.

    Raises:
        Unavailable: torch is not installed.
    """
    if find_spec("torch") is None:
        raise Unavailable("measuring needs torch: pip install 'decodegap[measure]'")
    job = msgspec.json.encode(BandwidthJob(device=torch_device))
    ended = run_worker("decodegap.measure.bandwidth_worker", job, _TIMEOUT_SECONDS)
    message = require_ok(ended, "the bandwidth probe", _TIMEOUT_SECONDS)
    return msgspec.json.decode(message, type=Bandwidth)


def cached_bandwidth(torch_device: str) -> Bandwidth | None:
    """What is known of this device without measuring."""
    return read_bandwidth(cache_path(*device_identity(torch_device)))


def local_device_with_bandwidth(torch_device: str) -> Device:
    """This machine's device, with its bandwidth if that was ever measured. Measures nothing."""
    device, known = local_device(torch_device), cached_bandwidth(torch_device)
    return device if known is None else with_measured(device, *known.figure_and_source)


def with_local_bandwidths(devices: Sequence[Device]) -> list[Device]:
    """Catalogue rows; one of which this machine has such a device, with the bandwidth measured
    here. Asks the driver once: starting it takes longer than all the rest of a floor."""
    gpus = list_gpus()
    return [_with_local_bandwidth(device, gpus) for device in devices]


def _with_local_bandwidth(device: Device, gpus: Sequence[Gpu]) -> Device:
    for gpu in gpus:
        known = read_bandwidth(cache_path(gpu.name, gpu.driver))
        if known is not None and match_runtime_name(gpu.name, {device.name: device}):
            return with_measured(device, known.bytes_per_second, "measured on this machine")
    return device


def device_identity(torch_device: str) -> tuple[str, str]:
    """(name, driver): what a cached bandwidth belongs to. A CPU's depends on how many cores
    this process may use."""
    if torch_device == "cpu":
        host = describe_host()
        return f"{host.cpu} {host.num_cpus} cores", host.os
    gpu = gpu_of(torch_device)
    return gpu.name, gpu.driver


def cache_path(device_name: str, driver: str) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    text = f"{device_name} {driver}".lower()
    slug = "".join(char if char.isalnum() else "-" for char in text)
    return Path(root) / "decodegap" / "bandwidth" / f"{slug}.json"


def read_bandwidth(path: Path) -> Bandwidth | None:
    """A cached bandwidth; None when there is none, or one that cannot be read (measure again)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Bandwidth)
    except (OSError, msgspec.DecodeError):
        return None
