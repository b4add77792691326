"""The rows that ship: they load, they are consistent, and they give published answers."""

import tomllib
from importlib.resources import files

import msgspec
import pytest

from decodegap.errors import BadConfig
from decodegap.predict.catalogue import (
    CatalogueModel,
    catalogue_devices,
    catalogue_models,
    catalogue_shape,
)
from decodegap.predict.device import Device, find_device, match_runtime_name
from decodegap.predict.floor import step_floor
from decodegap.predict.formats import get_format
from decodegap.predict.hf_config import from_hf
from decodegap.predict.tensors import parameter_tensors
from decodegap.predict.traffic import parameter_bytes, step_traffic

# Parameter totals as the models' publishers give them (model cards, safetensors metadata). Tied
# heads are counted once: the Qwen3 0.6B and 1.7B files hold a second copy of the table.
LLAMA_2_7B = 6_738_415_616
GEMMA_2B = 2_506_172_416
PARAMETERS = {
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.1-8b": 8_030_261_248,
    "mistral-7b-v0.3": 7_248_023_552,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "phi-3-mini": 3_821_079_552,
    "gemma-2-2b": 2_614_341_888,
    "olmo-2-7b": 7_298_617_344,
    # 64 more rows of 4096, in the embedding and in the head.
    "openvla-7b": LLAMA_2_7B + 2 * 64 * 4096,
    # PaliGemma's 257152 rows where Gemma has 256000, of 2048, in one tied table.
    "pi0-gemma-2b": GEMMA_2B + 1152 * 2048,
}

# What each architecture's KV cache costs a token in bf16, from head counts on the model cards.
KV_BYTES_PER_TOKEN = {
    "qwen2.5-7b": 57_344,
    "llama-3.1-8b": 131_072,
    "mistral-7b-v0.3": 131_072,
    "qwen3-0.6b": 114_688,  # 28 layers, 8 heads of 128: head_dim is not hidden ÷ heads
    "phi-3-mini": 393_216,
    "gemma-2-2b": 106_496,
    "pi0-gemma-2b": 18_432,  # one KV head
}

STUDY_BANDWIDTHS = {"h100-sxm5": 3350e9, "a100-80-sxm": 2039e9, "l40s": 864e9, "l4": 300e9}


def reference_study() -> dict:
    path = files("decodegap") / "facts" / "reference_study.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


# Models


def test_every_catalogue_model_has_a_published_total():
    assert list(catalogue_models()) == list(PARAMETERS)


@pytest.mark.parametrize("name, total", PARAMETERS.items())
def test_parameter_total_is_the_published_one(name, total):
    tensors = parameter_tensors(catalogue_shape(name))
    assert sum(tensor.num_elements for tensor in tensors) == total


@pytest.mark.parametrize("name, num_bytes", KV_BYTES_PER_TOKEN.items())
def test_kv_bytes_per_token(name, num_bytes):
    assert catalogue_shape(name).kv_bytes_per_token == num_bytes


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_model_row_is_sourced(name):
    row = catalogue_models()[name]
    assert row.source.startswith("https://")
    assert row.title
    assert row.checked.year >= 2026


def test_model_titles_and_repositories_are_unique():
    rows = catalogue_models().values()
    for values in ([row.title for row in rows], [row.hf_id for row in rows]):
        assert len(set(values)) == len(values)


def test_windows_are_those_of_the_architectures():
    assert catalogue_shape("phi-3-mini").attention_windows == (2047,) * 32
    assert catalogue_shape("gemma-2-2b").attention_windows == (4096, None) * 13
    windowed = {name for name in PARAMETERS if catalogue_shape(name).attention_windows}
    assert windowed == {"phi-3-mini", "gemma-2-2b"}  # Qwen2.5 names a window and does not use it


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_model_has_traffic_at_2048(name):
    shape = catalogue_shape(name)
    traffic = step_traffic(shape, 2048, get_format("bf16"))
    weights = parameter_bytes(shape, get_format("bf16"))
    # A step reads nearly every weight once; only an untied embedding table is left out.
    table = 2 * shape.vocab_size * shape.hidden_size
    assert weights - table < traffic.bytes < weights + 2049 * shape.kv_bytes_per_token + 10**6


