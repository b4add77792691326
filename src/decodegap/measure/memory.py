"""Whether a trial's device has the memory for it, told before anything is loaded."""

from decodegap.errors import DoesNotFit
from decodegap.measure.machine import free_memory_bytes
from decodegap.measure.runtimes.registry import RuntimeEntry, get_runtime
from decodegap.predict.formats import Format, get_format
from decodegap.predict.model import ModelShape
from decodegap.predict.tensors import parameter_tensors
from decodegap.predict.traffic import held_bytes
from decodegap.record import Trial
from decodegap.units import format_bytes

# Beside weights and KV: logits of every judged step, activations of the prefill, the CUDA context.
_WORKING_BYTES = 1 << 30


def needed_bytes(
    shape: ModelShape, context: int, fmt: Format, entry: RuntimeEntry | None = None
) -> int:
    """Device memory a trial needs at least: weights, cache, working space, and what the runtime
    holds beside the model it is judged by."""
    stacked = 0 if entry is None else stacked_bytes(shape, fmt, entry)
    return held_bytes(shape, context, fmt) + stacked + _WORKING_BYTES


def stacked_bytes(shape: ModelShape, fmt: Format, entry: RuntimeEntry) -> int:
    """Bytes of the matrices and biases that a runtime stacks, and so holds a second time. Not of
    experts: no runtime that stacks decodes them, and it says so itself."""
    return sum(
        tensor.num_elements * fmt.plain_bytes
        for tensor in parameter_tensors(shape)
        if tensor.op in entry.stacks and tensor.kind != "norm" and tensor.expert is None
    )


def check_fits(
    shape: ModelShape, context: int, fmt: Format, device: str, entry: RuntimeEntry | None = None
) -> None:
    """Raises DoesNotFit with what is needed and what is there; without a runtime, for the memory
    that every one of them needs."""
    if fits(shape, context, fmt, device, entry):
        return
    needed, there = needed_bytes(shape, context, fmt, entry), free_memory_bytes(device) or 0
    held = ""
    if entry is not None and entry.stacks:
        held = f" in {entry.name}, which holds some matrices twice,"
    raise DoesNotFit(
        f"{shape.name} at context {context}{held} needs {format_bytes(needed)} and {device} has "
        f"{format_bytes(there)} free; take a smaller model or context"
    )


def check_trial_fits(trial: Trial) -> None:
    """Raises DoesNotFit if the trial's device has too little memory free now."""
    fmt, entry = get_format(trial.format), get_runtime(trial.runtime)
    check_fits(trial.shape, trial.context, fmt, trial.device, entry)


def fits(
    shape: ModelShape, context: int, fmt: Format, device: str, entry: RuntimeEntry | None
) -> bool:
    free = free_memory_bytes(device)
    return free is None or needed_bytes(shape, context, fmt, entry) <= free
