"""Decode Llama-like checkpoints at batch 1, near the memory floor.

    engine = Engine.from_pretrained("checkpoint", max_context=16384)
    for token in engine.generate(prompt_ids, max_new_tokens=256):
        ...

Importing this package loads no torch; the first use of `Engine` does.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decodegap.engine.engine import Engine

__all__ = ["Engine"]


def __getattr__(name: str) -> Any:
    if name == "Engine":
        from decodegap.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