def test_unknown_key_in_a_model_row_is_refused():
    row = msgspec.to_builtins(catalogue_models()["smollm2-135m"])
    with pytest.raises(msgspec.ValidationError, match="licence"):
        msgspec.convert({**row, "licence": "apache-2.0"}, CatalogueModel)


def test_a_row_without_its_layer_count_is_refused():
    config = dict(catalogue_models()["smollm2-135m"].config)
    del config["num_hidden_layers"]
    with pytest.raises(BadConfig, match="num_hidden_layers"):
        from_hf(config, "smollm2-135m")


# Devices


def test_every_device_row_is_complete():
    for name, device in catalogue_devices().items():
        assert device.name == name
        assert device.source, name
        assert device.checked is not None, name
        assert device.bandwidth_bytes_per_second > 0, name
        assert device.memory_bytes > 0, name
        assert not device.derived, name


def test_device_figures_are_in_bytes_not_gigabytes():
    for name, device in catalogue_devices().items():
        assert 50e9 <= device.bandwidth_bytes_per_second <= 20e12, name
        assert 8e9 <= device.memory_bytes <= 400e9, name


def test_no_two_devices_share_a_name():
    names = [
        text.lower()
        for device in catalogue_devices().values()
        for text in (device.name, device.title, *device.runtime_names)
    ]
    assert len(set(names)) == len(names)


def test_driver_name_finds_its_own_row():
    devices = catalogue_devices()
    for device in devices.values():
        for name in device.runtime_names:
            assert match_runtime_name(name, devices) is device
            assert find_device(name.upper(), devices) is device


def test_orin_is_not_guessed():
    assert match_runtime_name("Orin", catalogue_devices()) is None


@pytest.mark.parametrize("name, bandwidth", {**STUDY_BANDWIDTHS, "h200": 4800e9}.items())
def test_bandwidth_of_the_studied_devices(name, bandwidth):
    assert catalogue_devices()[name].bandwidth_bytes_per_second == bandwidth


def test_embedded_devices_share_their_memory():
    shared = {name for name, device in catalogue_devices().items() if device.shared_memory}
    assert shared == {
        name for name in catalogue_devices() if name.startswith(("jetson-", "dgx-spark"))
    }


def test_unknown_key_in_a_device_row_is_refused():
    row = msgspec.to_builtins(catalogue_devices()["l4"])
    with pytest.raises(msgspec.ValidationError, match="bandwith"):
        msgspec.convert({**row, "bandwith": 300e9}, Device)


def test_floor_of_the_study_s_first_cell():
    floor = step_floor(
        catalogue_shape("qwen2.5-7b"), 2048, get_format("bf16"), catalogue_devices()["h100-sxm5"]
    )
    assert floor.published == pytest.approx(4.58e-3, rel=1e-3)
    assert floor.exact_bytes == pytest.approx(14.26e9, rel=1e-3)
    assert floor.exact == pytest.approx(4.256e-3, rel=1e-3)
    assert floor.reachable is None or floor.reachable > floor.exact


# The reference study


def test_study_names_exist_in_the_catalogue():
    for table in arrays(reference_study()):
        for row in table:
            assert row.get("model", "qwen2.5-7b") in catalogue_models()
            assert row.get("device", "l4") in catalogue_devices()
    models = next(row for row in reference_study()["setup"] if row["item"] == "models")
    assert set(models["names"]) <= set(catalogue_models())


def test_every_study_row_says_how_it_is_known():
    for table in arrays(reference_study()):
        for row in table:
            marks = {value for key, value in row.items() if key.endswith("mark")}
            assert "mark" in row
            assert marks <= {"H", "M", "D", "I", "H/M"}


def test_study_bandwidths_are_the_catalogue_s():
    rows = {row["device"]: row["bytes_per_second"] for row in reference_study()["bandwidth"]}
    assert rows == STUDY_BANDWIDTHS


