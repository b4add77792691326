"""Foreign configs: read as transformers reads them, or refused with what to mend."""

from functools import cache
from typing import Any

import pytest

from builders import shape_of, tiny
from decodegap.errors import BadConfig
from decodegap.predict.families import FAMILIES
from decodegap.predict.hf_config import from_hf
from families import FAMILY_CONFIGS, build

# Held against transformers


@cache
def layers_of(name: str) -> list[Any]:
    return list(build(name).model.layers)


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_windows_are_those_of_transformers_layers(name):
    built = tuple(window_of(layer.self_attn) for layer in layers_of(name))
    counted = shape_of(FAMILY_CONFIGS[name]).attention_windows
    assert (counted or (None,) * len(built)) == built


def window_of(attention: Any) -> int | None:
    """Some attention modules keep their window, others read the config's at every step."""
    shared = getattr(attention.config, "sliding_window", None)
    return getattr(attention, "sliding_window", shared)


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_attention_scale_is_that_of_transformers_layers(name):
    shape = shape_of(FAMILY_CONFIGS[name])
    scale = shape.attention_scale or shape.head_dim**-0.5
    for layer in layers_of(name):
        assert layer.self_attn.scaling == pytest.approx(scale)
        assert layer.self_attn.head_dim == shape.head_dim


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_epsilon_caps_and_context_are_those_of_transformers(name):
    shape, config = shape_of(FAMILY_CONFIGS[name]), build(name).config
    assert shape.norm_epsilon == config.rms_norm_eps
    assert shape.attention_softcap == getattr(config, "attn_logit_softcapping", None)
    assert shape.logit_softcap == getattr(config, "final_logit_softcapping", None)
    assert shape.max_context == config.max_position_embeddings
    assert shape.rope.theta == rope_theta(config)


def rope_theta(config: Any) -> float:
    parameters = config.rope_parameters
    return parameters.get("full_attention", parameters)["rope_theta"]


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_what_transformers_writes_is_read_as_the_same_shape(name):
    """The config.json of a saved model has every default spelled out and keys of its own."""
    saved = build(name).config.to_dict()
    if name.startswith("phi3"):  # a length its class writes and plain RoPE does not use
        assert saved.pop("original_max_position_embeddings") == 4096
        saved["rope_parameters"].pop("original_max_position_embeddings", None)
    assert from_hf(saved, "made-up") == shape_of(FAMILY_CONFIGS[name])


def test_layers_without_rope_are_those_of_transformers():
    built = tuple(bool(layer.self_attn.use_rope) for layer in layers_of("smollm3"))
    assert shape_of(FAMILY_CONFIGS["smollm3"]).rope_layers == built
    assert built == (True, True, True, False, True)


