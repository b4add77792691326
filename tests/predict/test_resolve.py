"""A model is found by each of its four kinds of name, or refused with what to give instead."""

import json
from types import SimpleNamespace

import pytest

from builders import TINY_LLAMA, tiny, write_config
from decodegap.errors import BadConfig, Unavailable, UnknownModel
from decodegap.predict.resolve import parse_config, resolve_model


def test_a_catalogue_name_has_synthetic_weights_by_default():
    source = resolve_model("qwen2.5-7b")
    assert source.shape.hidden_size == 3584
    assert source.default_weights == "synthetic"
    assert source.hf_id == "Qwen/Qwen2.5-7B"
    assert source.folder is None


def test_a_catalogue_model_s_hugging_face_id_needs_no_network():
    source = resolve_model("qwen/qwen2.5-7b")
    assert source.shape == resolve_model("qwen2.5-7b").shape
    assert source.default_weights == "checkpoint"


def test_case_does_not_matter():
    assert resolve_model("SmolLM2-135M").shape == resolve_model("smollm2-135m").shape


def test_a_config_file_has_no_weights(tmp_path):
    source = resolve_model(str(write_config(tmp_path / "my-model")))
    assert source.config == TINY_LLAMA
    assert source.default_weights == "synthetic"
    assert source.folder is None


def test_a_folder_is_a_checkpoint(tmp_path):
    write_config(tmp_path / "my-model")
    source = resolve_model(str(tmp_path / "my-model"))
    assert source.shape.name == "my-model"
    assert source.default_weights == "checkpoint"
    assert source.folder == tmp_path / "my-model"


def test_a_folder_named_by_a_dot_is_called_what_it_is(tmp_path, monkeypatch):
    write_config(tmp_path / "my-model")
    monkeypatch.chdir(tmp_path / "my-model")
    assert resolve_model(".").shape.name == "my-model"


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write_config(tmp_path / "my-model")
    assert resolve_model("~/my-model").shape.num_layers == 2


def test_unknown_model_names_the_nearest_and_the_other_ways():
    with pytest.raises(UnknownModel, match=r"did you mean .*qwen2\.5-7b") as refused:
        resolve_model("qwen2.5-7")
    assert "config.json" in str(refused.value)


def test_a_path_that_is_not_there_is_not_asked_of_hugging_face(tmp_path):
    with pytest.raises(UnknownModel):
        resolve_model(str(tmp_path / "nothing"))
    with pytest.raises(UnknownModel):
        resolve_model("./nothing")


def test_an_id_without_a_network_says_what_to_give_instead():
    with pytest.raises(Unavailable, match=r"cannot fetch someone/some-model") as refused:
        resolve_model("someone/some-model")
    assert "folder" in str(refused.value)
    assert "--weights synthetic" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_an_id_without_access_says_so_in_one_line(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError

    def refuse(*arguments, **options):
        answer = SimpleNamespace(headers={}, request=None)
        raise GatedRepoError("Access to this model is restricted.\nPlease log in.", response=answer)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(Unavailable, match="Access to this model is restricted") as refused:
        resolve_model("someone/some-model")
    assert "--weights synthetic" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_malformed_id_is_one_line_too():
    with pytest.raises(Unavailable) as refused:
        resolve_model("some one/some model?")
    assert "\n" not in str(refused.value)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(BadConfig, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("text", ["", "{", '{"a": }', "hidden_size: 64", "{}{}", "[1, 2"])
def test_not_json(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(BadConfig, match=r"config\.json is not JSON") as refused:
        resolve_model(str(path))
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(BadConfig, match="cannot read"):
        resolve_model(str(path))


@pytest.mark.parametrize("value", [[], "text", 3, None, True])
def test_json_that_is_no_table(value):
    with pytest.raises(BadConfig, match="not a table of settings"):
        parse_config(json.dumps(value), "config.json")


def test_json_nested_past_the_reader_s_depth():
    with pytest.raises(BadConfig, match=r"config\.json"):
        parse_config('{"a":' + "[" * 200_000 + "]" * 200_000 + "}", "config.json")


def test_the_file_is_named_in_the_refusal(tmp_path):
    path = write_config(tmp_path / "broken", tiny(vocab_size=None))
    with pytest.raises(BadConfig, match="config lacks `vocab_size`") as refused:
        resolve_model(str(path))
    assert "broken" in str(refused.value) or "config.json" in str(refused.value)
