"""`ModelShape`: what of a model decides its traffic and its program."""

from typing import Literal

import msgspec

QkNorm = Literal["none", "head", "full"]
Activation = Literal["silu", "gelu_tanh"]


class Rope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotary position parameters, in Hugging Face's names."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 1.0
    original_max_context: int = 0
    rotary_fraction: float = 1.0


# Fields of a shape that may differ without a byte or a kernel of a step being another.
WITHOUT_COST = frozenset({"name", "rope", "max_context"})


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder's shape. Sizes are elements, `attention_windows` tokens (None: all positions)."""

    name: str
    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    rope: Rope
    norm_epsilon: float
    tied_head: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: QkNorm = "none"
    block_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    fused_projections: bool = False
    activation: Activation = "silu"
    norm_offset: float = 0.0
    attention_windows: tuple[int | None, ...] = ()
    rope_layers: tuple[bool, ...] = ()
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    attention_scale: float | None = None
    embedding_scale: float = 1.0
    num_experts: int = 0
    num_active_experts: int = 0

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one position over all layers, in a 16-bit type."""
        return 2 * self.num_layers * self.kv_size * 2
