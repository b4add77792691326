"""A checkpoint folder is held against its config before anything is loaded."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from builders import shape_of, tiny
from decodegap.errors import BadCheckpoint
from decodegap.predict.checkpoint import check_checkpoint, tensor_shapes
from decodegap.predict.tensors import parameter_tensors

SHAPE = shape_of(tiny(num_hidden_layers=1))


def tensors() -> dict[str, np.ndarray]:
    return {t.name: np.zeros(t.shape, np.float16) for t in parameter_tensors(SHAPE)}


def write(folder: Path, weights: dict[str, np.ndarray], name: str = "model.safetensors") -> Path:
    save_file(weights, folder / name)
    return folder / name


def test_a_whole_checkpoint_passes(tmp_path):
    write(tmp_path, tensors())
    check_checkpoint(tmp_path, SHAPE)


def test_shards_count_together(tmp_path):
    whole = tensors()
    names = sorted(whole)
    write(tmp_path, {name: whole[name] for name in names[:4]}, "model-00001-of-00002.safetensors")
    write(tmp_path, {name: whole[name] for name in names[4:]}, "model-00002-of-00002.safetensors")
    check_checkpoint(tmp_path, SHAPE)
    assert set(tensor_shapes(tmp_path)) == set(whole)


def test_a_tied_model_needs_no_head_and_may_have_one(tmp_path):
    tied = shape_of(tiny(num_hidden_layers=1, tie_word_embeddings=True))
    write(tmp_path, tensors())
    check_checkpoint(tmp_path, tied)
    weights = tensors()
    del weights["lm_head.weight"]
    write(tmp_path, weights)
    check_checkpoint(tmp_path, tied)


def test_no_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"old")
    with pytest.raises(BadCheckpoint, match=r"holds no \*\.safetensors.*--weights synthetic"):
        check_checkpoint(tmp_path, SHAPE)


@pytest.mark.parametrize("num_bytes", [0, 4, 8, 200, -1])
def test_a_file_cut_short(tmp_path, num_bytes):
    path = write(tmp_path, tensors())
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(BadCheckpoint, match=r"damaged or cut short.*download it again") as refused:
        check_checkpoint(tmp_path, SHAPE)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_something_else(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.example/spec/v1\n" * 3)
    with pytest.raises(BadCheckpoint, match="damaged or cut short"):
        check_checkpoint(tmp_path, SHAPE)


def test_a_missing_tensor_is_named(tmp_path):
    weights = tensors()
    del weights["model.layers.0.mlp.up_proj.weight"], weights["model.norm.weight"]
    write(tmp_path, weights)
    with pytest.raises(BadCheckpoint, match=r"lacks 2 of 12 tensors.*mlp\.up_proj\.weight"):
        check_checkpoint(tmp_path, SHAPE)


def test_a_missing_shard_is_a_missing_tensor(tmp_path):
    weights = {k: v for k, v in tensors().items() if "layers" in k}
    write(tmp_path, weights, "model-00001-of-00002.safetensors")
    with pytest.raises(BadCheckpoint, match="lacks 3 of 12 tensors"):
        check_checkpoint(tmp_path, SHAPE)


def test_another_shape_is_named_with_both(tmp_path):
    weights = tensors()
    weights["model.layers.0.self_attn.k_proj.weight"] = np.zeros((64, 64), np.float16)
    write(tmp_path, weights)
    with pytest.raises(BadCheckpoint, match=r"k_proj\.weight is \[64, 64\].*means \[32, 64\]"):
        check_checkpoint(tmp_path, SHAPE)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",  # older files store the rotary table
        "model.layers.1.self_attn.q_proj.weight",  # behind the last layer: drafts further tokens
        "visual.blocks.0.attn.qkv.weight",
    ],
)
def test_more_tensors_than_needed_do_no_harm(tmp_path, name):
    write(tmp_path, tensors() | {name: np.zeros(8)})
    check_checkpoint(tmp_path, SHAPE)


@pytest.mark.parametrize("name", ["self_attn.q_proj.bias", "self_attn.q_norm.weight"])
def test_a_tensor_inside_a_layer_that_the_config_has_no_place_for_is_refused(tmp_path, name):
    """Without it the model would say something else, and nothing would tell."""
    write(tmp_path, tensors() | {f"model.layers.0.{name}": np.zeros(64)})
    with pytest.raises(BadCheckpoint, match=rf"has model\.layers\.0\.{name}, for which"):
        check_checkpoint(tmp_path, SHAPE)
