"""`ModelShape`: what of a model decides its traffic and its program.

A Hugging Face `config.json` is translated here, once, into a frozen struct; nothing else in the
project reads a foreign config. A key that is missing takes the default of the architecture's own
config class in transformers where there is one that cannot change the bytes silently; otherwise
its absence is an error.
"""

import math
from typing import Any, Literal

import msgspec

from decodegap.errors import BadConfig, nearest

QkNorm = Literal["none", "head", "full"]
Activation = Literal["silu", "gelu_tanh"]

# No published dense decoder comes near these; a larger figure is a typo or another unit.
_MAX_DIMENSION = 1 << 24
_MAX_LAYERS = 4096


class Rope(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rotary position parameters, in Hugging Face's names."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 1.0
    original_max_context: int = 0
    rotary_fraction: float = 1.0


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
        """Keys and values of one position over all layers, bf16."""
        return 2 * self.num_layers * self.kv_size * 2


class _Family(msgspec.Struct, frozen=True, kw_only=True):
    """What an architecture fixes in its code rather than in its config."""

    qkv_bias: bool | None = None  # None: the config's `attention_bias` decides, o_proj included
    qk_norm: QkNorm = "none"
    block_norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    fused_projections: bool = False
    norm_offset: float = 0.0
    tied_head: bool = False  # the config class's default
    windows: Literal["none", "config", "use_sliding_window", "layer_types"] = "none"
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

FAMILIES: dict[str, _Family] = {
    "llama": _Family(),
    "mistral": _Family(qkv_bias=False, windows="config", default_window=4096),
    "qwen2": _Family(qkv_bias=True, windows="use_sliding_window", max_window_layers=28),
    "qwen3": _Family(qk_norm="head", windows="use_sliding_window", max_window_layers=28),
    "smollm3": _Family(tied_head=True, windows="use_sliding_window", rope_theta=2e6),
    "phi3": _Family(qkv_bias=False, fused_projections=True, windows="config", norm_epsilon=1e-5),
    "olmo2": _Family(
        qk_norm="full",
        block_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
        norm_epsilon=1e-5,
    ),
    "gemma": _Family(
        norm_offset=1.0, tied_head=True, activation="gelu_pytorch_tanh", scaled_embedding=True
    ),
    "gemma2": _Family(
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
    "gemma3_text": _Family(
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
    "mixtral": _Family(
        qkv_bias=False,
        windows="config",
        norm_epsilon=1e-5,
        rope_theta=1e6,
        expert_count_keys=("num_local_experts", "num_experts"),
    ),
    "qwen3_moe": _Family(
        qk_norm="head",
        windows="use_sliding_window",
        expert_count_keys=("num_experts", "num_local_experts"),
        expert_size_key="moe_intermediate_size",
    ),
}

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    # Gemma 1 configs say "gelu"; the reference implementation and transformers use the tanh form.
    "gelu": "gelu_tanh",
}


def from_hf(config: dict[str, Any], name: str) -> ModelShape:
    """Translate a parsed Hugging Face `config.json`.

    Raises:
        BadConfig: a field is missing, of the wrong type, absurd, or the architecture is unknown.
    """
    architecture = config.get("model_type")
    if not isinstance(architecture, str):
        raise BadConfig(f"{name}: config has no `model_type`; is this a language model's config?")
    family = FAMILIES.get(architecture)
    if family is None:
        raise BadConfig(
            f"{name}: architecture {architecture!r} is not one whose bytes are counted; "
            + nearest(architecture, FAMILIES)
        )
    shape = _translate(_Reader(config, name), family, architecture)
    _validate(shape)
    return shape


def _translate(read: "_Reader", family: _Family, architecture: str) -> ModelShape:
    num_layers = read.size("num_hidden_layers", limit=_MAX_LAYERS)
    num_heads = read.size("num_attention_heads")
    hidden_size = read.size("hidden_size")
    experts = _experts(read, family)
    attention_bias = read.flag("attention_bias", default=False)
    return ModelShape(
        name=read.name,
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(read, architecture, num_heads),
        head_dim=_head_dim(read, architecture, hidden_size, num_heads),
        intermediate_size=read.size(family.expert_size_key if experts[0] else "intermediate_size"),
        vocab_size=read.size("vocab_size"),
        max_context=read.size("max_position_embeddings"),
        rope=_rope(read, family),
        norm_epsilon=read.number("rms_norm_eps", default=family.norm_epsilon),
        tied_head=read.flag("tie_word_embeddings", default=family.tied_head),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=attention_bias if family.qkv_bias is None else False,
        mlp_bias=read.flag("mlp_bias", default=False) if architecture == "llama" else False,
        qk_norm=family.qk_norm,
        block_norms=family.block_norms,
        fused_projections=family.fused_projections,
        activation=_activation(read, family),
        norm_offset=family.norm_offset,
        attention_windows=_windows(read, family, num_layers),
        rope_layers=_rope_layers(read, architecture, num_layers),
        attention_softcap=read.optional_number("attn_logit_softcapping", family.attention_softcap),
        logit_softcap=read.optional_number("final_logit_softcapping", family.logit_softcap),
        attention_scale=_attention_scale(read, family),
        embedding_scale=hidden_size**0.5 if family.scaled_embedding else 1.0,
        num_experts=experts[0],
        num_active_experts=experts[1],
    )


class _Reader:
    """Typed access to a foreign config; every refusal names the model, the key and the value."""

    def __init__(self, config: dict[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def get(self, key: str) -> Any:
        return self.config.get(key)

    def size(self, key: str, limit: int = _MAX_DIMENSION) -> int:
        value = self.config.get(key)
        if value is None:
            raise BadConfig(f"{self.name}: config lacks `{key}`; take the model's own config.json")
        return self._checked_size(key, value, limit)

    def optional_size(self, key: str, absent: int | None = None) -> int | None:
        """`absent` stands for a key that is not there; a null is None, which can differ."""
        value = self.config.get(key, absent)
        return None if value is None else self._checked_size(key, value, _MAX_DIMENSION)

    def _checked_size(self, key: str, value: Any, limit: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadConfig(f"{self.name}: `{key}` must be a whole number, not {value!r}")
        if not 0 < value <= limit:
            raise BadConfig(f"{self.name}: `{key}` = {value} is outside 1 … {limit}")
        return value

    def count(self, key: str, absent: int) -> int:
        """A whole number that may be zero."""
        value = self.config.get(key)
        if value is None:
            return absent
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise BadConfig(f"{self.name}: `{key}` must be a whole number, not {value!r}")
        return value

    def number(self, key: str, default: float) -> float:
        value = self.optional_number(key)
        return default if value is None else value

    def optional_number(self, key: str, absent: float | None = None) -> float | None:
        value = self.config.get(key, absent)
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise BadConfig(f"{self.name}: `{key}` must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BadConfig(f"{self.name}: `{key}` must be true or false, not {value!r}")
        return value


def _num_kv_heads(read: _Reader, architecture: str, num_heads: int) -> int:
    given = read.optional_size("num_key_value_heads")
    if given is not None:
        return given
    # LlamaConfig, OlmoConfig and Phi3Config mean "as many as heads"; the others have a number
    # of their own that a config file without the key would hide.
    if architecture in {"llama", "olmo2", "phi3"}:
        return num_heads
    raise BadConfig(f"{read.name}: config lacks `num_key_value_heads`; add it from the model card")


def _head_dim(read: _Reader, architecture: str, hidden_size: int, num_heads: int) -> int:
    given = read.optional_size("head_dim")
    if given is not None:
        return given
    if architecture in {"gemma", "gemma2", "gemma3_text", "qwen3", "qwen3_moe"}:
        raise BadConfig(f"{read.name}: config lacks `head_dim`, which {architecture} sets apart")
    if hidden_size % num_heads:
        raise BadConfig(
            f"{read.name}: hidden_size {hidden_size} is not divisible by {num_heads} attention "
            "heads; give `head_dim` in the config"
        )
    return hidden_size // num_heads


def _experts(read: _Reader, family: _Family) -> tuple[int, int]:
    for key in family.expert_count_keys:
        if read.get(key) is not None:
            _refuse_mixed_layers(read)
            return read.size(key), read.size("num_experts_per_tok")
    if family.expert_count_keys:
        raise BadConfig(f"{read.name}: config lacks `{family.expert_count_keys[0]}`")
    return 0, 0


def _refuse_mixed_layers(read: _Reader) -> None:
    if read.get("mlp_only_layers") or read.get("decoder_sparse_step") not in (None, 1):
        raise BadConfig(
            f"{read.name}: models that mix dense and expert layers are not counted yet; "
            "every layer must have experts"
        )


def _activation(read: _Reader, family: _Family) -> Activation:
    name = read.get("hidden_activation") or read.get("hidden_act") or family.activation
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise BadConfig(f"{read.name}: activation {name!r} is unknown; known: silu, gelu (tanh)")
    return _ACTIVATIONS[name]


def _attention_scale(read: _Reader, family: _Family) -> float | None:
    scalar = read.optional_number("query_pre_attn_scalar", family.query_scalar)
    return None if scalar is None else scalar**-0.5


def _windows(read: _Reader, family: _Family, num_layers: int) -> tuple[int | None, ...]:
    """Sliding window of each layer, or an empty tuple where every layer sees all positions."""
    window = read.optional_size("sliding_window", family.default_window)
    if window is None or family.windows == "none":
        return ()
    if family.windows == "use_sliding_window":
        if not read.flag("use_sliding_window", default=False):
            return ()
        # Qwen: the first `max_window_layers` layers keep full attention.
        num_full = min(read.count("max_window_layers", family.max_window_layers), num_layers)
        return (None,) * num_full + (window,) * (num_layers - num_full)
    if family.windows == "config":
        return (window,) * num_layers
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(read))


def _layer_types(read: _Reader) -> list[str]:
    num_layers = read.size("num_hidden_layers", limit=_MAX_LAYERS)
    given = read.get("layer_types")
    if given is not None:
        if not isinstance(given, list) or len(given) != num_layers:
            raise BadConfig(f"{read.name}: `layer_types` must list {num_layers} layers")
        return [str(kind) for kind in given]
    # Gemma 2 alternates, sliding first; Gemma 3 has one full layer in `sliding_window_pattern`.
    period = read.optional_size("sliding_window_pattern") or (
        6 if read.get("model_type") == "gemma3_text" else 2
    )
    return [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention"
        for layer in range(num_layers)
    ]


def _rope_layers(read: _Reader, architecture: str, num_layers: int) -> tuple[bool, ...]:
    """Which layers rotate, or an empty tuple where all do (SmolLM3 leaves every fourth out)."""
    if architecture != "smollm3":
        return ()
    given = read.get("no_rope_layers")
    if isinstance(given, list) and len(given) == num_layers:
        return tuple(bool(rotates) for rotates in given)
    interval = read.optional_size("no_rope_layer_interval") or 4
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))


def _rope(read: _Reader, family: _Family) -> Rope:
    """From `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (4 and older)."""
    parameters = read.get("rope_parameters") or read.get("rope_scaling") or {}
    if isinstance(parameters, dict) and "full_attention" in parameters:
        parameters = parameters["full_attention"]  # one table per layer type: Gemma 3
    if not isinstance(parameters, dict):
        raise BadConfig(f"{read.name}: `rope_parameters` must be a table, not {parameters!r}")
    inner = _Reader(parameters, read.name)
    theta = inner.optional_number("rope_theta") or read.optional_number("rope_theta")
    return Rope(
        theta=family.rope_theta if theta is None else theta,
        kind=str(parameters.get("rope_type") or parameters.get("type") or "default"),
        factor=inner.number("factor", 1.0),
        low_frequency_factor=inner.number("low_freq_factor", 1.0),
        high_frequency_factor=inner.number("high_freq_factor", 1.0),
        original_max_context=inner.optional_size("original_max_position_embeddings")
        or read.optional_size("original_max_position_embeddings")
        or 0,
        rotary_fraction=inner.optional_number("partial_rotary_factor")
        or read.number("partial_rotary_factor", 1.0),
    )


def _validate(shape: ModelShape) -> None:
    if shape.num_heads % shape.num_kv_heads:
        raise BadConfig(
            f"{shape.name}: {shape.num_heads} attention heads are not divisible by "
            f"{shape.num_kv_heads} KV heads"
        )
    if shape.num_active_experts > shape.num_experts:
        raise BadConfig(
            f"{shape.name}: {shape.num_active_experts} active experts of {shape.num_experts}"
        )
