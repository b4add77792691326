"""What an architecture fixes in its code rather than in its config: one row each.

Where a config file is silent, transformers' own config class for that architecture has a default;
the rows carry those that matter here, and a test holds every one of them against transformers.
"""

from typing import Literal

import msgspec

from decodegap.predict.model import Activation, QkNorm


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture fixes in its code rather than in its config."""

    qkv_bias: bool | None = None  # None: the config's `attention_bias` decides, o_proj included
    qk_norm: QkNorm = "none"
    block_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    fused_projections: bool = False
    norm_offset: float = 0.0
    tied_head: bool = False  # the config class's default
    # Which layers have a window: none; all; those that `layer_types` names, or without such a list
    # the architecture's own. `window_flag`: and only if `use_sliding_window` is set.
    windows: Literal["none", "all", "layer_types"] = "none"
    window_flag: bool = False
    default_window: int | None = None  # the config class's, where the file does not say
    norm_epsilon: float = 1e-6  # likewise
    activation: str = "silu"  # likewise
    rope_theta: float = 10000.0  # likewise
    max_window_layers: int = 0  # likewise
    query_scalar: float | None = None  # likewise
    attention_softcap: float | None = None  # likewise
    logit_softcap: float | None = None  # likewise
    scaled_embedding: bool = False
    expert_count_keys: tuple[str, ...] = ()
    expert_size_key: str = "intermediate_size"


_GEMMA2_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False, windows="all", default_window=4096),
    "qwen2": Family(
        qkv_bias=True,
        windows="layer_types",
        window_flag=True,
        default_window=4096,
        max_window_layers=28,
    ),
    "qwen3": Family(
        qk_norm="head",
        windows="layer_types",
        window_flag=True,
        default_window=4096,
        max_window_layers=28,
    ),
    "smollm3": Family(tied_head=True, windows="layer_types", window_flag=True, rope_theta=2e6),
    "phi3": Family(qkv_bias=False, fused_projections=True, windows="all", norm_epsilon=1e-5),
    "olmo2": Family(
        qk_norm="full",
        block_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        norm_epsilon=1e-5,
    ),
    "gemma": Family(
        norm_offset=1.0, tied_head=True, activation="gelu_pytorch_tanh", scaled_embedding=True
    ),
    "gemma2": Family(
        block_norms=_GEMMA2_NORMS,
        norm_offset=1.0,
        tied_head=True,
        windows="layer_types",
        default_window=4096,
        activation="gelu_pytorch_tanh",
        query_scalar=256.0,
        attention_softcap=50.0,
        logit_softcap=30.0,
        scaled_embedding=True,
    ),
    "gemma3_text": Family(
        qk_norm="head",
        block_norms=_GEMMA2_NORMS,
        norm_offset=1.0,
        tied_head=True,
        windows="layer_types",
        default_window=4096,
        activation="gelu_pytorch_tanh",
        query_scalar=256.0,
        rope_theta=1e6,
        scaled_embedding=True,
    ),
    "mixtral": Family(
        qkv_bias=False,
        windows="all",
        norm_epsilon=1e-5,
        rope_theta=1e6,
        expert_count_keys=("num_local_experts", "num_experts"),
    ),
    "qwen3_moe": Family(
        qk_norm="head",
        windows="all",
        window_flag=True,
        default_window=4096,
        expert_count_keys=("num_experts", "num_local_experts"),
        expert_size_key="moe_intermediate_size",
    ),
}

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    # Gemma 1 configs say "gelu"; the reference implementation and transformers use the tanh form.
    "gelu": "gelu_tanh",
}
