"""The step as one CUDA graph: captured once, replayed once per token.

All kernels read token and position from the device, so a replay needs no argument and the host
decides nothing. Nothing is allocated by a replay.
"""

from collections.abc import Callable

import torch

WARM_UP_STEPS = 1


class CapturedStep:
    """A captured call. `launch` may only use memory of `device` that outlives this object; it runs
    with that device current, whichever is current outside."""

    def __init__(self, launch: Callable[[], None], device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._graph = torch.cuda.CUDAGraph()
        self._kept: list[object] = []
        with torch.cuda.device(device):
            self._warm_up(launch)
            with torch.cuda.graph(self._graph, stream=self._stream):
                launch()

    def _warm_up(self, launch: Callable[[], None]) -> None:
        """Compile and load every kernel: neither may happen inside a capture."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UP_STEPS):
                launch()
        self._stream.synchronize()

    def keep(self, memory: object) -> None:
        """Hold what the captured kernels use for as long as the graph lives."""
        self._kept.append(memory)

    def replay(self) -> None:
        """Enqueue the step on the current stream of its device and return: a graph is replayed on
        the device it was captured on."""
        self._graph.replay()