@pytest.mark.parametrize("architecture", FAMILIES)
def test_what_a_file_leaves_out_is_what_transformers_makes_of_it(architecture):
    """A default is taken over as the architecture's class has it, or its absence is refused."""
    import transformers

    left_out = {"rms_norm_eps": None, "rope_theta": None, "hidden_act": None}
    bare = tiny(model_type=architecture, head_dim=16, tie_word_embeddings=None, **left_out)
    if FAMILIES[architecture].expert_count_keys:
        bare |= {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    config = transformers.AutoConfig.for_model(architecture)
    shape = shape_of(bare)
    assert shape.norm_epsilon == config.rms_norm_eps
    assert shape.tied_head == config.tie_word_embeddings
    assert shape.rope.theta == rope_theta(config)
    activation = getattr(config, "hidden_activation", None) or config.hidden_act
    assert shape.activation == {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}[activation]


def test_windows_that_no_file_names_are_those_of_transformers():
    import transformers

    for architecture, family in FAMILIES.items():
        if family.windows != "none":
            flag = {"use_sliding_window": True} if family.window_flag else {}
            config = transformers.AutoConfig.for_model(architecture, **flag)
            assert family.default_window == config.sliding_window, architecture


@pytest.mark.parametrize(
    "types, problem",
    [
        (["full_attention"], "must list 2 layers"),
        ("sliding_attention", "must list 2 layers"),
        (["full_attention", "linear_attention"], "has 'linear_attention'; layers of"),
    ],
)
def test_a_list_of_layer_types_that_is_not_understood_is_refused(types, problem):
    window = {"use_sliding_window": True, "sliding_window": 12, "layer_types": types}
    with pytest.raises(BadConfig, match=problem):
        shape_of(tiny(model_type="qwen2") | window)


def test_layers_that_all_see_everything_are_no_windows():
    window = {"use_sliding_window": True, "sliding_window": 12}
    config = tiny(model_type="qwen2", layer_types=["full_attention"] * 2) | window
    assert shape_of(config).attention_windows == ()


# Sizes


def test_head_dim_is_read_before_it_is_derived():
    assert shape_of(tiny()).head_dim == 16
    assert shape_of(tiny(head_dim=40)).head_dim == 40
    assert shape_of(tiny(head_dim=40)).q_size == 160


def test_llama_without_kv_heads_has_as_many_as_heads():
    assert shape_of(tiny(num_key_value_heads=None)).num_kv_heads == 4


def test_a_null_window_is_not_the_class_s_default():
    assert shape_of(tiny(model_type="mistral") | {"sliding_window": None}).attention_windows == ()
    assert shape_of(tiny(model_type="mistral")).attention_windows == (4096, 4096)


def test_old_and_new_rope_spellings_agree():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = shape_of(tiny(rope_theta=5e5, rope_scaling=scaling))
    new = shape_of(tiny(rope_theta=None, rope_parameters={**scaling, "rope_theta": 5e5}))
    assert old == new
    assert (old.rope.kind, old.rope.theta, old.rope.factor) == ("llama3", 5e5, 8.0)
    assert old.rope.original_max_context == 64


def test_a_shape_survives_json():
    import msgspec

    shape = shape_of(FAMILY_CONFIGS["gemma2"])
    assert msgspec.json.decode(msgspec.json.encode(shape), type=type(shape)) == shape


# Refusals: (what is changed, what the message must say)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": (tiny(model_type=None), "no `model_type`"),
    "architecture not text": (tiny(model_type=3), "no `model_type`"),
    "unknown architecture": (tiny(model_type="lama"), "'lama'.*did you mean llama"),
    "encoder": (tiny(model_type="bert"), "not one whose bytes are counted"),
    "multimodal wrapper": (tiny(model_type="gemma3"), "'gemma3'.*gemma3_text"),
    "no layers": (tiny(num_hidden_layers=None), "lacks `num_hidden_layers`"),
    "no hidden size": (tiny(hidden_size=None), "lacks `hidden_size`"),
    "no heads": (tiny(num_attention_heads=None), "lacks `num_attention_heads`"),
    "no inner size": (tiny(intermediate_size=None), "lacks `intermediate_size`"),
    "no vocabulary": (tiny(vocab_size=None), "lacks `vocab_size`"),
    "no context": (tiny(max_position_embeddings=None), "lacks `max_position_embeddings`"),
    "no KV heads": (
        tiny(model_type="qwen2", num_key_value_heads=None),
        "lacks `num_key_value_heads`",
    ),
    "no head_dim": (tiny(model_type="qwen3"), "lacks `head_dim`"),
    "no experts": (tiny(model_type="mixtral"), "lacks `num_local_experts`"),
    "no active experts": (
        tiny(model_type="mixtral", num_local_experts=4),
        "lacks `num_experts_per_tok`",
    ),
    "more active experts than there are": (
        tiny(model_type="mixtral", num_local_experts=4, num_experts_per_tok=5),
        "5 active experts of 4",
    ),
    "dense and expert layers mixed": (
        FAMILY_CONFIGS["qwen3_moe"] | {"mlp_only_layers": [0]},
        "mix dense and expert layers",
    ),
    "heads do not divide the hidden size": (
        tiny(num_attention_heads=6, num_key_value_heads=2),
        "64 is not divisible by 6 attention heads",
    ),
    "KV heads do not divide the heads": (
        tiny(num_key_value_heads=3),
        "4 attention heads are not divisible by 3 KV heads",
    ),
    "negative": (tiny(hidden_size=-64), "`hidden_size` = -64 is outside"),
    "zero": (tiny(num_hidden_layers=0), "`num_hidden_layers` = 0 is outside"),
    "zero KV heads": (tiny(num_key_value_heads=0), "`num_key_value_heads` = 0 is outside"),
    "absurd": (tiny(vocab_size=10**12), "`vocab_size` = 1000000000000 is outside"),
    "absurdly deep": (tiny(num_hidden_layers=100_000), "outside 1 … 4096"),
    "a size that is true": (tiny(num_hidden_layers=True), "must be a whole number, not True"),
    "a size in text": (tiny(hidden_size="64"), "must be a whole number, not '64'"),
    "a size with a fraction": (tiny(hidden_size=64.0), "must be a whole number, not 64.0"),
    "a size in a list": (tiny(intermediate_size=[96]), r"must be a whole number, not \[96\]"),
    "a flag in text": (tiny(tie_word_embeddings="false"), "must be true or false, not 'false'"),
    "a negative epsilon": (tiny(rms_norm_eps=-1e-5), "must be a positive number"),
    "an epsilon in text": (tiny(rms_norm_eps="1e-5"), "must be a positive number"),
    "a theta of zero": (tiny(rope_theta=0), "`rope_theta` must be a positive number"),
    "a rope that lacks its factor": (
        tiny(rope_scaling={"rope_type": "linear"}),
        "rope of type linear lacks `factor`",
    ),
    "a Llama 3 rope that lacks a factor": (
        tiny(rope_scaling={"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}),
        "lacks `low_freq_factor`",
    ),
    "more experts than are counted one by one": (
        tiny(model_type="mixtral", num_local_experts=5000, num_experts_per_tok=2),
        "outside 1 … 4096",
    ),
    "rope that is no table": (tiny(rope_scaling="linear"), "must be a table"),
    "unknown activation": (tiny(hidden_act="relu"), "activation 'relu' is unknown"),
    "activation not text": (tiny(hidden_act=["silu"]), "activation .* is unknown"),
    "layer types of another depth": (
        FAMILY_CONFIGS["gemma2"] | {"layer_types": ["full_attention"]},
        "`layer_types` must list 2 layers",
    ),
    "a negative window": (tiny(model_type="mistral", sliding_window=-1), "`sliding_window` = -1"),
    "full layers in text": (
        FAMILY_CONFIGS["qwen2-window"] | {"max_window_layers": "two"},
        "max_window_layers",
    ),
    "rope of a layer type that is no table": (
        FAMILY_CONFIGS["gemma3_text"] | {"rope_parameters": {"full_attention": 3}},
        "rope_parameters",
    ),
}


@pytest.mark.parametrize("config, words", REFUSED.values(), ids=REFUSED)
def test_a_bad_config_is_refused_by_name(config, words):
    with pytest.raises(BadConfig, match=words) as refused:
        from_hf(config, "made-up")
    assert str(refused.value).startswith("made-up: ")
    assert "\n" not in str(refused.value)


def test_not_a_number_is_refused():
    """Python's JSON reader takes `NaN` and `Infinity`, which no config may mean."""
    for value in (float("nan"), float("inf")):
        with pytest.raises(BadConfig, match="rms_norm_eps"):
            from_hf(tiny(rms_norm_eps=value), "made-up")
