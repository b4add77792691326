"""The bandwidth probe's process: stream a large buffer, report every sample."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.util import find_spec

import msgspec
import torch

from decodegap.measure import timers
from decodegap.measure.bandwidth import Bandwidth, BandwidthJob, StreamShape, device_identity
from decodegap.measure.machine import describe_host, free_memory_bytes
from decodegap.measure.parent import read_job, send_report
from decodegap.measure.worker import synchronizer

_GPU_BUFFER_BYTES = 4 << 30
_CPU_BUFFER_BYTES = 1 << 30
_NUM_WARMUP, _NUM_PASSES = 2, 20


def main() -> None:
    job = msgspec.json.decode(read_job(), type=BandwidthJob)
    send_report(msgspec.json.encode(stream(job.device)))


def stream(device: str) -> Bandwidth:
    """Time every shape on one buffer of random numbers (zeros would read faster on some GPUs)."""
    num_bytes = buffer_bytes(device)
    synchronize = synchronizer(device)
    buffer = torch.empty(num_bytes // 4, dtype=torch.float32, device=device).uniform_()
    passes = gpu_passes(buffer) if device != "cpu" else cpu_passes(buffer)
    name, driver = device_identity(device)
    return Bandwidth(
        device_name=name,
        driver=driver,
        num_threads=torch.get_num_threads() if device == "cpu" else 0,
        buffer_bytes=num_bytes,
        measured_at=datetime.now(UTC),
        torch=str(torch.__version__),
        shapes=tuple(
            StreamShape(name=shape, samples=_time(one_pass, synchronize, device))
            for shape, one_pass in passes
        ),
    )


def buffer_bytes(device: str) -> int:
    """Several times the last-level cache, and no more than a quarter of what is free."""
    wanted = _CPU_BUFFER_BYTES if device == "cpu" else _GPU_BUFFER_BYTES
    if device == "cpu":
        wanted = max(wanted, 8 * (describe_host().last_level_cache_bytes or 0))
    free = free_memory_bytes(device)
    limit = wanted if free is None else min(wanted, free // 4)
    return limit // 32768 * 32768


def cpu_passes(buffer: torch.Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "sum", buffer.sum
    yield "max", buffer.amax
    yield "dot", lambda: torch.dot(buffer, buffer)


def gpu_passes(buffer: torch.Tensor) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "torch sum", buffer.sum
    if find_spec("triton") is None:
        return
    from decodegap.measure.stream_kernel import SHAPES, read_all

    for shape in SHAPES:
        yield shape.name, lambda shape=shape: read_all(buffer, shape)  # type: ignore[misc]


def _time(
    one_pass: Callable[[], object], synchronize: Callable[[], None], device: str
) -> list[float]:
    """Host clock on a CPU; on a GPU the device's own, which the launch does not enter."""
    if device == "cpu":
        timers.wall(one_pass, _NUM_WARMUP, synchronize)
        return timers.wall(one_pass, _NUM_PASSES, synchronize)
    timers.events(one_pass, _NUM_WARMUP, device)
    return timers.events(one_pass, _NUM_PASSES, device)


if __name__ == "__main__":
    main()
