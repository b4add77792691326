"""Loading: whole, sharded, shared, damaged."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

from engine_families import FAMILIES, shape_of, transformers_model  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from decodegap.engine import Engine  # noqa: E402
from decodegap.engine import engine as engine_module  # noqa: E402
from decodegap.engine.buffers import buffer_bytes  # noqa: E402
from decodegap.engine.program import build_program  # noqa: E402
from decodegap.engine.weights import (  # noqa: E402
    checkpoint_weights,
    new_bytes,
    state_weights,
    weight_bytes,
)
from decodegap.errors import BadCheckpoint, DoesNotFit, UnknownModel  # noqa: E402
from decodegap.measure.memory import stacked_bytes  # noqa: E402
from decodegap.measure.runtimes.registry import get_runtime  # noqa: E402
from decodegap.predict.formats import get_format  # noqa: E402

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


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_new_beside_a_state_is_known_before_it_is_allocated(family: str) -> None:
    """And known to whoever plans a trial from the shape alone."""
    program, state = build_program(shape_of(family)), transformers_model(family).state_dict()
    given = {tensor.data_ptr() for tensor in state.values()}
    weights = state_weights(program, state, FP32, CPU)
    allocated = sum(t.nbytes for t in weights.values() if t.data_ptr() not in given)
    assert 0 < allocated < weight_bytes(program, FP32)
    assert new_bytes(program, state, FP32, CPU) == allocated
    planned = stacked_bytes(shape_of(family), get_format("fp32"), get_runtime("engine"))
    assert planned == allocated


def test_what_must_be_converted_or_moved_is_new_too() -> None:
    program, state = build_program(shape_of("llama2")), transformers_model("llama2").state_dict()
    bf16, other = torch.bfloat16, torch.device("meta")
    assert new_bytes(program, state, bf16, CPU) == weight_bytes(program, bf16)
    assert new_bytes(program, state, FP32, other) == weight_bytes(program, FP32)


@pytest.mark.parametrize("spare, fits", [(0, True), (-1, False)])
def test_a_state_s_own_tensors_need_no_room_again(
    monkeypatch: pytest.MonkeyPatch, spare: int, fits: bool
) -> None:
    """What is free beside the model must hold what is stacked and the buffers, and no more."""
    shape, state = shape_of("qwen2"), transformers_model("qwen2").state_dict()
    program = build_program(shape, 32)
    needed = new_bytes(program, state, FP32, CPU) + sum(buffer_bytes(program, FP32).values())
    free = needed + spare

    def check(num_bytes: int, device: torch.device) -> None:
        if num_bytes > free:
            raise DoesNotFit(f"{num_bytes} of {free}")

    monkeypatch.setattr(engine_module, "check_fits", check)
    if fits:
        assert Engine.from_state(shape, state, max_context=32, device="cpu", dtype="fp32")
        return
    with pytest.raises(DoesNotFit):
        Engine.from_state(shape, state, max_context=32, device="cpu", dtype="fp32")


def test_a_tensor_that_the_config_has_no_place_for_is_refused(checkpoint: Path) -> None:
    """A model loaded without it would say something else."""
    state = dict(transformers_model("qwen2").state_dict())
    stray = "model.layers.0.self_attn.o_proj.bias"
    _save(state | {stray: torch.zeros(64)}, checkpoint)
    with pytest.raises(BadCheckpoint, match=f"has {stray}, for which"):
        _load(checkpoint)
    with pytest.raises(BadCheckpoint, match=f"the state dict has {stray}"):
        state_weights(build_program(shape_of("qwen2")), state | {stray: torch.zeros(64)}, FP32, CPU)


def test_a_whole_file_goes_before_an_index_that_was_left(sharded: Path) -> None:
    """As transformers, by which the engine is judged, reads such a folder."""
    state = dict(transformers_model("qwen2").state_dict())
    other = {name: tensor + 1 for name, tensor in state.items()}
    _save(other, sharded)
    expected = state_weights(build_program(shape_of("qwen2")), other, FP32, CPU)
    for name, tensor in _load(sharded).items():
        assert torch.equal(tensor, expected[name]), name


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


def _save(state: dict[str, torch.Tensor], folder: Path) -> None:
    save_file({n: t.clone().contiguous() for n, t in state.items()}, folder / "model.safetensors")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_weights_of_a_packed_type_are_refused(checkpoint: Path, dtype: torch.dtype) -> None:
    """Without their scales they would decode to something."""
    state = dict(transformers_model("qwen2").state_dict())
    name = "model.layers.0.mlp.gate_proj.weight"
    _save(state | {name: state[name].to(dtype)}, checkpoint)
    with pytest.raises(BadCheckpoint, match=r"gate_proj.*quantised weights are not read"):
        _load(checkpoint)


def test_a_quantised_checkpoint_is_refused_by_its_config(checkpoint: Path) -> None:
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (checkpoint / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match=r"is quantised \(gptq, 4 bits\)"):
        Engine.from_pretrained(checkpoint, device="cpu", dtype="fp32")


@pytest.mark.parametrize("table", [["model.safetensors"], {"lm_head.weight": 3}])
def test_an_index_that_is_no_table_is_named(sharded: Path, table: object) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": table}), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match="weight_map is no table"):
        _load(sharded)


def test_a_tensor_that_only_the_index_has_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    table = json.loads(index.read_text(encoding="utf-8"))
    names = iter(sorted(table["weight_map"]))
    shards = sorted(set(table["weight_map"].values()))
    moved = next(n for n in names if table["weight_map"][n] != shards[-1])
    table["weight_map"][moved] = shards[-1]
    index.write_text(json.dumps(table), encoding="utf-8")
    with pytest.raises(BadCheckpoint, match="gives no"):
        _load(sharded)


def test_a_head_beside_a_tied_one_must_be_the_same(tmp_path: Path) -> None:
    model = transformers_model("smollm2")
    model.save_pretrained(tmp_path)
    program = build_program(shape_of("smollm2"))
    state = dict(model.state_dict())
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    _save(state, tmp_path)
    checkpoint_weights(program, tmp_path, FP32, CPU)
    state["lm_head.weight"][0, 0] += 1
    _save(state, tmp_path)
    with pytest.raises(BadCheckpoint, match="tie_word_embeddings"):
        checkpoint_weights(program, tmp_path, FP32, CPU)


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
