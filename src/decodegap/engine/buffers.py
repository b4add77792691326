"""The named buffers a step works on, and the rotary tables.

Everything a step touches besides weights is here, allocated once. `token` and `position` live on
the device so that one captured graph serves every step.
"""

from dataclasses import dataclass
from math import pi

import torch

from decodegap.engine.program import Program
from decodegap.predict.model import Rope

Buffers = dict[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferSpec:
    """Shape in elements. `dtype` None means the weights' own."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    holds: str


def buffer_specs(program: Program) -> dict[str, BufferSpec]:
    """Every buffer but the caches' per-layer views, which `allocate` adds.

    Keys and values are [layers, kv_heads, max_context, head_dim]: one head's positions are
    contiguous, so that a split of the context is one span of memory.
    """
    shape, own = program.shape, None
    cache = (shape.num_layers, shape.num_kv_heads, program.max_context, shape.head_dim)
    table = (program.max_context, shape.head_dim // 2)
    return {
        "token": _spec((1,), torch.int64, "the token to decode; after the step, its successor"),
        "position": _spec((1,), torch.int64, "cache slot the token takes = positions before it"),
        "hidden": _spec((shape.hidden_size,), own, "the residual stream"),
        "qkv": _spec((shape.q_size + 2 * shape.kv_size,), own, "q, k, v before norm and RoPE"),
        "attended": _spec((shape.q_size,), own, "attention's output, by head"),
        "inner": _spec((shape.intermediate_size,), own, "silu(gate) · up"),
        "logits": _spec((shape.vocab_size,), torch.float32, "of the last step"),
        "keys": _spec(cache, own, "cached keys after norm and RoPE"),
        "values": _spec(cache, own, "cached values"),
        "rope_cos": _spec(table, torch.float32, "cosine by position and frequency"),
        "rope_sin": _spec(table, torch.float32, "sine by position and frequency"),
    }


def _spec(shape: tuple[int, ...], dtype: torch.dtype | None, holds: str) -> BufferSpec:
    return BufferSpec(shape=shape, dtype=dtype, holds=holds)


def allocate(program: Program, dtype: torch.dtype, device: torch.device) -> Buffers:
    """All buffers, zeroed, with `keys.N` and `values.N` as views of layer N, tables filled."""
    buffers = {
        name: torch.zeros(spec.shape, dtype=spec.dtype or dtype, device=device)
        for name, spec in buffer_specs(program).items()
    }
    for layer in range(program.shape.num_layers):
        buffers[f"keys.{layer}"] = buffers["keys"][layer]
        buffers[f"values.{layer}"] = buffers["values"][layer]
    cos, sin = rope_tables(program.shape.rope, program.shape.head_dim, program.max_context)
    buffers["rope_cos"].copy_(cos)
    buffers["rope_sin"].copy_(sin)
    return buffers


def buffer_bytes(program: Program, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of each buffer, for the memory statement."""
    return {
        name: torch.Size(spec.shape).numel() * (spec.dtype or dtype).itemsize
        for name, spec in buffer_specs(program).items()
    }


def rope_tables(rope: Rope, head_dim: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 cosine and sine, [num_positions, head_dim / 2] each, on the CPU."""
    frequencies = rope_frequencies(rope, head_dim)
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies[None, :]
    return angles.cos(), angles.sin()


def rope_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """Radians per position, [head_dim / 2], fp32."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3_frequencies(rope, frequencies)
    assert rope.kind == "default", rope.kind
    return frequencies


def _llama3_frequencies(rope: Rope, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: short wavelengths stay, long ones stretch by `factor`, between the two
    a linear blend in original_max_context ÷ wavelength."""
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    turns = rope.original_max_context * frequencies / (2 * pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / rope.factor)
