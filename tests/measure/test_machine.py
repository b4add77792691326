"""What this machine is, against fake drivers, fake /proc files and fake container limits."""

import os
from contextlib import contextmanager
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
    last_level_cache_bytes,
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


# The order of GPUs: CUDA's own differs from the driver's where GPUs are unlike


@pytest.fixture
def driver(monkeypatch):
    """`driver("A", "B")`: a driver that lists GPUs of those names."""

    def install(*names):
        lib = FakeNvml()
        lib.__dict__ |= {
            "nvmlSystemGetDriverVersion": lambda: "580.0",
            "nvmlDeviceGetCount": lambda: len(names),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda index: names[index],
            "nvmlDeviceGetUUID": lambda index: f"GPU-{index}",
        }

        @contextmanager
        def answering():
            yield lib

        monkeypatch.setattr(machine, "nvml", answering)

    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return install


def test_to_list_gpus_settles_their_order(driver, monkeypatch):
    driver("T400", "NVIDIA H200")
    assert [gpu.name for gpu in list_gpus()] == ["T400", "NVIDIA H200"]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.name for gpu in list_gpus()] == ["NVIDIA H200"]
    assert local_device("cuda:0").name == "h200"


@pytest.mark.parametrize("visible", [None, "1", "0,1"])
def test_another_order_is_refused_where_it_could_mean_another_gpu(driver, monkeypatch, visible):
    driver("T400", "NVIDIA H200")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = (
        "CUDA_DEVICE_ORDER=FASTEST_FIRST numbers the 2 GPUs .* unset it, or set it to PCI_BUS_ID"
    )
    with pytest.raises(Unavailable, match=words):
        torch_device_name(None)
    assert os.environ["CUDA_DEVICE_ORDER"] == "FASTEST_FIRST"


def test_one_gpu_has_one_order(driver, monkeypatch):
    driver("NVIDIA H200")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert torch_device_name(None) == "cuda:0"


# The host


def write_caches(tree, cpu: int, *caches: tuple[int, str, str]) -> None:
    """What sysfs says of one CPU's caches: (level, size, CPUs that share it)."""
    for index, (level, size, shared) in enumerate(caches):
        folder = tree / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")


def test_last_level_caches_are_added_up_each_once(tmp_path):
    """Two dies of two cores: 32 MiB a die, which the cores of it share."""
    for cpu in range(4):
        die = "0-1" if cpu < 2 else "2-3"
        own = str(cpu)
        write_caches(
            tmp_path, cpu, (1, "32K", own), (1, "32K", own), (2, "1M", own), (3, "32768K", die)
        )
    assert last_level_cache_bytes(frozenset(range(4)), tmp_path) == 64 << 20
    assert last_level_cache_bytes(frozenset({0, 2}), tmp_path) == 64 << 20
    assert last_level_cache_bytes(frozenset({2, 3}), tmp_path) == 32 << 20  # what these two reach


def test_without_a_third_level_the_second_ones_are_the_last(tmp_path):
    """A core that reaches the last level counts with it, one that does not adds nothing."""
    write_caches(tmp_path, 0, (1, "64K", "0"), (2, "2M", "0-1"))
    write_caches(tmp_path, 1, (1, "64K", "1"), (2, "2M", "0-1"))
    write_caches(tmp_path, 2, (1, "64K", "2"), (2, "2M", "2"))
    assert last_level_cache_bytes(frozenset({0, 1, 2}), tmp_path) == 4 << 20
    write_caches(tmp_path, 3, (1, "64K", "3"), (2, "1M", "3"), (3, "1G", "3"))
    assert last_level_cache_bytes(frozenset({0, 1, 2, 3}), tmp_path) == 1 << 30


def test_where_caches_are_not_told_they_are_not_known(tmp_path):
    assert last_level_cache_bytes(frozenset({0}), tmp_path) is None
    write_caches(tmp_path, 1, (3, "", "1"))
    assert last_level_cache_bytes(frozenset({1}), tmp_path) is None


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
