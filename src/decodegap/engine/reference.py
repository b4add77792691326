"""The program in plain torch, on any device: the truth the kernels are tested against.

Every op computes in fp32 from the stored weights and buffers and rounds only what it stores.
Weights of a 16-bit type are upcast on each use, so this is a check, not a way to decode fast; on a
CPU hold the weights in fp32. Each function takes the op, the program, weights and buffers, and
writes the buffers the op names.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from decodegap.engine.buffers import Buffers
from decodegap.engine.program import Op, Program
from decodegap.engine.weights import Weights

OpFunction = Callable[[Op, Program, Weights, Buffers], None]


def run_step(program: Program, weights: Weights, buffers: Buffers) -> None:
    """Decode `token` at `position`; leave logits, the next token and the next position."""
    for op in program.ops:
        run_op(op, program, weights, buffers)


def run_op(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    OPS[op.name](op, program, weights, buffers)


def embed(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    buffers["hidden"].copy_(weights[op.weight_name("table")][buffers["token"]][0])


def norm_qkv(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    normed = rms_norm(
        buffers["hidden"], weights[op.weight_name("norm")], program.shape.norm_epsilon
    )
    bias = weights[op.weight_name("bias")].float() if program.shape.qkv_bias else None
    buffers["qkv"].copy_(F.linear(normed, weights[op.weight_name("weight")].float(), bias))


def attend(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    shape, layer = program.shape, op.layer
    position = int(buffers["position"])
    q, k, v = (
        part.view(-1, shape.head_dim)
        for part in buffers["qkv"].float().split([shape.q_size, shape.kv_size, shape.kv_size])
    )
    if shape.qk_norm == "head":
        q = rms_norm(q, weights[op.weight_name("q_norm")], shape.norm_epsilon)
        k = rms_norm(k, weights[op.weight_name("k_norm")], shape.norm_epsilon)
    cos, sin = buffers["rope_cos"][position], buffers["rope_sin"][position]
    keys, values = buffers[f"keys.{layer}"], buffers[f"values.{layer}"]
    keys[:, position] = rotate(k, cos, sin).to(keys.dtype)
    values[:, position] = v.to(values.dtype)
    q = rotate(q, cos, sin).view(shape.num_kv_heads, program.group, shape.head_dim)
    past = slice(0, position + 1)
    scores = q @ keys[:, past].float().transpose(1, 2) * shape.head_dim**-0.5
    out = scores.softmax(dim=-1) @ values[:, past].float()
    buffers["attended"].copy_(out.reshape(-1))


def o_residual(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    _add_linear(buffers["attended"], weights[op.weight_name("weight")], buffers["hidden"])


def norm_gate_up(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    normed = rms_norm(
        buffers["hidden"], weights[op.weight_name("norm")], program.shape.norm_epsilon
    )
    gate, up = F.linear(normed, weights[op.weight_name("weight")].float()).chunk(2)
    buffers["inner"].copy_(F.silu(gate) * up)


def down_residual(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    _add_linear(buffers["inner"], weights[op.weight_name("weight")], buffers["hidden"])


def head(op: Op, program: Program, weights: Weights, buffers: Buffers) -> None:
    normed = rms_norm(
        buffers["hidden"], weights[op.weight_name("norm")], program.shape.norm_epsilon
    )
    buffers["logits"].copy_(F.linear(normed, weights[program.head_weight].float()))
    buffers["token"].copy_(buffers["logits"].argmax().view(1))
    buffers["position"].add_(1)


OPS: dict[str, OpFunction] = {
    "embed": embed,
    "norm_qkv": norm_qkv,
    "attend": attend,
    "o_residual": o_residual,
    "norm_gate_up": norm_gate_up,
    "down_residual": down_residual,
    "head": head,
}


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x / rms(x) · weight over the last dimension, fp32."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE in the halves layout: element i turns with element i + head_dim / 2."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def _add_linear(x: torch.Tensor, weight: torch.Tensor, hidden: torch.Tensor) -> None:
    hidden.copy_(hidden.float() + F.linear(x.float(), weight.float()))
