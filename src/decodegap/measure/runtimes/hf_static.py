"""`hf-static`: transformers, one Python forward per step, a cache allocated once at full length.

Attention then reads the whole allocated length under a mask, filled or not. Its bytes are the
same every step, which is what lets `hf-graph` capture the very same kernels.
"""

from contextlib import nullcontext
from typing import Any

import torch
import transformers

from decodegap.measure.positions import SPARE_POSITIONS
from decodegap.measure.runtimes.hf_model import cache_argument, held_bytes
from decodegap.measure.runtimes.sdpa import Attention, attention_of
from decodegap.record import Trial


class HfStatic:
    """A forward with a `StaticCache`; token, position and logits live in tensors that stay."""

    def __init__(self, model: Any, num_positions: int, attention: Attention = nullcontext) -> None:
        self.model = model
        self._attention = attention
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=num_positions)
        self._cache_argument = cache_argument(model)
        device = model.device
        self.token = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.last_logits = torch.zeros(model.config.vocab_size, dtype=model.dtype, device=device)

    def prefill(self, prompt: Any) -> None:
        positions = torch.arange(prompt.shape[1], device=prompt.device)[None]
        self._forward(prompt, positions, logits_to_keep=1)
        self.position.fill_(prompt.shape[1])

    def step(self) -> None:
        self._forward(self.token, self.position)
        self.position.add_(1)

    def logits(self) -> Any:
        return self.last_logits

    def held_bytes(self) -> dict[str, int]:
        return held_bytes(self.model, self.cache)

    def _forward(self, ids: Any, positions: Any, **options: Any) -> None:
        with self._attention():
            output = self.model(
                ids, position_ids=positions, **{self._cache_argument: self.cache}, **options
            )
        self.last_logits.copy_(output.logits[0, -1])
        self.token.copy_(output.logits[:, -1:].argmax(-1))


def num_positions(trial: Trial) -> int:
    """Cache length a trial needs: its context, its steps, and the spare ones."""
    return trial.context + trial.num_warmup + trial.num_steps + SPARE_POSITIONS


def load(model: Any, trial: Trial) -> HfStatic:
    return HfStatic(model, num_positions(trial), attention_of(trial, model))
