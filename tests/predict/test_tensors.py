"""The inventory of parameters against the tensors that transformers really builds."""

from functools import cache

import pytest

from builders import shape_of
from decodegap.predict.catalogue import catalogue_shape
from decodegap.predict.families import FAMILIES
from decodegap.predict.formats import get_format
from decodegap.predict.tensors import OPS, parameter_tensors
from decodegap.predict.traffic import parameter_bytes, step_traffic
from families import FAMILY_CONFIGS, build

DENSE = [name for name, config in FAMILY_CONFIGS.items() if "num_experts_per_tok" not in config]
WITH_EXPERTS = [name for name in FAMILY_CONFIGS if name not in DENSE]


@cache
def built_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Parameters of the transformers model by name; one that is tied appears once."""
    return {key: tuple(value.shape) for key, value in build(name).named_parameters()}


def counted_shapes(name: str) -> dict[str, tuple[int, ...]]:
    tensors = parameter_tensors(shape_of(FAMILY_CONFIGS[name]))
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    assert len(shapes) == len(tensors), "a name occurs twice"
    return shapes


def num_elements(shapes: dict[str, tuple[int, ...]]) -> int:
    total = 0
    for shape in shapes.values():
        product = 1
        for size in shape:
            product *= size
        total += product
    return total


def test_every_counted_architecture_is_held_against_transformers():
    assert {config["model_type"] for config in FAMILY_CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", DENSE)
def test_names_and_shapes_are_those_of_transformers(name):
    assert counted_shapes(name) == built_shapes(name)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_experts_have_as_many_elements_as_in_transformers(name):
    """Checkpoints keep experts apart, transformers keeps them fused: totals must agree, layer by
    layer and outside the layers."""
    counted, built = counted_shapes(name), built_shapes(name)
    for prefix in ("model.layers.0.", "model.layers.1.", "model.embed", "model.norm", "lm_head"):
        parts = [{k: v for k, v in s.items() if k.startswith(prefix)} for s in (counted, built)]
        assert num_elements(parts[0]) == num_elements(parts[1]), prefix
    assert num_elements(counted) == num_elements(built)


@pytest.mark.parametrize("name", WITH_EXPERTS)
def test_attention_and_norms_of_expert_models_are_those_of_transformers(name):
    def shared(shapes):
        return {k: v for k, v in shapes.items() if "mlp" not in k and "moe" not in k}

    assert shared(counted_shapes(name)) == shared(built_shapes(name))


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_parameter_bytes_are_what_transformers_holds(name):
    held = sum(p.numel() * p.element_size() for p in build(name).parameters())
    assert parameter_bytes(shape_of(FAMILY_CONFIGS[name]), get_format("bf16")) == held


def test_a_tied_head_has_no_tensor_of_its_own():
    names = set(counted_shapes("llama-tied"))
    assert "lm_head.weight" not in names
    assert set(counted_shapes("llama")) - names == {"lm_head.weight"}


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_every_tensor_belongs_to_an_op_and_its_layer(name):
    for tensor in parameter_tensors(shape_of(FAMILY_CONFIGS[name])):
        assert tensor.op in OPS
        layer = tensor.name.split("layers.")[1].split(".")[0] if "layers." in tensor.name else None
        assert tensor.layer == (None if layer is None else int(layer))
        assert (tensor.expert is not None) == ("experts." in tensor.name)


def test_ops_of_a_traffic_are_those_of_a_step():
    traffic = step_traffic(catalogue_shape("qwen2.5-7b"), 2048, get_format("bf16"))
    assert set(traffic.bytes_by_op()) == set(OPS)
