"""Every parameter of a model, by its checkpoint name, with the op that reads it in a step.

The list is the one inventory of the project: traffic counts it, the engine loads by it, and a
test holds it against the tensors that transformers really builds.
"""

from collections.abc import Iterator
from math import prod
from typing import Literal

import msgspec

from decodegap.predict.model import ModelShape

# The ops of a step, in order; one name from program to kernel, flow, account and report.
OPS = ("embed", "norm_qkv", "attend", "o_residual", "norm_gate_up", "down_residual", "head")

OpName = Literal[
    "embed", "norm_qkv", "attend", "o_residual", "norm_gate_up", "down_residual", "head"
]
TensorKind = Literal["embedding", "linear", "norm", "bias"]


class ParameterTensor(msgspec.Struct, frozen=True):
    """One tensor of a checkpoint. `shape` is [out, in] for a linear, [vocab, hidden] for the
    embedding. `layer` is None outside the blocks; `expert` is None outside experts."""

    name: str
    shape: tuple[int, ...]
    op: OpName
    kind: TensorKind
    layer: int | None = None
    expert: int | None = None

    @property
    def num_elements(self) -> int:
        return prod(self.shape)


def parameter_tensors(shape: ModelShape) -> list[ParameterTensor]:
    """All parameters, in checkpoint names. A tied head has no tensor of its own."""
    embedding = (shape.vocab_size, shape.hidden_size)
    tensors = [ParameterTensor("model.embed_tokens.weight", embedding, "embed", "embedding")]
    for layer in range(shape.num_layers):
        tensors.extend(_block_tensors(shape, layer))
    tensors.append(ParameterTensor("model.norm.weight", (shape.hidden_size,), "head", "norm"))
    if not shape.tied_head:
        tensors.append(ParameterTensor("lm_head.weight", embedding, "head", "linear"))
    return tensors


def _block_tensors(shape: ModelShape, layer: int) -> Iterator[ParameterTensor]:
    prefix = f"model.layers.{layer}."
    for name, size, op, kind in (
        *_norms(shape),
        *_attention(shape),
        *(_router(shape) if shape.num_experts else _mlp(shape, "mlp.")),
    ):
        yield ParameterTensor(prefix + name, size, op, kind, layer)
    for expert in range(shape.num_experts):
        for name, size, op, kind in _expert(shape, expert):
            yield ParameterTensor(prefix + name, size, op, kind, layer, expert)


_Row = tuple[str, tuple[int, ...], OpName, TensorKind]

# The op in which each of a block's norms is read: a norm after a sub-block belongs to the op
# that closes it.
_NORM_OPS: dict[tuple[str, ...], tuple[OpName, ...]] = {
    ("input_layernorm", "post_attention_layernorm"): ("norm_qkv", "norm_gate_up"),
    ("post_attention_layernorm", "post_feedforward_layernorm"): ("o_residual", "down_residual"),
    (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ): ("norm_qkv", "o_residual", "norm_gate_up", "down_residual"),
}


def _norms(shape: ModelShape) -> Iterator[_Row]:
    for norm, op in zip(shape.block_norms, _NORM_OPS[shape.block_norms], strict=True):
        yield f"{norm}.weight", (shape.hidden_size,), op, "norm"
    if shape.qk_norm == "head":
        yield "self_attn.q_norm.weight", (shape.head_dim,), "attend", "norm"
        yield "self_attn.k_norm.weight", (shape.head_dim,), "attend", "norm"
    elif shape.qk_norm == "full":
        yield "self_attn.q_norm.weight", (shape.q_size,), "attend", "norm"
        yield "self_attn.k_norm.weight", (shape.kv_size,), "attend", "norm"


def _attention(shape: ModelShape) -> Iterator[_Row]:
    if shape.fused_projections:
        rows = [("qkv_proj", shape.q_size + 2 * shape.kv_size)]
    else:
        rows = [("q_proj", shape.q_size), ("k_proj", shape.kv_size), ("v_proj", shape.kv_size)]
    for name, out in rows:
        yield from _linear(f"self_attn.{name}", out, shape.hidden_size, "norm_qkv", shape.qkv_bias)
    yield from _linear(
        "self_attn.o_proj", shape.hidden_size, shape.q_size, "o_residual", shape.o_bias
    )


def _mlp(shape: ModelShape, prefix: str) -> Iterator[_Row]:
    inner, hidden, bias = shape.intermediate_size, shape.hidden_size, shape.mlp_bias
    if shape.fused_projections:
        yield from _linear(f"{prefix}gate_up_proj", 2 * inner, hidden, "norm_gate_up", bias)
    else:
        yield from _linear(f"{prefix}gate_proj", inner, hidden, "norm_gate_up", bias)
        yield from _linear(f"{prefix}up_proj", inner, hidden, "norm_gate_up", bias)
    yield from _linear(f"{prefix}down_proj", hidden, inner, "down_residual", bias)


def _router(shape: ModelShape) -> Iterator[_Row]:
    name = "block_sparse_moe.gate" if shape.architecture == "mixtral" else "mlp.gate"
    yield from _linear(name, shape.num_experts, shape.hidden_size, "norm_gate_up", bias=False)


def _expert(shape: ModelShape, expert: int) -> Iterator[_Row]:
    inner, hidden = shape.intermediate_size, shape.hidden_size
    if shape.architecture == "mixtral":
        prefix = f"block_sparse_moe.experts.{expert}."
        yield from _linear(f"{prefix}w1", inner, hidden, "norm_gate_up", bias=False)
        yield from _linear(f"{prefix}w3", inner, hidden, "norm_gate_up", bias=False)
        yield from _linear(f"{prefix}w2", hidden, inner, "down_residual", bias=False)
    else:
        yield from _mlp(shape, f"mlp.experts.{expert}.")


def _linear(name: str, out: int, into: int, op: OpName, bias: bool) -> Iterator[_Row]:
    yield f"{name}.weight", (out, into), op, "linear"
    if bias:
        yield f"{name}.bias", (out,), op, "bias"
