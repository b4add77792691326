"""Which machine this is, asked without torch: GPUs through NVML, the host through /proc."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import psutil

from decodegap.errors import Unavailable
from decodegap.predict.catalogue import catalogue_devices
from decodegap.predict.device import Device, derive_device, match_runtime_name


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its driver describes it. `index` is the driver's own; `derived_bandwidth` is
    memory clock × 2 × bus width."""

    index: int
    name: str
    uuid: str
    driver: str
    memory_bytes: int | None
    free_bytes: int | None
    compute_capability: str | None
    derived_bandwidth: float | None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """The host. Limits are the container's (cgroup), None where there is none. The last-level cache
    is all that the CPUs this process may use can reach."""

    cpu: str
    num_cpus: int
    cpu_limit: float | None
    memory_bytes: int
    available_bytes: int
    memory_limit_bytes: int | None
    last_level_cache_bytes: int | None
    os: str
    python: str


@contextmanager
def nvml() -> Iterator[Any]:
    """NVML's bindings, initialised.

    Raises:
        Unavailable: no NVIDIA driver, or one that refuses to answer.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Unavailable(f"no NVIDIA driver answers here ({error})") from None
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def ask(call: Any, *args: Any) -> Any:
    """One NVML query, or None where this device or driver does not support it."""
    import pynvml

    try:
        return call(*args)
    except pynvml.NVMLError:
        return None


# CUDA numbers GPUs the fastest first unless told otherwise, the driver by their place on the bus.
# On a host of unlike GPUs torch's `cuda:0` could be another card than the one that is named, probed
# and watched here. CUDA reads this once, when it starts, and `CUDA_VISIBLE_DEVICES` by it.
_ORDER, _BY_BUS = "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


def number_gpus_by_bus() -> None:
    """Have CUDA number GPUs as the driver does, in this process and in those it starts, unless the
    person has set an order. Comes before CUDA is first used."""
    os.environ.setdefault(_ORDER, _BY_BUS)


def list_gpus() -> list[Gpu]:
    """Every GPU this process may use, in torch's order, which this settles (`number_gpus_by_bus`);
    empty without one.

    Raises:
        Unavailable: the person has set another order, and there are several GPUs to confuse.
    """
    number_gpus_by_bus()
    try:
        with nvml() as lib:
            driver = _text(lib.nvmlSystemGetDriverVersion())
            handles = map(lib.nvmlDeviceGetHandleByIndex, range(lib.nvmlDeviceGetCount()))
            gpus = [_gpu(lib, index, handle, driver) for index, handle in enumerate(handles)]
    except Unavailable:
        return []
    order = os.environ[_ORDER]
    if len(gpus) > 1 and order != _BY_BUS:
        raise Unavailable(
            f"{_ORDER}={order} numbers the {len(gpus)} GPUs of this machine in an order that is "
            f"not known here: unset it, or set it to {_BY_BUS}, the order of nvidia-smi"
        )
    return visible_gpus(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


def visible_gpus(gpus: list[Gpu], visible: str | None) -> list[Gpu]:
    """The GPUs a `CUDA_VISIBLE_DEVICES` value leaves, in its order.

    As the driver reads it: indices or the start of a UUID; the list ends at the first bad entry.
    """
    if visible is None:
        return gpus
    chosen = []
    for entry in (part.strip() for part in visible.split(",")):
        matching = [
            gpu for gpu in gpus if entry == str(gpu.index) or (entry and gpu.uuid.startswith(entry))
        ]
        if len(matching) != 1:
            break
        chosen.append(matching[0])
    return chosen


def _gpu(lib: Any, index: int, handle: Any, driver: str) -> Gpu:
    memory = ask(lib.nvmlDeviceGetMemoryInfo, handle)
    capability = ask(lib.nvmlDeviceGetCudaComputeCapability, handle)
    clock_mhz = ask(lib.nvmlDeviceGetMaxClockInfo, handle, lib.NVML_CLOCK_MEM)
    bus_bits = ask(lib.nvmlDeviceGetMemoryBusWidth, handle)
    return Gpu(
        index=index,
        name=_text(lib.nvmlDeviceGetName(handle)),
        uuid=_text(lib.nvmlDeviceGetUUID(handle)),
        driver=driver,
        memory_bytes=None if memory is None else int(memory.total),
        free_bytes=None if memory is None else int(memory.free),
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        derived_bandwidth=(clock_mhz * 1e6 * 2 * bus_bits / 8 if clock_mhz and bus_bits else None),
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


_CPU_TREE = Path("/sys/devices/system/cpu")


def describe_host() -> Host:
    memory = psutil.virtual_memory()
    cpus = frozenset(os.sched_getaffinity(0))
    return Host(
        cpu=_cpu_model(),
        num_cpus=len(cpus),
        cpu_limit=_cgroup_cpus(),
        memory_bytes=memory.total,
        available_bytes=memory.available,
        memory_limit_bytes=_cgroup_memory(),
        last_level_cache_bytes=last_level_cache_bytes(cpus, _CPU_TREE),
        os=platform.platform(),
        python=platform.python_version(),
    )


def _cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("model name", "Model\t")):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _cgroup_cpus() -> float | None:
    for line in _lines("/sys/fs/cgroup/cpu.max"):
        quota, period = line.split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _cgroup_memory() -> int | None:
    for line in _lines("/sys/fs/cgroup/memory.max"):
        return None if line == "max" else int(line)
    return None


@cache  # neither changes while a process runs, and a large host has a thousand files to read
def last_level_cache_bytes(cpus: frozenset[int], tree: Path) -> int | None:
    """All last-level caches that `cpus` reach, each counted once: a chip of several dies has one a
    die, a host of several chips one a chip. None where sysfs, whose CPUs are in `tree`, does not
    say."""
    caches = {}
    for cpu in cpus:
        for folder in (tree / f"cpu{cpu}" / "cache").glob("index*"):
            level, shared, size = (
                _said(folder / name) for name in ("level", "shared_cpu_list", "size")
            )
            if level and size:
                caches[int(level), shared] = _cache_size(size)
    last = max((level for level, _ in caches), default=None)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def _said(path: Path) -> str:
    """What a file of one line says; nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _cache_size(text: str) -> int:
    """`32768K` in bytes."""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def torch_device_name(requested: str | None) -> str:
    """torch's name of the device to measure: the one asked for, else the first GPU, else the CPU.

    Raises:
        Unavailable: a GPU was asked for and is not here.
    """
    gpus = list_gpus()
    if requested is None:
        return "cuda:0" if gpus else "cpu"
    if requested == "cpu":
        return requested
    kind, _, index = requested.partition(":")
    if kind != "cuda" or not (index or "0").isdigit():
        raise Unavailable(f"--device {requested!r} is none of: cpu, cuda, cuda:N")
    if int(index or "0") >= len(gpus):
        have = f"{len(gpus)} GPU(s)" if gpus else "no GPU"
        raise Unavailable(
            f"--device {requested}: this machine shows {have}; see `decodegap doctor`"
        )
    return f"cuda:{index or '0'}"


def gpu_of(torch_device: str) -> Gpu:
    """The GPU torch calls `cuda:N`."""
    return list_gpus()[int(torch_device.partition(":")[2] or 0)]


def local_device(torch_device: str) -> Device:
    """The catalogue row of this machine's device, or a derived one for a device not in it."""
    if torch_device == "cpu":
        host = describe_host()
        return derive_device(host.cpu, None, host.memory_limit_bytes or host.memory_bytes)
    gpu = gpu_of(torch_device)
    row = match_runtime_name(gpu.name, catalogue_devices())
    return row or derive_device(gpu.name, gpu.derived_bandwidth, gpu.memory_bytes)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Torch's own class for a GPU; the CPU's allocator has none."""
    return type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


def free_memory_bytes(torch_device: str) -> int | None:
    """Memory free on the device now; on a CPU no more than the container may use."""
    if torch_device != "cpu":
        return gpu_of(torch_device).free_bytes
    host = describe_host()
    limits = (host.available_bytes, host.memory_limit_bytes)
    return min(limit for limit in limits if limit is not None)
