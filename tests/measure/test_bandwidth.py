"""The bandwidth probe: the best of its shapes, kept per device and driver, else measured."""

from datetime import UTC, datetime

import msgspec
import pytest

from builders import write_known_bandwidth
from decodegap.errors import DecodegapError
from decodegap.measure import bandwidth, bandwidth_worker
from decodegap.measure.bandwidth import (
    Bandwidth,
    StreamShape,
    cache_path,
    cached_bandwidth,
    device_identity,
    reachable_bandwidth,
)
from decodegap.measure.parent import WorkerExit


def measured(**shapes: list[float]) -> Bandwidth:
    return Bandwidth(
        device_name="Some CPU",
        driver="Linux",
        num_threads=2,
        buffer_bytes=1000,
        measured_at=datetime(2026, 11, 30, tzinfo=UTC),
        torch="2.13.0",
        shapes=tuple(StreamShape(name=name, samples=s) for name, s in shapes.items()),
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def probes(monkeypatch):
    """Answers of the probe's process; the list says how often it was asked."""
    asked = []

    def answer(torch_device):
        asked.append(torch_device)
        return measured(sum=[2.0, 1.0 / len(asked)])

    monkeypatch.setattr(bandwidth, "probe_bandwidth", answer)
    return asked


def test_the_best_pass_of_the_best_shape_counts():
    found = measured(sum=[0.5, 0.4, 0.9], dot=[0.3, 0.25], max=[1.0])
    assert found.bytes_per_second == 1000 / 0.25
    assert found.figure_and_source == (1000 / 0.25, "dot over 1.00 kB")


def test_what_is_known_is_not_measured_again(cache, probes):
    first = reachable_bandwidth("cpu")
    assert reachable_bandwidth("cpu") == first
    assert cached_bandwidth("cpu") == first
    assert probes == ["cpu"]


def test_it_is_measured_again_when_asked(cache, probes):
    reachable_bandwidth("cpu")
    second = reachable_bandwidth("cpu", again=True)
    assert second.bytes_per_second == 2000
    assert reachable_bandwidth("cpu") == second
    assert len(probes) == 2
    assert len([path for path in cache.rglob("*") if path.is_file()]) == 1


@pytest.mark.parametrize("text", ["", "{", "[]", '{"device_name": "x"}'])
def test_a_damaged_cache_is_measured_again(cache, probes, text):
    path = cache_path(*device_identity("cpu"))
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert cached_bandwidth("cpu") is None
    assert reachable_bandwidth("cpu").bytes_per_second == 1000
    assert cached_bandwidth("cpu").bytes_per_second == 1000


def test_another_driver_or_device_has_a_place_of_its_own(cache):
    places = {
        cache_path("NVIDIA H200", "580.1"),
        cache_path("NVIDIA H200", "580.2"),
        cache_path("NVIDIA H100", "580.1"),
    }
    assert len(places) == 3
    assert all(path.is_relative_to(cache / "decodegap") for path in places)


def test_a_name_cannot_leave_the_cache(cache):
    assert cache_path("../../x", "y/z").parent == cache / "decodegap" / "bandwidth"


def test_a_known_bandwidth_is_read_back(cache):
    assert write_known_bandwidth(2e10) == pytest.approx(2e10)
    assert cached_bandwidth("cpu").bytes_per_second == pytest.approx(2e10)


def test_a_catalogue_row_takes_the_bandwidth_measured_here(cache, monkeypatch):
    from test_machine import gpu

    from decodegap.measure import machine
    from decodegap.predict.catalogue import catalogue_devices

    for module in (bandwidth, machine):
        monkeypatch.setattr(module, "list_gpus", lambda: [gpu(0, "GPU-a")])
    h200, l4 = (catalogue_devices()[name] for name in ("h200", "l4"))
    assert bandwidth.with_local_bandwidths([h200]) == [h200]  # nothing is known yet
    path = cache_path("NVIDIA H200", "580.0")
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(measured(sum=[1e-9])))
    here, elsewhere = bandwidth.with_local_bandwidths([h200, l4])
    assert here.reachable_bytes_per_second == pytest.approx(1e12)
    assert elsewhere == l4


def test_a_probe_that_dies_is_an_error_with_its_reason(monkeypatch):
    end = WorkerExit(message=b"", returncode=-9, timed_out=False, seconds=1.0, tail="")
    monkeypatch.setattr(bandwidth, "run_worker", lambda *arguments: end)
    with pytest.raises(DecodegapError, match=r"the bandwidth probe failed: .*SIGKILL"):
        bandwidth.probe_bandwidth("cpu")


def test_the_probe_s_process_is_asked_for_the_device(monkeypatch):
    def run(module, job, timeout):
        assert module == "decodegap.measure.bandwidth_worker"
        assert msgspec.json.decode(job) == {"device": "cpu"}
        message = msgspec.json.encode(measured(sum=[0.1]))
        return WorkerExit(message=message, returncode=0, timed_out=False, seconds=1.0, tail="")

    monkeypatch.setattr(bandwidth, "run_worker", run)
    assert bandwidth.probe_bandwidth("cpu") == measured(sum=[0.1])


# The streaming itself, on a small buffer


def test_every_shape_of_a_cpu_stream_is_timed(monkeypatch):
    monkeypatch.setattr(bandwidth_worker, "buffer_bytes", lambda device: 1 << 20)
    found = bandwidth_worker.stream("cpu")
    assert [shape.name for shape in found.shapes] == ["sum", "max", "dot"]
    assert all(len(shape.samples) == 20 for shape in found.shapes)
    assert all(sample > 0 for shape in found.shapes for sample in shape.samples)
    assert found.buffer_bytes == 1 << 20
    assert (found.device_name, found.driver) == device_identity("cpu")


def test_a_pass_reads_the_whole_buffer():
    import torch

    buffer = torch.arange(1000, dtype=torch.float32)
    values = {name: float(one_pass()) for name, one_pass in bandwidth_worker.cpu_passes(buffer)}
    assert values == {"sum": 499_500.0, "max": 999.0, "dot": pytest.approx(332_833_500.0)}


@pytest.mark.parametrize(
    "free, expected", [(1 << 40, 1 << 30), (None, 1 << 30), (1 << 30, 1 << 28), (400_000, 98_304)]
)
def test_the_buffer_is_at_most_a_quarter_of_what_is_free(monkeypatch, free, expected):
    host = bandwidth_worker.describe_host()
    small_cache = msgspec.structs.replace(host, last_level_cache_bytes=1 << 20)
    monkeypatch.setattr(bandwidth_worker, "describe_host", lambda: small_cache)
    monkeypatch.setattr(bandwidth_worker, "free_memory_bytes", lambda device: free)
    assert bandwidth_worker.buffer_bytes("cpu") == expected


def test_the_buffer_is_several_times_a_large_cache(monkeypatch):
    host = bandwidth_worker.describe_host()
    large_cache = msgspec.structs.replace(host, last_level_cache_bytes=1 << 30)
    monkeypatch.setattr(bandwidth_worker, "describe_host", lambda: large_cache)
    monkeypatch.setattr(bandwidth_worker, "free_memory_bytes", lambda device: 1 << 40)
    assert bandwidth_worker.buffer_bytes("cpu") == 8 << 30
