"""The prompt but its last token, all at once, in plain torch: fills the cache.

Matrix products run in the weights' own type and attention through SDPA, as transformers does.
The MLP goes in pieces of `MLP_TOKENS`, which bounds its scratch to about half a gigabyte for an 8B
model.
"""

import torch
import torch.nn.functional as F

from decodegap.engine.buffers import Buffers
from decodegap.engine.program import Program, weight_name
from decodegap.engine.weights import Weights

MLP_TOKENS = 4096


@torch.inference_mode()
def prefill(program: Program, weights: Weights, buffers: Buffers, ids: torch.Tensor) -> None:
    """Fill the cache with `ids` [num_tokens] at positions 0 … n − 1."""
    last_layer = program.shape.num_layers - 1
    hidden = weights["embed.table"][ids]
    for layer in range(last_layer):
        q, k, v = _qkv(program, weights, buffers, layer, hidden)
        _add_attention(program, weights, layer, hidden, q, k, v)
        for piece in hidden.split(MLP_TOKENS):
            _add_mlp(program, weights, layer, piece)
    # Of the last layer only the cache is wanted: the step that follows reads nothing else.
    _qkv(program, weights, buffers, last_layer, hidden)


def _add_attention(
    program: Program,
    weights: Weights,
    layer: int,
    hidden: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> None:
    """Add causal attention of q, k, v [heads, num_tokens, head_dim], projected, to hidden
    [num_tokens, H]; the sum is part of the matrix product."""
    out = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True, enable_gqa=True)
    flat = out[0].transpose(0, 1).reshape(q.shape[1], program.shape.q_size)
    hidden.addmm_(flat, weights[weight_name("o_residual", "weight", layer)].t())


def _qkv(
    program: Program, weights: Weights, buffers: Buffers, layer: int, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as [heads, num_tokens, head_dim], q and k normed and turned; k and v are cached."""
    shape, num_tokens = program.shape, len(hidden)
    normed = _norm(hidden, weights[weight_name("norm_qkv", "norm", layer)], program)
    bias = weights[weight_name("norm_qkv", "bias", layer)] if shape.qkv_bias else None
    qkv = F.linear(normed, weights[weight_name("norm_qkv", "weight", layer)], bias)
    q, k, v = (
        part.view(num_tokens, -1, shape.head_dim).transpose(0, 1)
        for part in qkv.split([shape.q_size, shape.kv_size, shape.kv_size], dim=-1)
    )
    if shape.qk_norm == "head":
        q = _norm(q, weights[weight_name("attend", "q_norm", layer)], program)
        k = _norm(k, weights[weight_name("attend", "k_norm", layer)], program)
    cos, sin = buffers["rope_cos"][:num_tokens], buffers["rope_sin"][:num_tokens]
    cached_keys = buffers[f"keys.{layer}"][:, :num_tokens]
    buffers[f"values.{layer}"][:, :num_tokens] = v
    _rotate_into(cached_keys, k, cos, sin)
    turned = torch.empty_like(q, memory_format=torch.contiguous_format)
    _rotate_into(turned, q, cos, sin)
    return turned, cached_keys, v


def _rotate_into(out: torch.Tensor, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """RoPE as `reference.rotate` does it, in fp32, written straight to where it is wanted."""
    low, high = x.chunk(2, dim=-1)
    out_low, out_high = out.chunk(2, dim=-1)
    torch.sub(low * cos, high * sin, out=out_low)
    torch.add(high * cos, low * sin, out=out_high)


def _add_mlp(program: Program, weights: Weights, layer: int, hidden: torch.Tensor) -> None:
    normed = _norm(hidden, weights[weight_name("norm_gate_up", "norm", layer)], program)
    gate_up = F.linear(normed, weights[weight_name("norm_gate_up", "weight", layer)])
    gate, up = gate_up.chunk(2, dim=-1)
    inner = F.silu(gate).mul_(up)
    hidden.addmm_(inner, weights[weight_name("down_residual", "weight", layer)].t())


def _norm(x: torch.Tensor, weight: torch.Tensor, program: Program) -> torch.Tensor:
    """RMSNorm in torch's own kernel, which sums in fp32; one pass where plain torch takes six."""
    return F.rms_norm(x, weight.shape, weight, program.shape.norm_epsilon)
