"""Each kernel against the reference op, on any device: fresh data, poisoned outputs.

The tests use it under Triton's interpreter on a CPU and compiled on a GPU, and the benchmark before
it times anything.
"""

from dataclasses import dataclass

import torch

from decodegap.engine import reference
from decodegap.engine.buffers import Buffers, allocate
from decodegap.engine.kernels.settings import (
    AttendSettings,
    GemvSettings,
    LaunchSettings,
)
from decodegap.engine.kernels.step import KernelStep
from decodegap.engine.program import Op, Program, build_program
from decodegap.engine.weights import Weights, synthetic_weights
from decodegap.predict.model import ModelShape

# Largest error over the largest magnitude, by storage type: what is left is one rounding of the
# output (2⁻⁸ of a bf16 value, 2⁻¹¹ of an fp16 one) and, for attention, that of the probabilities.
TOLERANCE = {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}


@dataclass(frozen=True, slots=True)
class Model:
    """A program with synthetic weights."""

    program: Program
    weights: Weights
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def random(
        cls, shape: ModelShape, dtype: torch.dtype, device: str, max_context: int | None = None
    ) -> "Model":
        program = build_program(shape, max_context)
        where = torch.device(device)
        return cls(program, synthetic_weights(program, dtype, where, seed=11), dtype, where)

    def random_buffers(self, position: int, seed: int) -> Buffers:
        """Every buffer random; NaN in the cache slots that are not filled, which none may read."""
        buffers = allocate(self.program, self.dtype, self.device)
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for name in ("hidden", "qkv", "attended", "inner", "keys", "values"):
            buffers[name].normal_(generator=generator)
        for name in ("keys", "values"):
            buffers[name][:, :, position:] = float("nan")
        buffers["token"].fill_((seed * 37) % self.program.shape.vocab_size)
        buffers["position"].fill_(position)
        return buffers


def small_settings(
    rows: int, tiles: int, block: int, num_splits: int, attend_block: int
) -> LaunchSettings:
    """The same for every matrix: small tiles make small shapes loop and leave remainders. Whole
    rows but for `down_residual`, which takes `block` columns at a time."""
    whole = GemvSettings(rows=rows, tiles=tiles, num_warps=4)
    return LaunchSettings(
        norm_qkv=whole,
        attend=AttendSettings(num_splits=num_splits, block=attend_block, num_warps=4),
        o_residual=whole,
        norm_gate_up=whole,
        down_residual=GemvSettings(rows=rows, block=block, num_warps=4),
        head=whole,
    )


def check_ops(
    model: Model,
    settings: LaunchSettings,
    pdl: bool,
    position: int,
    without: frozenset[str] = frozenset(),
) -> dict[str, float]:
    """Largest relative error of each op of the first block and around, fed the same random buffers.

    Raises:
        AssertionError: an op strays beyond the tolerance or writes what it does not name.
    """
    errors: dict[str, float] = {}
    for index, op in enumerate(model.program.ops):
        if op.layer not in (None, 0) or op.name in without:
            continue  # the same kernels again; whole steps cover their arguments
        expected = model.random_buffers(position, seed=index + 1)
        actual = model.random_buffers(position, seed=index + 1)
        _poison(op, actual)
        reference.run_op(op, model.program, model.weights, expected)
        step = KernelStep(model.program, model.weights, actual, settings, pdl)
        for _ in range(1 if op.name in {"o_residual", "down_residual", "head"} else 2):
            step.run_op(index)  # twice where that is the same: counters must come back to zero
        error = _largest_error(op, expected, actual)
        assert error <= TOLERANCE[model.dtype], (op.name, op.layer, position, error)
        errors[op.name] = max(error, errors.get(op.name, 0.0))
    return errors


def _poison(op: Op, buffers: Buffers) -> None:
    """NaN in what the op writes and does not read."""
    for name in set(op.writes) - set(op.reads):
        if buffers[name].is_floating_point():
            buffers[name].fill_(float("nan"))


def _largest_error(op: Op, expected: Buffers, actual: Buffers) -> float:
    largest = 0.0
    for name, truth in expected.items():
        if name in ("keys", "values"):
            continue  # the whole caches, whose layers are compared one by one
        if name not in op.writes:
            assert torch.equal(_bits(actual[name]), _bits(truth)), f"{op.name} wrote {name}"
        elif truth.is_floating_point():
            largest = max(largest, _relative_error(name, truth, actual[name]))
        elif name == "token":
            picked = int(actual[name])
            assert picked == int(actual["logits"].argmax()), (op.name, picked)
        else:
            assert torch.equal(actual[name], truth), (op.name, name)
    return largest


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """So that NaN compares equal to itself."""
    return tensor.contiguous().view(torch.uint8)


def _relative_error(name: str, truth: torch.Tensor, actual: torch.Tensor) -> float:
    truth, actual = truth.float(), actual.float()
    assert torch.equal(truth.isnan(), actual.isnan()), f"{name}: elements not written, or too many"
    scale = truth.nan_to_num().abs().max()
    return float((truth - actual).nan_to_num().abs().max() / scale)


def run_steps(
    model: Model, settings: LaunchSettings, pdl: bool, position: int, num_steps: int
) -> tuple[float, float]:
    """Whole steps by kernels and by reference from the same state, following the kernels' tokens.

    Returns the largest logit error relative to the largest logit, and the largest KL divergence.
    """
    expected = model.random_buffers(position, seed=5)
    actual = model.random_buffers(position, seed=5)
    step = KernelStep(model.program, model.weights, actual, settings, pdl)
    error = divergence = 0.0
    for _ in range(num_steps):
        expected["token"].copy_(actual["token"])
        reference.run_step(model.program, model.weights, expected)
        step.run()
        truth = expected["logits"]
        error = max(error, float((truth - actual["logits"]).abs().max() / truth.abs().max()))
        divergence = max(divergence, _kl(truth, actual["logits"]))
        assert int(actual["token"]) == int(actual["logits"].argmax())
        assert int(actual["position"]) == int(expected["position"])
    return error, divergence


def _kl(truth: torch.Tensor, actual: torch.Tensor) -> float:
    p, q = truth.double().log_softmax(0), actual.double().log_softmax(0)
    return float((p.exp() * (p - q)).sum())
