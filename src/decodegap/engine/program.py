"""A decode step as a short list of ops on named buffers.

    embed · (norm_qkv · attend · o_residual · norm_gate_up · down_residual) × layers · head

The list is built from a `ModelShape` and says, for each op, which buffers it reads and writes and
which weights it streams. Two executors run it: `reference.py` in plain torch, and the Triton
kernels inside one CUDA graph. Op names are those of `decodegap.predict.tensors.OPS`.
"""

from dataclasses import dataclass

from decodegap.errors import BadConfig, BadContext
from decodegap.predict.model import ModelShape
from decodegap.predict.tensors import ParameterTensor, parameter_tensors

HEAD_DIMS = (64, 128)
MAX_GROUP = 16  # query heads per KV head: one tile of the tensor cores has 16 rows
ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSpec:
    """One tensor the engine holds: `sources` are checkpoint tensors stacked along dimension 0."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[ParameterTensor, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One op of the step. `layer` is None outside the blocks. `weights` are `WeightSpec` names
    without their prefix; see `weight_name`."""

    name: str
    layer: int | None
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    weights: tuple[str, ...]

    def weight_name(self, part: str) -> str:
        return weight_name(self.name, part, self.layer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """The ops of one step in order, for a cache of `max_context` positions."""

    shape: ModelShape
    max_context: int
    ops: tuple[Op, ...]
    weights: tuple[WeightSpec, ...]

    @property
    def group(self) -> int:
        """Query heads that share one KV head."""
        return self.shape.num_heads // self.shape.num_kv_heads

    @property
    def head_weight(self) -> str:
        """The head's matrix: the embedding's own table when tied."""
        return "embed.table" if self.shape.tied_head else "head.weight"


def build_program(shape: ModelShape, max_context: int | None = None) -> Program:
    """The step of `shape`, with a cache of `max_context` positions (default: the model's own).

    Raises:
        BadConfig: the model has something the engine cannot decode; the message names it.
        BadContext: `max_context` is not positive or is beyond the model's.
    """
    max_context = shape.max_context if max_context is None else max_context
    if not 1 <= max_context <= shape.max_context:
        raise BadContext(
            f"max_context {max_context} is outside 1 … {shape.max_context}, what {shape.name} takes"
        )
    _refuse_unsupported(shape, max_context)
    return Program(
        shape=shape,
        max_context=max_context,
        ops=tuple(_ops(shape)),
        weights=tuple(_weight_specs(shape)),
    )


def weight_name(op: str, part: str, layer: int | None) -> str:
    """`layer.3.norm_qkv.weight`, `head.norm`, `embed.table`."""
    return f"{op}.{part}" if layer is None else f"layer.{layer}.{op}.{part}"


def _ops(shape: ModelShape) -> list[Op]:
    ops = [_op("embed", None, ("token",), ("hidden",), ("table",))]
    qkv_weights = ("norm", "weight", "bias") if shape.qkv_bias else ("norm", "weight")
    attend_weights = ("q_norm", "k_norm") if shape.qk_norm == "head" else ()
    for layer in range(shape.num_layers):
        cache = (f"keys.{layer}", f"values.{layer}")
        ops += [
            _op("norm_qkv", layer, ("hidden",), ("qkv",), qkv_weights),
            _op(
                "attend",
                layer,
                ("qkv", "position", "rope_cos", "rope_sin", *cache),
                ("attended", *cache),
                attend_weights,
            ),
            _op("o_residual", layer, ("attended", "hidden"), ("hidden",), ("weight",)),
            _op("norm_gate_up", layer, ("hidden",), ("inner",), ("norm", "weight")),
            _op("down_residual", layer, ("inner", "hidden"), ("hidden",), ("weight",)),
        ]
    ops.append(_op("head", None, ("hidden",), ("logits", "token", "position"), ("norm", "weight")))
    return ops


def _op(
    name: str,
    layer: int | None,
    reads: tuple[str, ...],
    writes: tuple[str, ...],
    weights: tuple[str, ...],
) -> Op:
    return Op(name=name, layer=layer, reads=reads, writes=writes, weights=weights)


def _weight_specs(shape: ModelShape) -> list[WeightSpec]:
    """Group the inventory: q, k, v and gate, up become one matrix each, in that order."""
    groups: dict[str, list[ParameterTensor]] = {}
    for tensor in parameter_tensors(shape):
        name = weight_name(tensor.op, _part(tensor), tensor.layer)
        groups.setdefault(name, []).append(tensor)
    return [
        WeightSpec(
            name=name,
            shape=(sum(source.shape[0] for source in sources), *sources[0].shape[1:]),
            sources=tuple(sources),
        )
        for name, sources in groups.items()
    ]


def _part(tensor: ParameterTensor) -> str:
    if tensor.op == "attend":
        return "q_norm" if "q_norm" in tensor.name else "k_norm"
    return {"embedding": "table", "linear": "weight", "norm": "norm", "bias": "bias"}[tensor.kind]


def _refuse_unsupported(shape: ModelShape, max_context: int) -> None:
    missing = [what for what, present in _unsupported(shape, max_context) if present]
    if missing:
        raise BadConfig(
            f"{shape.name}: the engine does not decode {' or '.join(missing)} yet; "
            "measure it with another runtime, such as hf-static"
        )


def _unsupported(shape: ModelShape, max_context: int) -> list[tuple[str, bool]]:
    standard_norms = ("input_layernorm", "post_attention_layernorm")
    window = min((w for w in shape.attention_windows if w is not None), default=None)
    group = shape.num_heads // shape.num_kv_heads
    return [
        ("mixture-of-experts layers", shape.num_experts > 0),
        ("fused qkv and gate_up checkpoints", shape.fused_projections),
        ("norms after the sub-blocks", shape.block_norms != standard_norms),
        ("a norm over all of q and k", shape.qk_norm == "full"),
        (f"the activation {shape.activation}", shape.activation != "silu"),
        ("norm weights stored as an offset from one", shape.norm_offset != 0.0),
        ("an output-projection bias", shape.o_bias),
        ("MLP biases", shape.mlp_bias),
        (
            f"a sliding window of {window} (with max_context at most {window} it would not act)",
            window is not None and window < max_context,
        ),
        ("layers without RoPE", not all(shape.rope_layers)),
        ("soft-capped attention", shape.attention_softcap is not None),
        ("soft-capped logits", shape.logit_softcap is not None),
        ("an attention scale of its own", shape.attention_scale is not None),
        ("a scaled embedding", shape.embedding_scale != 1.0),
        (f"rope scaling {shape.rope.kind!r}", shape.rope.kind not in ROPE_KINDS),
        ("partial rotary embedding", shape.rope.rotary_fraction != 1.0),
        (f"head_dim {shape.head_dim} (64 and 128 are)", shape.head_dim not in HEAD_DIMS),
        (f"{group} query heads per KV head (up to {MAX_GROUP} are)", group > MAX_GROUP),
    ]
