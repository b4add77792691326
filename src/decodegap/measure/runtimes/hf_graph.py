"""`hf-graph`: `hf-static`'s step, greedy pick included, captured once in a CUDA graph.

A replay launches the kernels the eager step launches, so the difference between the two is the
launch side alone. The static cache keeps its length on the device, so replays advance by
themselves.
"""

from typing import Any

import torch

from decodegap.errors import Unavailable
from decodegap.measure.runtimes.hf_static import HfStatic, num_positions
from decodegap.measure.runtimes.sdpa import attention_of
from decodegap.record import Trial

_WARMUP_STEPS = 3


class HfGraph:
    """A replayed `HfStatic` step. The first call of `step` after `prefill` captures."""

    def __init__(self, inner: HfStatic) -> None:
        self._inner = inner
        self.model = inner.model
        self.cache = inner.cache
        self.token = inner.token
        self.graph: torch.cuda.CUDAGraph | None = None

    def prefill(self, prompt: Any) -> None:
        self._inner.prefill(prompt)
        start = (self.token.clone(), self._inner.position.clone())
        self._capture()
        self._rewind(prompt, *start)

    def step(self) -> None:
        assert self.graph is not None, "prefill captures the step; it comes first"
        self.graph.replay()

    def logits(self) -> Any:
        return self._inner.logits()

    def held_bytes(self) -> dict[str, int]:
        return self._inner.held_bytes()

    def _capture(self) -> None:
        """Warm up on a side stream, as capture requires, then record one step."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARMUP_STEPS):
                self._inner.step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._inner.step()

    def _rewind(self, prompt: Any, token: Any, position: Any) -> None:
        """Undo the warm-up steps, so that the first replay decodes at the stated context. Their
        keys and values lie beyond the length and are overwritten before they can be read."""
        self.token.copy_(token)
        self._inner.position.copy_(position)
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(prompt.shape[1])


def load(model: Any, trial: Trial) -> HfGraph:
    """Raises Unavailable for a window the cache would wrap in: transformers keeps that state on
    the host, where a replay cannot advance it."""
    windows = [window for window in trial.shape.attention_windows if window is not None]
    if windows and min(windows) < num_positions(trial):
        raise Unavailable(
            f"hf-graph cannot replay a sliding window of {min(windows)} at context "
            f"{trial.context}: transformers advances it on the host; use hf-static"
        )
    return HfGraph(HfStatic(model, num_positions(trial), attention_of(trial, model)))
