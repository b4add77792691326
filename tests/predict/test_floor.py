"""Floors against bytes counted by hand: the arithmetic stands here, ours is not called for it.

Each count lists, in elements: one layer's weights, what stands outside the layers and is read (the
final norm, the head, one embedding row), what is only held (the rest of the table, idle experts),
and the keys and values of one position of one layer.
"""

from typing import NamedTuple

import pytest

from builders import shape_of
from decodegap.predict.catalogue import catalogue_devices, catalogue_shape
from decodegap.predict.device import Device, with_measured
from decodegap.predict.floor import floor_of, step_floor
from decodegap.predict.formats import get_format
from decodegap.predict.model import ModelShape
from decodegap.predict.traffic import published_bytes, step_traffic

BF16 = get_format("bf16")

MISTRAL_WITH_WINDOW = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
}
MIXTRAL = MISTRAL_WITH_WINDOW | {
    "model_type": "mixtral",
    "sliding_window": None,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,  # of dense layers, which this model does not have
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "num_experts": 128,
    "num_experts_per_tok": 8,
}


class HandCount(NamedTuple):
    """Elements. `read` and `held` are weights; `positions` is the sum over layers of the cached
    positions attended; `kv` is what one position of one layer has."""

    shape: ModelShape
    context: int
    read: int
    held: int
    num_layers: int
    positions: int
    kv: int
    vocab: int

    @property
    def exact(self) -> int:
        cache = self.positions * self.kv + self.num_layers * self.kv
        return 2 * (self.read + cache + self.vocab)

    @property
    def published(self) -> int:
        return 2 * (self.held + self.num_layers * self.context * self.kv)


def qwen25_7b() -> HandCount:
    """Biases on q, k and v; a head of its own."""
    layer = 3584 * 3584 + 2 * 512 * 3584 + 3584 * 3584 + 3 * 18944 * 3584
    layer += (3584 + 512 + 512) + 2 * 3584
    table = 152064 * 3584
    read = 28 * layer + 3584 + table + 3584
    held = 28 * layer + 3584 + table + table
    shape = catalogue_shape("qwen2.5-7b")
    return HandCount(shape, 2048, read, held, 28, 28 * 2048, 2 * 512, 152064)


def qwen25_05b() -> HandCount:
    """Tied: the table is held once, read whole as the head, and one row more as the embedding."""
    layer = 896 * 896 + 2 * 128 * 896 + 896 * 896 + 3 * 4864 * 896
    layer += (896 + 128 + 128) + 2 * 896
    table = 151936 * 896
    held = 24 * layer + 896 + table
    shape = catalogue_shape("qwen2.5-0.5b")
    return HandCount(shape, 1000, held + 896, held, 24, 24 * 1000, 2 * 128, 151936)


def qwen3_06b() -> HandCount:
    """head_dim 128 where hidden ÷ heads is 64; a norm of 128 on queries and on keys; tied."""
    layer = 2048 * 1024 + 2 * 1024 * 1024 + 1024 * 2048 + 3 * 3072 * 1024
    layer += 128 + 128 + 2 * 1024
    held = 28 * layer + 1024 + 151936 * 1024
    shape = catalogue_shape("qwen3-0.6b")
    return HandCount(shape, 4096, held + 1024, held, 28, 28 * 4096, 2 * 1024, 151936)


def smollm2_135m() -> HandCount:
    layer = 576 * 576 + 2 * 192 * 576 + 576 * 576 + 3 * 1536 * 576 + 2 * 576
    held = 30 * layer + 576 + 49152 * 576
    shape = catalogue_shape("smollm2-135m")
    return HandCount(shape, 1, held + 576, held, 30, 30 * 1, 2 * 192, 49152)


def llama_31_8b() -> HandCount:
    layer = 4096 * 4096 + 2 * 1024 * 4096 + 4096 * 4096 + 3 * 14336 * 4096 + 2 * 4096
    table = 128256 * 4096
    read = 32 * layer + 4096 + table + 4096
    shape = catalogue_shape("llama-3.1-8b")
    held = 32 * layer + 4096 + 2 * table
    return HandCount(shape, 16384, read, held, 32, 32 * 16384, 2 * 1024, 128256)


def mistral_with_window() -> HandCount:
    """A window of 4096 holds the new token and 4095 before it."""
    layer = 4096 * 4096 + 2 * 1024 * 4096 + 4096 * 4096 + 3 * 14336 * 4096 + 2 * 4096
    table = 32000 * 4096
    read = 32 * layer + 4096 + table + 4096
    shape = shape_of(MISTRAL_WITH_WINDOW)
    held = 32 * layer + 4096 + 2 * table
    return HandCount(shape, 16384, read, held, 32, 32 * 4095, 2 * 1024, 32000)


def gemma2_2b() -> HandCount:
    """Every second layer has a window; four norms; head_dim 256 where hidden ÷ heads is 288."""
    layer = 2048 * 2304 + 2 * 1024 * 2304 + 2304 * 2048 + 3 * 9216 * 2304 + 4 * 2304
    held = 26 * layer + 2304 + 256000 * 2304
    shape = catalogue_shape("gemma-2-2b")
    positions = 13 * 4095 + 13 * 8000
    return HandCount(shape, 8000, held + 2304, held, 26, positions, 2 * 1024, 256000)


