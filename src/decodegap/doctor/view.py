"""The doctor's page."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from decodegap.doctor.examination import Examination
from decodegap.measure.machine import Gpu
from decodegap.record import GpuState
from decodegap.units import format_bandwidth, format_bytes


def examination_view(examination: Examination) -> Group:
    """The doctor's page: machine, packages, runtimes, problems, one word at the end."""
    host, table = examination.host, Table(box=None, show_header=False)
    table.add_column("what", style="dim")
    table.add_column("value")
    table.add_row("host CPU", f"{host.cpu}, {host.num_cpus} cores usable")
    memory = f"{format_bytes(host.memory_bytes)}, {format_bytes(host.available_bytes)} free"
    table.add_row("host memory", memory)
    table.add_row("system", f"{host.os}, Python {host.python}")
    for gpu in examination.gpus:
        table.add_row(f"GPU {gpu.index}", _gpu_words(gpu))
    if not examination.gpus:
        table.add_row("GPU", "none (no NVIDIA driver answers)")
    elif examination.state.gpu is not None:
        table.add_row("clocks", _state_words(examination.state.gpu))
    bandwidth = examination.bandwidth
    table.add_row(
        "bandwidth",
        "not measured yet; `decodegap measure` does"
        if bandwidth is None
        else f"{format_bandwidth(bandwidth.bytes_per_second)} on {bandwidth.measured_at:%Y-%m-%d}",
    )
    table.add_row("packages", ", ".join(f"{k} {v}" for k, v in examination.packages.items()))
    for name, reason in examination.runtimes.items():
        table.add_row(f"runtime {name}", "can run" if reason is None else reason)
    problems = [Text(f"! {p.text}: {p.remedy}", style="yellow") for p in examination.problems]
    fitness = ("fit to measure", "fit, with warnings", "not fit to measure")
    return Group(table, *problems, Text(fitness[examination.exit_code], style="bold"))


def _gpu_words(gpu: Gpu) -> str:
    words = [gpu.name, f"driver {gpu.driver}"]
    if gpu.memory_bytes is not None and gpu.free_bytes is not None:
        free = format_bytes(gpu.free_bytes)
        words.append(f"{format_bytes(gpu.memory_bytes)}, {free} free")
    if gpu.compute_capability is not None:
        words.append(f"compute capability {gpu.compute_capability}")
    return ", ".join(words)


def _state_words(state: GpuState) -> str:
    words = []
    if state.sm_clock_hz is not None:
        words.append(f"SM {state.sm_clock_hz / 1e6:.0f} MHz")
    if state.memory_clock_hz is not None:
        words.append(f"memory {state.memory_clock_hz / 1e6:.0f} MHz")
    if state.temperature_celsius is not None:
        words.append(f"{state.temperature_celsius:.0f} °C")
    if state.power_watts is not None:
        words.append(f"{state.power_watts:.0f} W")
    if state.throttle_reasons is not None:
        words.append(", ".join(state.slowed_by) or "not throttled")
    return ", ".join(words)
