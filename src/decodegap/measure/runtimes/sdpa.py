"""Which of torch's attention kernels a transformers model may take: the `sdpa` option.

`auto` leaves the choice to torch and costs nothing. Every other value restricts it around each
forward, some 20 µs of host time a step, and is refused where that kernel cannot run: there is no
silent fallback.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch.nn.attention import SDPBackend, sdpa_kernel

from decodegap.errors import Unavailable
from decodegap.measure.runtimes.registry import parse_runtime
from decodegap.record import Trial

Attention = Callable[[], AbstractContextManager[None]]

_BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
_REFUSALS = ("No available kernel", "No viable backend")


def attention_of(trial: Trial, model: Any) -> Attention:
    """The context every forward of the trial's runtime runs in.

    Raises:
        Unavailable: a choice among torch's kernels, for a model whose attention is none of them.
    """
    choice = parse_runtime(trial.runtime).option("sdpa")
    if choice == "auto":
        return nullcontext
    if model.config._attn_implementation != "sdpa":
        raise Unavailable(f"{trial.shape.name} does not run torch's SDPA; take sdpa=auto")
    return lambda: _only(choice)


@contextmanager
def _only(choice: str) -> Iterator[None]:
    """Raises Unavailable if attention called inside finds no kernel of that kind."""
    try:
        with sdpa_kernel(_BACKENDS[choice]):
            yield
    except RuntimeError as error:
        if not any(refusal in str(error) for refusal in _REFUSALS):
            raise
        raise Unavailable(
            f"sdpa={choice} has no kernel for this attention on this device (mask, grouped heads, "
            "head size or type); take sdpa=auto"
        ) from None
