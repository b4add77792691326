"""What must hold for the traffic of any model: it grows with what is read and with nothing else."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from builders import shape_of, tiny
from decodegap.errors import BadContext
from decodegap.predict.catalogue import catalogue_shape
from decodegap.predict.formats import FORMATS, get_format
from decodegap.predict.traffic import (
    attended_positions,
    check_context,
    held_bytes,
    parameter_bytes,
    published_bytes,
    step_traffic,
)
from families import FAMILY_CONFIGS

BF16 = get_format("bf16")


@st.composite
def configs(draw, windows=True):
    """A config of any architecture, sizes free within what makes a model."""
    config = dict(FAMILY_CONFIGS[draw(st.sampled_from(sorted(FAMILY_CONFIGS)))])
    num_kv_heads = draw(st.integers(1, 4))
    num_layers = draw(st.integers(1, 6))
    config |= {
        "num_hidden_layers": num_layers,
        "num_key_value_heads": num_kv_heads,
        "num_attention_heads": num_kv_heads * draw(st.integers(1, 4)),
        "head_dim": 8 * draw(st.integers(1, 16)),
        # Narrower than a quantisation group, scales can outweigh what they save.
        "hidden_size": draw(st.integers(64, 512)),
        "intermediate_size": draw(st.integers(64, 512)),
        "vocab_size": draw(st.integers(2, 5000)),
        "max_position_embeddings": 4096,
    }
    if "layer_types" in config:
        kinds = st.sampled_from(["full_attention", "sliding_attention"])
        config["layer_types"] = draw(st.lists(kinds, min_size=num_layers, max_size=num_layers))
    if config.get("sliding_window") is not None:
        config["sliding_window"] = draw(st.integers(2, 3000)) if windows else None
    if "num_experts_per_tok" in config:
        config["num_experts_per_tok"] = draw(st.integers(1, 5))
        config["moe_intermediate_size"] = config["intermediate_size"]
    return config


contexts = st.integers(1, 4095)
formats = st.sampled_from(sorted(FORMATS)).map(get_format)


@given(configs(), contexts, formats)
def test_flows_sum_to_the_bytes_and_every_flow_moves_some(config, context, fmt):
    traffic = step_traffic(shape_of(config), context, fmt)
    assert sum(flow.bytes for flow in traffic.flows) == traffic.bytes
    assert sum(traffic.bytes_by_op().values()) == traffic.bytes
    assert all(flow.bytes > 0 and flow.reason for flow in traffic.flows)


@given(configs(), contexts, contexts, formats)
def test_traffic_never_shrinks_with_context(config, first, second, fmt):
    shape = shape_of(config)
    less, more = (step_traffic(shape, n, fmt).bytes for n in sorted((first, second)))
    assert less <= more


@given(configs(windows=False), contexts, contexts, formats)
def test_each_position_adds_its_keys_and_values(config, first, second, fmt):
    assume("gemma2" not in config["model_type"] and "gemma3" not in config["model_type"])
    shape = shape_of(config | {"sliding_window": None})
    grown = step_traffic(shape, second, fmt).bytes - step_traffic(shape, first, fmt).bytes
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * fmt.plain_bytes
    assert grown == (second - first) * per_token


def test_the_cache_is_kept_in_the_type_beside_packed_weights():
    """SmolLM2-135M at 2048: 2 × 30 layers × 3 heads × 64 numbers × 2,049 positions."""
    numbers = 2 * 30 * 3 * 64 * 2049
    for name, size in (("bf16", 2), ("fp16", 2), ("fp32", 4), ("int4-g128", 2), ("fp8", 2)):
        traffic = step_traffic(catalogue_shape("smollm2-135m"), 2048, get_format(name))
        assert traffic.bytes_by_op()["attend"] == numbers * size


@given(st.integers(2, 200), contexts, formats)
def test_traffic_stands_still_once_every_window_is_full(window, context, fmt):
    shape = shape_of(
        tiny(model_type="mistral", sliding_window=window, max_position_embeddings=8192)
    )
    full = window - 1
    per_position = 2 * 2 * 16 * fmt.plain_bytes
    at_context, at_full = (step_traffic(shape, n, fmt).bytes for n in (context, full))
    assert at_context - at_full == min(0, context - full) * 2 * per_position


@given(configs(), contexts)
def test_exact_passes_published_only_by_the_named_extras(config, context):
    """Written keys and values, logits and one embedding row are not in the published count; what
    is there and not read (an untied table, idle experts, positions behind a window) is missing
    from the exact one."""
    shape = shape_of(config)
    extras = shape.kv_bytes_per_token + 2 * (shape.vocab_size + shape.hidden_size)
    exact = step_traffic(shape, context, BF16).bytes
    published = published_bytes(shape, context, BF16)
    table = 0 if shape.tied_head else 2 * shape.vocab_size * shape.hidden_size
    expert = 3 * shape.intermediate_size * shape.hidden_size
    idle = 2 * shape.num_layers * (shape.num_experts - shape.num_active_experts) * expert
    unseen = sum(
        (context - min(context, window - 1)) * 2 * shape.kv_size * 2
        for window in shape.attention_windows
        if window is not None
    )
    assert exact == published + extras - table - idle - unseen


@given(configs(), contexts, formats)
def test_no_narrow_format_moves_more_than_bf16(config, context, fmt):
    assume(fmt.name != "fp32")
    shape = shape_of(config)
    # A matrix no wider than a group of weights is never packed in practice.
    assume(min(shape.q_size, shape.hidden_size, shape.intermediate_size) >= 64)
    assert step_traffic(shape, context, fmt).bytes <= step_traffic(shape, context, BF16).bytes
    assert parameter_bytes(shape, fmt) <= parameter_bytes(shape, BF16)


@given(st.integers(2, 5000), st.integers(1, 1000), st.booleans())
def test_more_rows_cost_a_step_the_head_and_the_logits_alone(vocab, more, tied):
    """The embedding's own table is unread: an untied model holds two tables and reads one."""
    config = tiny(tie_word_embeddings=tied)
    before, after = (shape_of(config | {"vocab_size": n}) for n in (vocab, vocab + more))
    grown = step_traffic(after, 16, BF16).bytes - step_traffic(before, 16, BF16).bytes
    assert grown == 2 * more * (64 + 1)
    held = parameter_bytes(after, BF16) - parameter_bytes(before, BF16)
    assert held == 2 * more * 64 * (1 if tied else 2)


