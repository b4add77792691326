"""`hf-compile`: `hf-static`'s step through `torch.compile(mode="reduce-overhead")`.

The compiler fuses the step's small kernels and, on a GPU, replays the whole of it as a CUDA graph:
fewer kernels than `hf-graph` and as little host work. It compiles while it is loaded, on a token at
position 0, so that the time it takes is in `prepare_seconds` and in no step.
"""

from typing import Any

import torch

from decodegap.errors import Unavailable, first_line
from decodegap.measure.runtimes.hf_static import HfStatic, num_positions
from decodegap.measure.runtimes.sdpa import attention_of
from decodegap.record import Trial

# The compiler records its CUDA graph on the second call and replays from the third.
_WARMUP_STEPS = 3


class HfCompile:
    """A compiled `HfStatic` step. Its inputs stay where they are, or no graph could hold them."""

    def __init__(self, inner: HfStatic) -> None:
        self._inner = inner
        self.model = inner.model
        self.cache = inner.cache
        self.token = inner.token
        for tensor in (inner.token, inner.position, inner.last_logits):
            torch._dynamo.mark_static_address(tensor)
        # Not dynamic: another context in the same process is compiled for its own length too.
        self._step = torch.compile(
            inner.step, mode="reduce-overhead", fullgraph=True, dynamic=False
        )
        self._compile()

    def prefill(self, prompt: Any) -> None:
        self._inner.prefill(prompt)

    def step(self) -> None:
        self._step()

    def logits(self) -> Any:
        return self._inner.logits()

    def held_bytes(self) -> dict[str, int]:
        return self._inner.held_bytes()

    def _compile(self) -> None:
        """Compile on a made-up token, then forget it. The cache is allocated by a plain forward
        first: inside a compiled one its addresses could not be fixed."""
        with torch.inference_mode():
            self._inner.prefill(self.token)
            for _ in range(_WARMUP_STEPS):
                self._step()
            self.cache.reset()


def load(model: Any, trial: Trial) -> HfCompile:
    """Raises Unavailable where the compiler is missing what it needs."""
    inner = HfStatic(model, num_positions(trial), attention_of(trial, model))
    try:
        return HfCompile(inner)
    except torch._inductor.exc.InductorError as error:
        reason = first_line(error)
        raise Unavailable(
            f"torch.compile cannot build the step here ({reason}); it needs a C++ compiler"
        ) from None
