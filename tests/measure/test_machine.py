"""What this machine is, against fake drivers, fake /proc files and fake container limits."""

from types import SimpleNamespace

import msgspec
import psutil
import pynvml
import pytest

from decodegap.errors import Unavailable
from decodegap.measure import machine
from decodegap.measure.machine import (
    Gpu,
    describe_host,
    free_memory_bytes,
    list_gpus,
    local_device,
    nvml,
    torch_device_name,
    visible_gpus,
)


def gpu(index: int, uuid: str, name: str = "NVIDIA H200") -> Gpu:
    return Gpu(
        index=index,
        name=name,
        uuid=uuid,
        driver="580.0",
        memory_bytes=141 << 30,
        free_bytes=140 << 30,
        compute_capability="9.0",
        derived_bandwidth=4.8e12,
    )


GPUS = [gpu(0, "GPU-aaa1"), gpu(1, "GPU-aab2"), gpu(2, "GPU-ccc3")]


@pytest.mark.parametrize(
    "visible, indices",
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 1 ", [2, 1]),
        ("GPU-ccc3", [2]),
        ("GPU-c,0", [2, 0]),
        ("GPU-aa", []),  # two cards begin so
        ("0,7,1", [0]),  # the list ends at the first bad entry
        ("-1", []),
        ("0,-1,1", [0]),
        ("no", []),
    ],
)
def test_visible_devices_are_read_as_the_driver_reads_them(visible, indices):
    assert [gpu.index for gpu in visible_gpus(GPUS, visible)] == indices


@pytest.fixture
def gpus(monkeypatch):
    def set_gpus(gpus):
        monkeypatch.setattr(machine, "list_gpus", lambda: gpus)

    return set_gpus


def test_the_first_gpu_is_the_default_and_a_cpu_without_one(gpus):
    gpus(GPUS)
    assert torch_device_name(None) == "cuda:0"
    gpus([])
    assert torch_device_name(None) == "cpu"


@pytest.mark.parametrize(
    "asked, name", [("cpu", "cpu"), ("cuda", "cuda:0"), ("cuda:0", "cuda:0"), ("cuda:2", "cuda:2")]
)
def test_the_device_asked_for(gpus, asked, name):
    gpus(GPUS)
    assert torch_device_name(asked) == name


@pytest.mark.parametrize("asked", ["gpu", "cuda:x", "cuda:-1", "tpu:0", "", "CUDA 0"])
def test_a_device_torch_has_no_such_name_for(gpus, asked):
    gpus(GPUS)
    with pytest.raises(Unavailable, match="none of: cpu, cuda, cuda:N"):
        torch_device_name(asked)


@pytest.mark.parametrize("there, words", [([], "no GPU"), (GPUS, "3 GPU")])
def test_a_gpu_that_is_not_here(gpus, there, words):
    gpus(there)
    with pytest.raises(Unavailable, match=rf"shows {words}.*decodegap doctor"):
        torch_device_name("cuda:3")


def test_a_gpu_of_the_catalogue_is_its_row(gpus):
    gpus(GPUS)
    assert local_device("cuda:1").name == "h200"
    assert not local_device("cuda:1").derived


def test_another_gpu_is_derived_from_its_driver(gpus):
    gpus([gpu(0, "GPU-x", name="NVIDIA Something New")])
    device = local_device("cuda:0")
    assert device.derived
    assert device.bandwidth_bytes_per_second == 4.8e12
    assert device.memory_bytes == 141 << 30


# NVML