@pytest.mark.parametrize(
    "model, device, context, r_floor",
    [
        ("qwen2.5-7b", "h100-sxm5", 2048, 0.270),
        ("qwen2.5-7b", "a100-80-sxm", 4096, 0.369),
        ("qwen2.5-7b", "l40s", 8192, 0.666),
        ("qwen2.5-7b", "l4", 2048, 0.810),
        ("qwen2.5-7b", "l4", 8192, None),
        ("llama-3.1-8b", "h100-sxm5", 16384, 0.208),
    ],
)
def test_study_cells(model, device, context, r_floor):
    cell = cells()[model, device, context]
    assert cell.get("r_floor") == r_floor
    assert cell["outcome"] == ("ok" if r_floor else "out_of_memory")


def test_study_cells_lie_in_their_device_s_range():
    ranges = {row["device"]: row for row in reference_study()["device_range"]}
    assert set(ranges) == set(STUDY_BANDWIDTHS)
    for cell in cells().values():
        if cell["outcome"] == "ok":
            limits = ranges[cell["device"]]
            assert limits["r_floor_min"] <= cell["r_floor"] <= limits["r_floor_max"]


def test_study_counts_agree():
    counts = next(row for row in reference_study()["setup"] if row["item"] == "cells")
    assert counts["num_valid"] + counts["num_out_of_memory"] == counts["num_planned"]
    out = [cell for cell in cells().values() if cell["outcome"] == "out_of_memory"]
    assert 0 < len(out) <= counts["num_out_of_memory"]
    assert {cell["device"] for cell in out} == {counts["out_of_memory_device"]}


def test_study_footprints_are_ours():
    for row in reference_study()["footprint"]:
        shape = catalogue_shape(row["model"])
        assert parameter_bytes(shape, get_format("bf16")) == row["weight_bytes"]
        assert shape.kv_bytes_per_token == row["kv_bytes_per_token"]


def test_study_block_bytes_are_ours_to_the_printed_digit():
    traffic = step_traffic(catalogue_shape("qwen2.5-7b"), 2048, get_format("bf16"))
    for row in reference_study()["block_bytes"]:
        flows = [
            flow
            for flow in traffic.flows
            if flow.op == row["op"] and is_block_0(flow.tensor, row["tensor"])
        ]
        # The largest flow: the weight not its bias, the positions read not the one written.
        assert max(flow.bytes for flow in flows) == pytest.approx(row["bytes"], abs=0.05e6)


def test_study_graphs_ratio_is_of_its_own_times():
    h100, l4 = reference_study()["cuda_graphs"]
    assert h100["eager_seconds"] / h100["graph_seconds"] == pytest.approx(h100["ratio"], abs=5e-4)
    assert h100["ratio_low"] < h100["ratio"] < h100["ratio_high"]
    assert l4["ratio"] == 1.028


def test_study_s_first_cell_is_one_of_its_printed_steps():
    """R_floor 0.270 is the published floor over 16.97 ms, the middle of the three."""
    floor = step_floor(
        catalogue_shape("qwen2.5-7b"), 2048, get_format("bf16"), catalogue_devices()["h100-sxm5"]
    )
    (repeated,) = reference_study()["repeated_cell"]
    ratios = [round(floor.published / seconds, 3) for seconds in repeated["step_seconds"]]
    assert cells()["qwen2.5-7b", "h100-sxm5", 2048]["r_floor"] == ratios[1]


def cells() -> dict[tuple[str, str, int], dict]:
    rows = reference_study()["cell"]
    joined = {(row["model"], row["device"], row["context"]): row for row in rows}
    assert len(joined) == len(rows)
    return joined


def arrays(study: dict) -> list[list[dict]]:
    return [value for value in study.values() if isinstance(value, list)]


def is_block_0(flow_tensor: str, name: str) -> bool:
    if name == "kv_cache":
        return flow_tensor == "kv_cache.0"
    return flow_tensor.startswith("model.layers.0.") and f".{name}." in flow_tensor
