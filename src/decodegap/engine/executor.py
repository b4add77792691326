"""What runs a step of the program: the torch reference, or a captured graph of Triton kernels."""

from collections.abc import Callable
from typing import Literal

import torch

from decodegap.engine import reference
from decodegap.engine.buffers import Buffers
from decodegap.engine.program import Program
from decodegap.engine.weights import Weights
from decodegap.errors import Unavailable

Executor = Literal["graph", "reference"]


def choose_executor(executor: Executor | None, device: torch.device) -> Executor:
    """The one asked for, else the graph on a GPU.

    Raises:
        Unavailable: a GPU without Triton.
    """
    if executor is not None:
        return executor
    if device.type != "cuda":
        return "reference"
    try:
        import triton  # noqa: F401
    except ImportError:
        raise Unavailable("the engine needs Triton on a GPU: pip install triton") from None
    return "graph"


class ReferenceStep:
    """Plain torch, op by op."""

    def __init__(self, program: Program, weights: Weights, buffers: Buffers) -> None:
        self._program, self._weights, self._buffers = program, weights, buffers

    @torch.inference_mode()
    def run(self) -> None:
        reference.run_step(self._program, self._weights, self._buffers)


class GraphStep:
    """All kernels of a step, captured once. Leaves token and position at 0."""

    def __init__(
        self,
        program: Program,
        weights: Weights,
        buffers: Buffers,
        device: torch.device,
        pdl: bool | None,
    ) -> None:
        # Triton is asked for only where kernels run.
        from decodegap.engine.graph import CapturedStep
        from decodegap.engine.kernels.settings import launch_settings
        from decodegap.engine.kernels.step import (
            KernelStep,
            architecture,
            num_sms,
            supports_pdl,
        )

        self._kernels = KernelStep(
            program,
            weights,
            buffers,
            launch_settings(program, architecture(device), num_sms(device)),
            supports_pdl(device) if pdl is None else pdl,
        )
        self._device = device
        self._captured = CapturedStep(self._kernels.run, device)
        buffers["token"].zero_()
        buffers["position"].zero_()

    def run(self) -> None:
        self._captured.replay()

    def without(self, op: str) -> Callable[[], None]:
        """A graph of its own with one op left out."""
        from decodegap.engine.graph import CapturedStep

        without = frozenset({op})
        return CapturedStep(lambda: self._kernels.run(without), self._device).replay
