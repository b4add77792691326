"""From a Hugging Face `config.json` to a `ModelShape`.

The one place in the project that reads a foreign config. A key that is missing takes the default of
the architecture's own config class in transformers (`families.py`) where there is one; otherwise
its absence is an error, never a guess.
"""

from typing import Any

from decodegap.errors import BadConfig, nearest
from decodegap.predict.config_reader import MAX_EXPERTS, ConfigReader
from decodegap.predict.families import ACTIVATIONS, FAMILIES, Family
from decodegap.predict.model import Activation, ModelShape, Rope

_MAX_LAYERS = 4096


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
    shape = _translate(ConfigReader(config, name), family, architecture)
    _validate(shape)
    return shape


def _translate(read: ConfigReader, family: Family, architecture: str) -> ModelShape:
    num_layers = read.size("num_hidden_layers", limit=_MAX_LAYERS)
    num_heads = read.size("num_attention_heads")
    hidden_size = read.size("hidden_size")
    experts = _experts(read, family)
    attention_bias = read.flag("attention_bias", default=False)
    rope_layers = _rope_layers(read, architecture, num_layers)
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
        attention_windows=_windows(read, family, num_layers, rope_layers),
        rope_layers=rope_layers,
        attention_softcap=read.optional_number("attn_logit_softcapping", family.attention_softcap),
        logit_softcap=read.optional_number("final_logit_softcapping", family.logit_softcap),
        attention_scale=_attention_scale(read, family),
        embedding_scale=hidden_size**0.5 if family.scaled_embedding else 1.0,
        num_experts=experts[0],
        num_active_experts=experts[1],
    )


def _num_kv_heads(read: ConfigReader, architecture: str, num_heads: int) -> int:
    given = read.optional_size("num_key_value_heads")
    if given is not None:
        return given
    # LlamaConfig, OlmoConfig and Phi3Config mean "as many as heads"; the others have a number
    # of their own that a config file without the key would hide.
    if architecture in {"llama", "olmo2", "phi3"}:
        return num_heads
    raise BadConfig(f"{read.name}: config lacks `num_key_value_heads`; add it from the model card")


def _head_dim(read: ConfigReader, architecture: str, hidden_size: int, num_heads: int) -> int:
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


def _experts(read: ConfigReader, family: Family) -> tuple[int, int]:
    for key in family.expert_count_keys:
        if read.get(key) is not None:
            _refuse_mixed_layers(read)
            return read.size(key, MAX_EXPERTS), read.size("num_experts_per_tok", MAX_EXPERTS)
    if family.expert_count_keys:
        raise BadConfig(f"{read.name}: config lacks `{family.expert_count_keys[0]}`")
    return 0, 0


def _refuse_mixed_layers(read: ConfigReader) -> None:
    if read.get("mlp_only_layers") or read.get("decoder_sparse_step") not in (None, 1):
        raise BadConfig(
            f"{read.name}: models that mix dense and expert layers are not counted yet; "
            "every layer must have experts"
        )


def _activation(read: ConfigReader, family: Family) -> Activation:
    name = read.get("hidden_activation") or read.get("hidden_act") or family.activation
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise BadConfig(f"{read.name}: activation {name!r} is unknown; known: silu, gelu (tanh)")
    return ACTIVATIONS[name]


def _attention_scale(read: ConfigReader, family: Family) -> float | None:
    scalar = read.optional_number("query_pre_attn_scalar", family.query_scalar)
    return None if scalar is None else scalar**-0.5


def _windows(
    read: ConfigReader, family: Family, num_layers: int, rope_layers: tuple[bool, ...]
) -> tuple[int | None, ...]:
    """Sliding window of each layer, or an empty tuple where every layer sees all positions."""
    window = read.optional_size("sliding_window", family.default_window)
    if window is None or family.windows == "none":
        return ()
    if family.window_flag and not read.flag("use_sliding_window", default=False):
        return ()
    if family.windows == "all":
        return (window,) * num_layers
    slides = _given_layer_types(read, num_layers)
    if slides is None:
        slides = _own_layer_types(read, family, num_layers, rope_layers)
    return tuple(window if slide else None for slide in slides) if any(slides) else ()


_LAYER_TYPES = {"full_attention": False, "sliding_attention": True}


def _given_layer_types(read: ConfigReader, num_layers: int) -> list[bool] | None:
    """Which layers slide by the config's own list; None where it has none."""
    given = read.get("layer_types")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != num_layers:
        raise BadConfig(f"{read.name}: `layer_types` must list {num_layers} layers")
    for kind in given:
        if kind not in _LAYER_TYPES:
            raise BadConfig(
                f"{read.name}: `layer_types` has {kind!r}; layers of full_attention and of "
                "sliding_attention are counted"
            )
    return [_LAYER_TYPES[kind] for kind in given]


def _own_layer_types(
    read: ConfigReader, family: Family, num_layers: int, rope_layers: tuple[bool, ...]
) -> list[bool]:
    """Which layers slide where the config lists none, as the architecture has it."""
    if rope_layers:  # SmolLM3: those that do not rotate
        return [not rotates for rotates in rope_layers]
    if family.window_flag:  # Qwen: all but the first `max_window_layers`
        num_full = read.count("max_window_layers", family.max_window_layers)
        return [layer >= num_full for layer in range(num_layers)]
    # Gemma 2 alternates, sliding first; Gemma 3 has one full layer in `sliding_window_pattern`.
    period = read.optional_size("sliding_window_pattern") or (
        6 if read.get("model_type") == "gemma3_text" else 2
    )
    return [(layer + 1) % period != 0 for layer in range(num_layers)]


def _rope_layers(read: ConfigReader, architecture: str, num_layers: int) -> tuple[bool, ...]:
    """Which layers rotate, or an empty tuple where all do (SmolLM3 leaves every fourth out)."""
    if architecture != "smollm3":
        return ()
    given = read.get("no_rope_layers")
    if isinstance(given, list) and len(given) == num_layers:
        return tuple(bool(rotates) for rotates in given)
    interval = read.optional_size("no_rope_layer_interval") or 4
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))


_ROPE_FACTORS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}


def _rope(read: ConfigReader, family: Family) -> Rope:
    """From `rope_parameters` (transformers 5) or `rope_theta` + `rope_scaling` (4 and older)."""
    parameters = read.get("rope_parameters") or read.get("rope_scaling") or {}
    if isinstance(parameters, dict) and "full_attention" in parameters:
        parameters = parameters["full_attention"]  # one table per layer type: Gemma 3
    if not isinstance(parameters, dict):
        raise BadConfig(f"{read.name}: `rope_parameters` must be a table, not {parameters!r}")
    inner = ConfigReader(parameters, read.name)
    theta = inner.optional_number("rope_theta") or read.optional_number("rope_theta")
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    for key in _ROPE_FACTORS.get(kind, ()):
        if inner.get(key) is None:
            raise BadConfig(f"{read.name}: rope of type {kind} lacks `{key}`; take its own config")
    return Rope(
        theta=family.rope_theta if theta is None else theta,
        kind=kind,
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
