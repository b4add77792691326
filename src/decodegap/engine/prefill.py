"""The prompt but its last token, all at once, in plain torch: fills the cache.

Matrix products run in the weights' own type and attention through SDPA, as transformers does.
The MLP goes in pieces of `MLP_TOKENS`, which bounds its scratch to about half a gigabyte for an 8B
model.
"""

import torch
import torch.nn.functional as F

from decodegap.engine.buffers import Buffers
from decodegap.engine.program import Program, weight_name
from decodegap.engine.reference import rms_norm, rotate
from decodegap.engine.weights import Weights

MLP_TOKENS = 4096


@torch.inference_mode()
def prefill(program: Program, weights: Weights, buffers: Buffers, ids: torch.Tensor) -> None:
    """Fill the cache with `ids` [num_tokens] at positions 0 … n − 1."""
    shape = program.shape
    hidden = weights["embed.table"][ids]
    for layer in range(shape.num_layers):
        normed = _norm(hidden, weights[weight_name("norm_qkv", "norm", layer)], program)
        hidden = hidden + _attention(program, weights, buffers, layer, normed)
        for piece in hidden.split(MLP_TOKENS):
            piece += _mlp(program, weights, layer, piece)


def _attention(
    program: Program, weights: Weights, buffers: Buffers, layer: int, normed: torch.Tensor
) -> torch.Tensor:
    q, k, v = _qkv(program, weights, buffers, layer, normed)
    num_tokens = len(normed)
    buffers[f"keys.{layer}"][:, :num_tokens] = k
    buffers[f"values.{layer}"][:, :num_tokens] = v
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
    flat = out[0].transpose(0, 1).reshape(num_tokens, program.shape.q_size)
    return F.linear(flat, weights[weight_name("o_residual", "weight", layer)])


def _qkv(
    program: Program, weights: Weights, buffers: Buffers, layer: int, normed: torch.Tensor
) -> list[torch.Tensor]:
    """q, k, v as [heads, num_tokens, head_dim], q and k normed and turned."""
    shape = program.shape
    bias = weights[weight_name("norm_qkv", "bias", layer)] if shape.qkv_bias else None
    qkv = F.linear(normed, weights[weight_name("norm_qkv", "weight", layer)], bias)
    q, k, v = (
        part.view(len(normed), -1, shape.head_dim).transpose(0, 1)
        for part in qkv.split([shape.q_size, shape.kv_size, shape.kv_size], dim=-1)
    )
    if shape.qk_norm == "head":
        q = _norm(q, weights[weight_name("attend", "q_norm", layer)], program)
        k = _norm(k, weights[weight_name("attend", "k_norm", layer)], program)
    cos, sin = buffers["rope_cos"][: len(normed)], buffers["rope_sin"][: len(normed)]
    return [rotate(q.float(), cos, sin).to(v.dtype), rotate(k.float(), cos, sin).to(v.dtype), v]


def _mlp(program: Program, weights: Weights, layer: int, hidden: torch.Tensor) -> torch.Tensor:
    normed = _norm(hidden, weights[weight_name("norm_gate_up", "norm", layer)], program)
    gate_up = F.linear(normed, weights[weight_name("norm_gate_up", "weight", layer)])
    gate, up = gate_up.chunk(2, dim=-1)
    inner = F.silu(gate).mul_(up)
    return F.linear(inner, weights[weight_name("down_residual", "weight", layer)])


def _norm(x: torch.Tensor, weight: torch.Tensor, program: Program) -> torch.Tensor:
    return rms_norm(x, weight, program.shape.norm_epsilon).to(weight.dtype)
