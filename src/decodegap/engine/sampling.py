"""Choosing a token from logits on the device: temperature, top-k, top-p."""

from dataclasses import dataclass

import torch

from decodegap.errors import BadConfig

_LEAST_TEMPERATURE = 1e-4  # below, logits divided by it overflow


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy. `top_k` 0 and `top_p` 1 leave all tokens in.

    Raises:
        BadConfig: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature and not _LEAST_TEMPERATURE <= self.temperature < float("inf"):
            raise BadConfig(
                f"temperature must be 0 (greedy) or at least {_LEAST_TEMPERATURE}, not "
                f"{self.temperature}"
            )
        if self.top_k < 0:
            raise BadConfig(f"top_k must be 0 (off) or more, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise BadConfig(f"top_p must be in (0, 1], not {self.top_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def sample(logits: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> torch.Tensor:
    """int64 [1] drawn from fp32 logits [V]; `generator` is on the logits' device."""
    logits = logits / sampling.temperature
    if sampling.top_k:
        least = logits.topk(min(sampling.top_k, logits.numel())).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    probabilities = logits.softmax(dim=-1)
    if sampling.top_p < 1.0:
        probabilities = _nucleus(probabilities, sampling.top_p)
    return torch.multinomial(probabilities, 1, generator=generator)


def _nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the fewest most likely tokens that together reach `top_p`, always at least one."""
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(0) - ordered
    return torch.zeros_like(probabilities).scatter(0, order, ordered * (before < top_p))
