"""The program's inventory and its refusals."""

from math import prod
from typing import Any

import pytest

pytest.importorskip("torch")

from engine_families import FAMILIES, config_of, shape_of

from decodegap.engine.program import build_program
from decodegap.errors import BadConfig, BadContext
from decodegap.predict.hf_config import from_hf
from decodegap.predict.tensors import OPS, parameter_tensors


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_hold_every_parameter_once(family: str) -> None:
    shape = shape_of(family)
    program = build_program(shape)
    sources = [source.name for spec in program.weights for source in spec.sources]
    assert sorted(sources) == sorted(tensor.name for tensor in parameter_tensors(shape))
    assert sum(prod(spec.shape) for spec in program.weights) == sum(
        tensor.num_elements for tensor in parameter_tensors(shape)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_each_op_names_weights_that_exist(family: str) -> None:
    program = build_program(shape_of(family))
    names = {spec.name for spec in program.weights}
    used = {op.weight_name(part) for op in program.ops for part in op.weights}
    tied = {"head.weight"} if program.shape.tied_head else set()
    assert used - tied == names
    assert program.head_weight in names


def test_ops_run_in_the_order_of_the_inventory() -> None:
    program = build_program(shape_of("qwen2"))
    names = [op.name for op in program.ops]
    assert names == ["embed", *OPS[1:-1] * 2, "head"]


def test_qkv_and_gate_up_are_stacked_in_order() -> None:
    program = build_program(shape_of("qwen3"))
    stacked = {spec.name: [s.name.split(".")[-2] for s in spec.sources] for spec in program.weights}
    assert stacked["layer.1.norm_qkv.weight"] == ["q_proj", "k_proj", "v_proj"]
    assert stacked["layer.0.norm_gate_up.weight"] == ["gate_proj", "up_proj"]


@pytest.mark.parametrize(
    "family, changes, missing",
    [
        ("mistral", {"sliding_window": 64}, "sliding window of 64"),
        ("llama2", {"head_dim": 80}, "head_dim 80"),
        ("llama2", {"attention_bias": True}, "output-projection bias"),
        ("llama2", {"mlp_bias": True}, "MLP biases"),
        ("llama2", {"hidden_act": "gelu"}, "activation gelu_tanh"),
        ("llama2", {"model_type": "phi3"}, "fused qkv"),
        ("llama2", {"model_type": "olmo2"}, "norms after the sub-blocks"),
        ("llama2", {"model_type": "smollm3", "num_hidden_layers": 4}, "layers without RoPE"),
        (
            "llama2",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0}},
            "rope scaling 'yarn'",
        ),
    ],
)
def test_what_is_not_decoded_is_named(family: str, changes: dict[str, Any], missing: str) -> None:
    shape = from_hf({**config_of(family), **changes}, "tiny")
    with pytest.raises(BadConfig, match="does not decode") as error:
        build_program(shape)
    assert missing in str(error.value)
    assert "\n" not in str(error.value)


def test_a_window_beyond_the_cache_never_acts_and_is_taken() -> None:
    shape = from_hf({**config_of("mistral"), "sliding_window": 64}, "tiny")
    assert build_program(shape, max_context=64).max_context == 64


@pytest.mark.parametrize("max_context", [0, -1, 129])
def test_max_context_beyond_the_model_is_refused(max_context: int) -> None:
    with pytest.raises(BadContext, match="outside 1 … 128"):
        build_program(shape_of("llama2"), max_context)
