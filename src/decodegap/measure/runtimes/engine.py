"""`engine`: decodegap's own, on the same weights as the transformers model beside it.

On a CUDA GPU its step is one replay of one graph of Triton kernels; on a CPU the plain torch
reference of the same program runs, which is there to be right, not to be fast.
"""

from typing import Any

from decodegap.engine import Engine
from decodegap.errors import BadConfig, Unavailable
from decodegap.measure.runtimes.hf_static import num_positions
from decodegap.record import Trial


class EngineRuntime:
    """An `Engine` that shares the trial's weights where it does not stack them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.token = engine.token

    def prefill(self, prompt: Any) -> None:
        self.engine.prefill(prompt[0])

    def step(self) -> None:
        self.engine.step()

    def logits(self) -> Any:
        return self.engine.logits

    def held_bytes(self) -> dict[str, int]:
        held = self.engine.memory_bytes()
        return {"parameters": held["weights"], "kv_cache": held["cache"]}


def load(model: Any, trial: Trial) -> EngineRuntime:
    """Raises Unavailable for a model with a feature the engine does not have."""
    positions = min(num_positions(trial), trial.shape.max_context)
    try:
        engine = Engine.from_state(
            trial.shape,
            model.state_dict(),
            max_context=positions,
            device=trial.device,
            dtype=trial.format,
        )
    except BadConfig as error:
        raise Unavailable(str(error)) from None
    return EngineRuntime(engine)