class FakeNvml:
    """A driver of one H100: 2619 MHz on a bus of 5120 bits."""

    NVML_CLOCK_MEM = 2

    def __init__(self, **unsupported: bool) -> None:
        self.unsupported = unsupported

    def _answer(self, what, value):
        if self.unsupported.get(what):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return value

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return self._answer("memory", SimpleNamespace(total=85_520_809_984, free=85_000_000_000))

    def nvmlDeviceGetCudaComputeCapability(self, handle):  # noqa: N802
        return self._answer("capability", (9, 0))

    def nvmlDeviceGetMaxClockInfo(self, handle, which):  # noqa: N802
        return self._answer("clock", 2619)

    def nvmlDeviceGetMemoryBusWidth(self, handle):  # noqa: N802
        return self._answer("bus", 5120)

    def nvmlDeviceGetName(self, handle):  # noqa: N802
        return b"NVIDIA H100 80GB HBM3"

    def nvmlDeviceGetUUID(self, handle):  # noqa: N802
        return "GPU-x"


def test_a_bandwidth_is_derived_from_clock_and_bus():
    described = machine._gpu(FakeNvml(), 0, None, "580.0")
    assert described.derived_bandwidth == 2619e6 * 2 * 5120 / 8  # 3.352e12, the sheet says 3.35
    assert described.name == "NVIDIA H100 80GB HBM3"
    assert described.compute_capability == "9.0"
    assert described.free_bytes == 85_000_000_000


@pytest.mark.parametrize(
    "what, field",
    [
        ("memory", "free_bytes"),
        ("capability", "compute_capability"),
        ("clock", "derived_bandwidth"),
        ("bus", "derived_bandwidth"),
    ],
)
def test_what_a_driver_does_not_say_is_not_known(what, field):
    described = machine._gpu(FakeNvml(**{what: True}), 0, None, "580.0")
    assert getattr(described, field) is None


def test_without_a_driver_there_are_no_gpus(monkeypatch):
    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert list_gpus() == []
    with pytest.raises(Unavailable, match="no NVIDIA driver"), nvml():
        pass


# The host


def files(monkeypatch, contents: dict[str, str]):
    monkeypatch.setattr(machine, "_lines", lambda path: contents.get(path, "").splitlines())


@pytest.mark.parametrize(
    "text, cpus", [("max 100000", None), ("150000 100000", 1.5), ("200000 100000", 2.0), ("", None)]
)
def test_a_container_s_cpu_limit(monkeypatch, text, cpus):
    files(monkeypatch, {"/sys/fs/cgroup/cpu.max": text})
    assert describe_host().cpu_limit == cpus


@pytest.mark.parametrize("text, limit", [("max", None), ("1073741824", 1 << 30), ("", None)])
def test_a_container_s_memory_limit(monkeypatch, text, limit):
    files(monkeypatch, {"/sys/fs/cgroup/memory.max": text})
    assert describe_host().memory_limit_bytes == limit


def test_the_cpu_s_name(monkeypatch):
    files(monkeypatch, {"/proc/cpuinfo": "processor : 0\nmodel name\t: Some CPU @ 3 GHz\n"})
    assert describe_host().cpu == "Some CPU @ 3 GHz"


def test_a_jetson_s_name(monkeypatch):
    files(monkeypatch, {"/proc/cpuinfo": "processor : 0\n\nModel\t: NVIDIA Orin: 8 cores\n"})
    assert describe_host().cpu == "NVIDIA Orin: 8 cores"


def test_the_host_is_described_as_psutil_sees_it():
    host = describe_host()
    assert host.memory_bytes == psutil.virtual_memory().total
    assert host.num_cpus == len(psutil.Process().cpu_affinity())
    assert host.cpu


@pytest.mark.parametrize("limit, free", [(None, 500), (100, 100), (900, 500)])
def test_free_memory_of_a_cpu_is_no_more_than_the_container_s(monkeypatch, limit, free):
    host = msgspec.structs.replace(describe_host(), available_bytes=500, memory_limit_bytes=limit)
    monkeypatch.setattr(machine, "describe_host", lambda: host)
    assert free_memory_bytes("cpu") == free


def test_free_memory_of_a_gpu_is_the_driver_s(gpus):
    gpus(GPUS)
    assert free_memory_bytes("cuda:2") == 140 << 30
