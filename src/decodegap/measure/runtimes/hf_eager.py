"""`hf-eager`: transformers as installed, one Python forward per step, a cache that grows.

Each step concatenates the new keys and values to the cache, a copy of all that is in it, and meets
a KV length no step has had before.
"""

from contextlib import nullcontext
from typing import Any

import transformers

from decodegap.measure.runtimes.hf_model import cache_argument, held_bytes
from decodegap.measure.runtimes.sdpa import Attention, attention_of
from decodegap.record import Trial


class HfEager:
    """A plain forward with a `DynamicCache`, or the cache given."""

    def __init__(
        self, model: Any, attention: Attention = nullcontext, cache: Any | None = None
    ) -> None:
        self.model = model
        self._attention = attention
        self.cache = transformers.DynamicCache(config=model.config) if cache is None else cache
        self._cache_argument = cache_argument(model)
        self._last_logits: Any = None
        self.token: Any = None

    def prefill(self, prompt: Any) -> None:
        self._forward(prompt, logits_to_keep=1)

    def step(self) -> None:
        self._forward(self.token)

    def logits(self) -> Any:
        return self._last_logits[0, -1]

    def held_bytes(self) -> dict[str, int]:
        return held_bytes(self.model, self.cache)

    def _forward(self, ids: Any, **options: Any) -> None:
        with self._attention():
            output = self.model(
                ids, use_cache=True, **{self._cache_argument: self.cache}, **options
            )
        self._last_logits = output.logits
        self.token = output.logits[:, -1:].argmax(-1)


def load(model: Any, trial: Trial) -> HfEager:
    return HfEager(model, attention_of(trial, model))
