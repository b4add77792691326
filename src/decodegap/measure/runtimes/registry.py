"""Which runtimes there are, what each needs, and whether it can run here. Imports no torch."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import msgspec

from decodegap.errors import UnknownRuntime, nearest
from decodegap.record import Trial


class Runtime(Protocol):
    """One loaded way of running a step, on one model and one prompt.

    `token` is the token the next step will decode, int64 [1, 1] on the device.
    """

    token: Any

    def prefill(self, prompt: Any) -> None:
        """Fill the cache with `prompt`, int64 [1, context]; leave the first pick in `token`."""

    def step(self) -> None:
        """Decode `token` and leave the greedy pick in its place. Asynchronous on a GPU."""

    def logits(self) -> Any:
        """Logits of the last step, [vocab]."""

    def held_bytes(self) -> dict[str, int]:
        """Sizes of the tensors it really holds: `parameters` and `kv_cache`."""


class RuntimeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the registry. `module` is imported in the worker, when the runtime is chosen;
    `interventions` are those of `interventions.py` that can be made on it."""

    name: str
    title: str
    module: str
    formats: tuple[str, ...]
    packages: tuple[str, ...]
    interventions: tuple[str, ...]
    needs_gpu: bool = False


RUNTIMES: dict[str, RuntimeEntry] = {
    entry.name: entry
    for entry in (
        RuntimeEntry(
            name="hf-eager",
            title="transformers, eager, growing cache",
            module="decodegap.measure.runtimes.hf_eager",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            interventions=("twin", "linears", "no_attention"),
        ),
        RuntimeEntry(
            name="hf-static",
            title="transformers, eager, static cache",
            module="decodegap.measure.runtimes.hf_static",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            interventions=("twin", "linears", "no_attention"),
        ),
        RuntimeEntry(
            name="hf-graph",
            title="transformers, static cache, the step as one CUDA graph",
            module="decodegap.measure.runtimes.hf_graph",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            # A captured graph cannot be changed from outside; its twin is captured anew.
            interventions=("twin",),
            needs_gpu=True,
        ),
    )
}


def get_runtime(name: str) -> RuntimeEntry:
    """Look a runtime up.

    Raises:
        UnknownRuntime: with the nearest names.
    """
    found = RUNTIMES.get(name)
    if found is None:
        raise UnknownRuntime(f"unknown runtime {name!r}: {nearest(name, RUNTIMES)}")
    return found


def why_unavailable(entry: RuntimeEntry, torch_device: str) -> str | None:
    """Why a runtime cannot run on `torch_device` here, with the remedy; None where it can."""
    missing = [package for package in entry.packages if find_spec(package) is None]
    if missing:
        return f"needs {', '.join(missing)}: pip install 'decodegap[measure]'"
    if entry.needs_gpu and torch_device == "cpu":
        return "needs a CUDA GPU; on a CPU there is no graph to capture and no launch to save"
    return None


def runtime_factory(entry: RuntimeEntry) -> Callable[[Any, Trial], Runtime]:
    """The runtime's `load(model, trial)`."""
    factory: Callable[[Any, Trial], Runtime] = import_module(entry.module).load
    return factory
