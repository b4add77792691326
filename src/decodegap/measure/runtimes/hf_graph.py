"""`hf-graph`: `hf-static`'s step, greedy pick included, captured once in a CUDA graph.

A replay launches the kernels the eager step launches, so the difference between the two is the
launch side alone. The static cache keeps its length on the device, so replays advance by
themselves. The step is captured while the runtime is loaded, on a token at position 0, so that the
time it takes is in `prepare_seconds`, as that of `hf-compile`.
"""

from typing import Any

import torch

from decodegap.errors import Unavailable
from decodegap.measure.runtimes.hf_static import HfStatic, num_positions
from decodegap.measure.runtimes.sdpa import attention_of
from decodegap.record import Trial

_WARMUP_STEPS = 3


class HfGraph:
    """A replayed `HfStatic` step, captured when it is made."""

    def __init__(self, inner: HfStatic) -> None:
        self._inner = inner
        self.model = inner.model
        self.cache = inner.cache
        self.token = inner.token
        with torch.inference_mode():
            inner.prefill(inner.token)  # a made-up token; allocates the cache
            self.graph = self._capture()
            self.cache.reset()  # in place: the graph reads it where it lies

    def prefill(self, prompt: Any) -> None:
        self._inner.prefill(prompt)

    def step(self) -> None:
        self.graph.replay()

    def logits(self) -> Any:
        return self._inner.logits()

    def held_bytes(self) -> dict[str, int]:
        return self._inner.held_bytes()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up on a side stream, as capture requires, then record one step."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP_STEPS):
                self._inner.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._inner.step()
        return graph


def load(model: Any, trial: Trial) -> HfGraph:
    """Raises Unavailable for a model with a sliding window: transformers keeps the length of such
    a layer on the host, where a replay cannot advance it. A window that is never full makes no
    difference: the layer's mask is made from that length too."""
    windows = [window for window in trial.shape.attention_windows if window is not None]
    if windows:
        raise Unavailable(
            f"hf-graph cannot replay a sliding window, and {trial.shape.name} has one of "
            f"{min(windows)}: transformers advances it on the host; use hf-static"
        )
    return HfGraph(HfStatic(model, num_positions(trial), attention_of(trial, model)))
