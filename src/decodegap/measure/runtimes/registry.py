"""Which runtimes there are, what each needs, and whether it can run here. Imports no torch."""

from collections.abc import Callable, Iterable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import msgspec

from decodegap.errors import UnknownRuntime, nearest
from decodegap.record import Trial
from decodegap.runtime_name import RuntimeName


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
    `interventions` are those of `interventions.py` that can be made on it; `options` are what may
    follow the name (`hf-eager?sdpa=flash`), each with its values, the default first. `default_on`
    are the kinds of device where it runs without being named. `stacks` are the ops whose matrices
    it puts together and so holds once more, beside the model it is judged by."""

    name: str
    title: str
    module: str
    formats: tuple[str, ...]
    packages: tuple[str, ...]
    interventions: tuple[str, ...]
    needs_gpu: bool = False
    options: dict[str, tuple[str, ...]] = {}
    default_on: tuple[str, ...] = ("cpu", "cuda")
    stacks: tuple[str, ...] = ()


class RuntimeSpec(msgspec.Struct, frozen=True):
    """A runtime as asked for: its row and the options given that are not the default."""

    entry: RuntimeEntry
    options: dict[str, str]

    @property
    def text(self) -> str:
        """The one spelling of it: options in the order of their names, defaults left out."""
        return RuntimeName(self.entry.name, self.options).text

    def option(self, name: str) -> str:
        return self.options.get(name, self.entry.options[name][0])


# How to get a package, by the name it is imported by, that no extra of ours brings.
_INSTALL = {
    "flash_attn": "pip install flash-attn --no-build-isolation",
    "flashinfer": "pip install flashinfer-python",
}
_INSTALL_MEASURE = "pip install 'decodegap[measure]'"

# Which of torch's attention kernels a transformers model may take (`sdpa.py`).
_SDPA: dict[str, tuple[str, ...]] = {"sdpa": ("auto", "flash", "efficient", "cudnn", "math")}

RUNTIMES: dict[str, RuntimeEntry] = {
    entry.name: entry
    for entry in (
        RuntimeEntry(
            name="hf-eager",
            title="transformers, eager, growing cache",
            module="decodegap.measure.runtimes.hf_eager",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            interventions=("in_turn", "twin", "linears", "no_attention"),
            options=_SDPA,
        ),
        RuntimeEntry(
            name="hf-static",
            title="transformers, eager, static cache",
            module="decodegap.measure.runtimes.hf_static",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            interventions=("twin", "linears", "no_attention"),
            options=_SDPA,
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
            options=_SDPA,
        ),
        RuntimeEntry(
            name="hf-compile",
            title="transformers, static cache, the step compiled by torch (reduce-overhead)",
            module="decodegap.measure.runtimes.hf_compile",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            # A compiled step cannot be changed from outside, and its twin would compile for as
            # long again.
            interventions=(),
            options=_SDPA,
            default_on=(),  # the better part of a minute of compiling a trial
        ),
        RuntimeEntry(
            name="hf-fa2",
            title="transformers, eager, growing cache, attention by the flash-attn package",
            module="decodegap.measure.runtimes.hf_fa2",
            formats=("bf16", "fp16"),
            packages=("torch", "transformers", "flash_attn"),
            interventions=("twin",),
            needs_gpu=True,
            default_on=(),
        ),
        RuntimeEntry(
            name="flashinfer",
            title="transformers, eager, a preallocated cache read as far as it is filled, "
            "attention of the step by flashinfer",
            module="decodegap.measure.runtimes.flashinfer_attention",
            formats=("bf16", "fp16"),
            packages=("torch", "transformers", "flashinfer"),
            # The twin's heads are too small for the kernel.
            interventions=(),
            needs_gpu=True,
            # Its kernel for grouped heads of any number; the other has some groups only.
            options={"tensor_cores": ("off", "on")},
            default_on=(),
        ),
        RuntimeEntry(
            name="engine",
            title="decodegap's own: one graph of Triton kernels; on a CPU its plain torch form",
            module="decodegap.measure.runtimes.engine",
            formats=("bf16", "fp16", "fp32"),
            packages=("torch", "transformers"),
            interventions=("ops",),
            default_on=("cuda",),  # the reference is there to be right, not to be fast
            stacks=("norm_qkv", "norm_gate_up"),
        ),
    )
}


def parse_runtime(text: str) -> RuntimeSpec:
    """Read a runtime's name and options, `NAME` or `NAME?OPTION=VALUE&…`.

    Raises:
        UnknownRuntime: no such runtime, option or value, with those there are.
    """
    name, _, query = text.partition("?")
    entry = RUNTIMES.get(name)
    if entry is None:
        raise UnknownRuntime(f"unknown runtime {name!r}: {nearest(name, RUNTIMES)}")
    options: dict[str, str] = {}
    for part in query.split("&") if "?" in text else []:
        key, _, value = part.partition("=")
        _check_option(entry, key, value, text)
        if options.setdefault(key, value) != value:
            raise UnknownRuntime(f"{text!r} gives {key} twice; give it once")
    return RuntimeSpec(
        entry, {key: value for key, value in options.items() if value != entry.options[key][0]}
    )


def _check_option(entry: RuntimeEntry, key: str, value: str, text: str) -> None:
    if not entry.options:
        raise UnknownRuntime(f"{text!r}: {entry.name} has no options; leave out what follows `?`")
    if key not in entry.options:
        known = ", ".join(entry.options)
        raise UnknownRuntime(f"{text!r}: {entry.name} has no option {key!r}; it has {known}")
    if value not in entry.options[key]:
        known = ", ".join(entry.options[key])
        raise UnknownRuntime(f"{text!r}: {key} is none of {known}")


def default_runtimes(fmt: str, torch_device: str) -> list[str]:
    """The runtimes that run when none is named, for weights stored as `fmt`."""
    kind = torch_device.partition(":")[0]
    return [
        name
        for name, entry in RUNTIMES.items()
        if kind in entry.default_on and fmt in entry.formats
    ]


def get_runtime(text: str) -> RuntimeEntry:
    """Look a runtime up, with or without options.

    Raises:
        UnknownRuntime: with the nearest names.
    """
    return parse_runtime(text).entry


def how_to_install(packages: Iterable[str]) -> str:
    """The commands that bring packages, each said once."""
    commands = (_INSTALL.get(package, _INSTALL_MEASURE) for package in packages)
    return " && ".join(dict.fromkeys(commands))


def why_unavailable(entry: RuntimeEntry, torch_device: str) -> str | None:
    """Why a runtime cannot run on `torch_device` here, with the remedy; None where it can."""
    reasons = []
    missing = [package for package in entry.packages if find_spec(package) is None]
    if missing:
        reasons.append(f"needs {', '.join(missing)}: {how_to_install(missing)}")
    if entry.needs_gpu and torch_device == "cpu":
        reasons.append("needs a CUDA GPU; a CPU has no graph to capture and no CUDA kernel to run")
    return "; ".join(reasons) or None


def runtime_factory(entry: RuntimeEntry) -> Callable[[Any, Trial], Runtime]:
    """The runtime's `load(model, trial)`."""
    factory: Callable[[Any, Trial], Runtime] = import_module(entry.module).load
    return factory
