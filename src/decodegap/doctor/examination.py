"""Is this machine fit to measure? What is here, what is missing, what would disturb a figure."""

from typing import Literal

import msgspec

from decodegap.measure.bandwidth import Bandwidth, cached_bandwidth
from decodegap.measure.environment import host_state, package_versions
from decodegap.measure.machine import Gpu, Host, describe_host, list_gpus, local_device
from decodegap.measure.runtimes.registry import RUNTIMES, why_unavailable
from decodegap.predict.device import Device
from decodegap.record import GpuState, HostState

ProblemSeverity = Literal["warning", "unfit"]

_BUSY_SHARE = 0.1
_LEAST_MEMORY_BYTES = 2 << 30


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    severity: ProblemSeverity
    text: str
    remedy: str


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What `decodegap doctor` shows. `runtimes` maps each runtime to why it cannot run, or None."""

    host: Host
    gpus: tuple[Gpu, ...]
    device: Device
    torch_device: str
    state: HostState
    packages: dict[str, str]
    runtimes: dict[str, str | None]
    bandwidth: Bandwidth | None
    problems: tuple[Problem, ...]

    @property
    def exit_code(self) -> int:
        """0 fit, 1 fit with warnings, 2 not."""
        if any(problem.severity == "unfit" for problem in self.problems):
            return 2
        return 1 if self.problems else 0


def examine() -> Examination:
    """Look at this machine. Measures nothing and loads no torch."""
    gpus = list_gpus()
    torch_device = "cuda:0" if gpus else "cpu"
    host, state, packages = describe_host(), host_state(torch_device), package_versions()
    runtimes = {name: why_unavailable(entry, torch_device) for name, entry in RUNTIMES.items()}
    bandwidth = cached_bandwidth(torch_device)
    return Examination(
        host=host,
        gpus=tuple(gpus),
        device=local_device(torch_device),
        torch_device=torch_device,
        state=state,
        packages=packages,
        runtimes=runtimes,
        bandwidth=bandwidth,
        problems=(
            *runtime_problems(runtimes),
            *host_problems(host, state),
            *gpu_problems(state.gpu),
        ),
    )


def runtime_problems(runtimes: dict[str, str | None]) -> list[Problem]:
    if any(reason is None for reason in runtimes.values()):
        return []
    remedy = "pip install 'decodegap[measure]'"
    return [Problem(severity="unfit", text="no runtime can run here", remedy=remedy)]


def host_problems(host: Host, state: HostState) -> list[Problem]:
    problems = []
    if state.available_memory_bytes < _LEAST_MEMORY_BYTES:
        text = f"{state.available_memory_bytes >> 20} MiB of memory free"
        problems.append(Problem(severity="unfit", text=text, remedy="close other programs"))
    if state.busy_share > _BUSY_SHARE:
        text = f"other work takes {state.busy_share:.0%} of the cores"
        problems.append(Problem(severity="warning", text=text, remedy="stop it while you measure"))
    if host.cpu_limit is not None and host.cpu_limit < host.num_cpus:
        text = f"the container may use {host.cpu_limit:g} of {host.num_cpus} cores"
        remedy = "lift the CPU quota: throttling by the scheduler makes long tails"
        problems.append(Problem(severity="warning", text=text, remedy=remedy))
    return problems


def gpu_problems(state: GpuState | None) -> list[Problem]:
    if state is None or not state.slowed_by:
        return []
    text = "the GPU is held back: " + ", ".join(state.slowed_by)
    return [Problem(severity="warning", text=text, remedy="cool it or raise its power limit")]