def phi3_mini() -> HandCount:
    """q, k, v in one matrix, gate and up in another; a window of 2047; no grouped heads."""
    layer = 9216 * 3072 + 3072 * 3072 + 16384 * 3072 + 3072 * 8192 + 2 * 3072
    table = 32064 * 3072
    read = 32 * layer + 3072 + table + 3072
    shape = catalogue_shape("phi-3-mini")
    held = 32 * layer + 3072 + 2 * table
    return HandCount(shape, 4000, read, held, 32, 32 * 2046, 2 * 3072, 32064)


def mixtral() -> HandCount:
    """A router and eight experts a layer, two of them read."""
    attention = 4096 * 4096 + 2 * 1024 * 4096 + 4096 * 4096 + 2 * 4096
    router, expert = 8 * 4096, 3 * 14336 * 4096
    table = 32000 * 4096
    read = 32 * (attention + router + 2 * expert) + 4096 + table + 4096
    held = 32 * (attention + router + 8 * expert) + 4096 + 2 * table
    return HandCount(shape_of(MIXTRAL), 2048, read, held, 32, 32 * 2048, 2 * 1024, 32000)


def qwen3_moe() -> HandCount:
    """128 experts of 768, eight read; queries are twice as wide as the hidden state."""
    attention = 4096 * 2048 + 2 * 512 * 2048 + 2048 * 4096 + 128 + 128 + 2 * 2048
    router, expert = 128 * 2048, 3 * 768 * 2048
    table = 151936 * 2048
    read = 48 * (attention + router + 8 * expert) + 2048 + table + 2048
    held = 48 * (attention + router + 128 * expert) + 2048 + 2 * table
    return HandCount(shape_of(QWEN3_MOE), 2048, read, held, 48, 48 * 2048, 2 * 512, 151936)


HAND_COUNTS = [
    *(qwen25_7b, qwen25_05b, qwen3_06b, smollm2_135m, llama_31_8b),
    *(mistral_with_window, gemma2_2b, phi3_mini, mixtral, qwen3_moe),
]


@pytest.mark.parametrize("count", HAND_COUNTS, ids=lambda count: count.__name__)
def test_bytes_are_those_counted_by_hand(count):
    by_hand = count()
    assert step_traffic(by_hand.shape, by_hand.context, BF16).bytes == by_hand.exact
    assert published_bytes(by_hand.shape, by_hand.context, BF16) == by_hand.published


@pytest.mark.parametrize("count", HAND_COUNTS, ids=lambda count: count.__name__)
@pytest.mark.parametrize("device, bandwidth", [("h100-sxm5", 3.35e12), ("l4", 300e9)])
def test_floors_are_the_hand_count_over_the_datasheet(count, device, bandwidth):
    by_hand = count()
    row = catalogue_devices()[device]
    floor = step_floor(by_hand.shape, by_hand.context, BF16, row)
    assert floor.exact == pytest.approx(by_hand.exact / bandwidth, rel=1e-12)
    assert floor.published == pytest.approx(by_hand.published / bandwidth, rel=1e-12)


def test_known_answer_on_the_h100():
    """The figure of the reference study's first cell, and our exact one."""
    floor = step_floor(catalogue_shape("qwen2.5-7b"), 2048, BF16, catalogue_devices()["h100-sxm5"])
    assert round(floor.published * 1e3, 2) == 4.58
    assert round(floor.exact_bytes / 1e9, 2) == 14.26
    assert round(floor.exact * 1e3, 3) == 4.256


def test_reachable_floor_is_over_the_measured_bandwidth():
    count = qwen25_7b()
    device = with_measured(catalogue_devices()["h200"], 4.5e12, "a test")
    floor = step_floor(count.shape, count.context, BF16, device)
    assert floor.reachable == pytest.approx(count.exact / 4.5e12, rel=1e-12)
    assert floor.reachable > floor.exact


def test_unknown_bandwidths_give_no_floor():
    unknown = Device(
        name="unknown",
        title="Unknown",
        bandwidth_bytes_per_second=None,
        memory_bytes=None,
        source="a test",
    )
    traffic = step_traffic(catalogue_shape("smollm2-135m"), 16, BF16)
    floor = floor_of(traffic, 1000, unknown)
    assert (floor.published, floor.exact, floor.reachable) == (None, None, None)
    assert (floor.published_bytes, floor.exact_bytes) == (1000, traffic.bytes)


def test_an_int4_floor_by_hand():
    """SmolLM2-135M in int4-g128: the blocks' linears packed, the rest and the head in bf16."""

    def packed(out: int, into: int) -> int:
        return out * into // 2 + 2 * out * -(-into // 128)

    layer = packed(576, 576) + 2 * packed(192, 576) + packed(576, 576)
    layer += 2 * packed(1536, 576) + packed(576, 1536) + 2 * (2 * 576)
    outside = 2 * (576 + 49152 * 576 + 576 + 49152)  # final norm, head, one row, logits
    cache = 2 * 30 * 2 * 192 * (512 + 1)
    traffic = step_traffic(catalogue_shape("smollm2-135m"), 512, get_format("int4-g128"))
    assert traffic.bytes == 30 * layer + outside + cache
