"""Loading: whole, sharded, shared, damaged."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from engine_families import shape_of, transformers_model  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from decodegap.engine import Engine  # noqa: E402
from decodegap.engine.program import build_program  # noqa: E402
from decodegap.engine.weights import checkpoint_weights, state_weights  # noqa: E402
from decodegap.errors import BadCheckpoint, UnknownModel  # noqa: E402

CPU = torch.device("cpu")
FP32 = torch.float32


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    transformers_model("qwen2").save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    transformers_model("qwen2").save_pretrained(tmp_path, max_shard_size="1MB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    return tmp_path


def _load(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint_weights(build_program(shape_of("qwen2")), folder, FP32, CPU)


@pytest.mark.parametrize("kind", ["checkpoint", "sharded"])
def test_a_folder_gives_the_models_weights(kind: str, request: pytest.FixtureRequest) -> None:
    loaded = _load(request.getfixturevalue(kind))
    state = transformers_model("qwen2").state_dict()
    expected = state_weights(build_program(shape_of("qwen2")), state, FP32, CPU)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor), name


def test_from_pretrained_decodes_what_the_state_does(checkpoint: Path) -> None:
    engine = Engine.from_pretrained(checkpoint, max_context=32, device="cpu", dtype="fp32")
    state = transformers_model("qwen2").state_dict()
    other = Engine.from_state(shape_of("qwen2"), state, max_context=32, device="cpu", dtype="fp32")
    prompt = [5, 6, 7]
    expected = list(other.generate(prompt, max_new_tokens=8))
    assert list(engine.generate(prompt, max_new_tokens=8)) == expected


def test_what_is_not_stacked_is_shared() -> None:
    state = transformers_model("llama2").state_dict()
    weights = state_weights(build_program(shape_of("llama2")), state, FP32, CPU)
    shared = state["model.layers.0.mlp.down_proj.weight"]
    assert weights["layer.0.down_residual.weight"].data_ptr() == shared.data_ptr()
    assert weights["embed.table"].data_ptr() == state["model.embed_tokens.weight"].data_ptr()


def test_a_missing_shard_is_named(sharded: Path) -> None:
    shard = sorted(sharded.glob("*.safetensors"))[0]
    shard.unlink()
    with pytest.raises(BadCheckpoint, match="is missing; download it again") as error:
        _load(sharded)
    assert shard.name in str(error.value)


def test_a_truncated_file_is_named(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors is damaged"):
        _load(checkpoint)


def test_a_broken_index_is_named(sharded: Path) -> None:
    (sharded / "model.safetensors.index.json").write_text("{", encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"cannot read .*index\.json"):
        _load(sharded)


def test_a_tensor_left_out_is_named(checkpoint: Path) -> None:
    state = dict(transformers_model("qwen2").state_dict())
    del state["model.layers.1.self_attn.k_proj.bias"]
    save_file({n: t.contiguous() for n, t in state.items()}, checkpoint / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"no tensor 'model\.layers\.1\.self_attn\.k_proj"):
        _load(checkpoint)


def test_a_tensor_of_another_shape_is_named(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["intermediate_size"] = 112
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"mlp\.gate_proj\.weight is \(104, 448\)"):
        Engine.from_pretrained(checkpoint, device="cpu", dtype="fp32")


def test_a_folder_without_weights_says_so(checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(BadCheckpoint, match="safetensors form"):
        _load(checkpoint)


def test_a_state_of_another_model_says_so() -> None:
    state = transformers_model("llama2").state_dict()
    with pytest.raises(BadCheckpoint, match="state dict has no"):
        state_weights(build_program(shape_of("qwen3")), state, FP32, CPU)


def test_a_folder_that_is_not_there_and_a_bare_config(tmp_path: Path) -> None:
    with pytest.raises(UnknownModel):
        Engine.from_pretrained(tmp_path / "nothing", device="cpu")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(transformers_model("llama2").config.to_dict(), default=str), encoding="utf-8"
    )
    with pytest.raises(UnknownModel, match="checkpoint folder"):
        Engine.from_pretrained(config, device="cpu")