@given(st.sampled_from(["mixtral", "qwen3_moe"]), st.integers(2, 60), st.integers(1, 60))
def test_idle_experts_cost_a_step_their_row_of_the_router_alone(name, num_experts, more):
    key = "num_local_experts" if name == "mixtral" else "num_experts"
    before, after = (
        shape_of(FAMILY_CONFIGS[name] | {key: n}) for n in (num_experts, num_experts + more)
    )
    grown = step_traffic(after, 16, BF16).bytes - step_traffic(before, 16, BF16).bytes
    assert grown == 2 * more * 2 * 64  # bf16, two layers, hidden 64
    assert parameter_bytes(after, BF16) > parameter_bytes(before, BF16) + grown


@given(configs(), contexts, formats)
def test_one_row_of_the_embedding_is_read(config, context, fmt):
    shape = shape_of(config)
    traffic = step_traffic(shape, context, fmt)
    (row,) = [flow for flow in traffic.flows if flow.op == "embed"]
    assert row.bytes == shape.hidden_size * fmt.plain_bytes


@given(configs(), contexts, formats)
def test_the_head_is_read_once_whole(config, context, fmt):
    shape = shape_of(config)
    name = "model.embed_tokens.weight" if shape.tied_head else "lm_head.weight"
    flows = step_traffic(shape, context, fmt).flows
    (head,) = [flow for flow in flows if flow.op == "head" and flow.tensor == name]
    packed = fmt.packs_head and not shape.tied_head
    assert head.bytes == (
        fmt.linear_bytes(shape.vocab_size, shape.hidden_size)
        if packed
        else shape.vocab_size * shape.hidden_size * fmt.plain_bytes
    )


def test_positions_attended_under_windows_and_without():
    shape = shape_of(FAMILY_CONFIGS["gemma2"])  # a window of 12, then none
    assert [attended_positions(shape, 0, n) for n in (1, 11, 12, 100)] == [1, 11, 11, 11]
    assert [attended_positions(shape, 1, n) for n in (1, 11, 12, 100)] == [1, 11, 12, 100]


def test_a_flow_behind_a_window_says_so():
    traffic = step_traffic(shape_of(FAMILY_CONFIGS["gemma2"]), 100, BF16)
    reads = [flow for flow in traffic.flows if flow.reason.startswith("keys and values of")]
    assert [flow.reason for flow in reads] == [
        "keys and values of 11 positions (window)",
        "keys and values of 100 positions",
    ]


def test_held_is_all_weights_and_the_cache():
    shape = shape_of(tiny())
    assert held_bytes(shape, 10, BF16) - parameter_bytes(shape, BF16) == 10 * 2 * 2 * 2 * 16 * 2


@pytest.mark.parametrize("context", [0, -1, -4096])
def test_a_context_below_one_is_refused(context):
    with pytest.raises(BadContext, match="at least 1 token"):
        step_traffic(shape_of(tiny()), context, BF16)


def test_the_last_context_leaves_one_position_to_decode_in():
    shape = shape_of(tiny(max_position_embeddings=100))
    check_context(shape, 99)
    with pytest.raises(BadContext, match=r"whose maximum is 100; at most 99"):
        check_context(shape, 100)
    with pytest.raises(BadContext):
        published_bytes(shape, 100, BF16)
