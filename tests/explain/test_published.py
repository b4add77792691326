"""The reference study's figures beside ours: joined by cell, held apart by device."""

import pytest

from builders import GPU_ENVIRONMENT, make_environment, make_gpu_record
from decodegap.explain.published import against_reference, published_figures
from decodegap.explain.runs import read_runs
from decodegap.predict.catalogue import catalogue_devices, catalogue_models, catalogue_shape
from decodegap.record import Arm

QWEN = catalogue_models()["qwen2.5-7b"].config


def record(seconds, device="NVIDIA H100 80GB HBM3", **changes):
    settings = {"format": "bf16", "context": 2048, "shape": catalogue_shape("qwen2.5-7b")}
    environment = make_environment(**GPU_ENVIRONMENT | {"device_name": device})
    return make_gpu_record([seconds], config=QWEN, environment=environment, **settings | changes)


def rows_with_ours(records):
    return [row for row in against_reference(read_runs(records).read) if row.ours]


def test_every_published_figure_is_of_a_model_and_device_we_know():
    figures = published_figures()
    assert len(figures) == 25
    assert {figure.device for figure in figures} <= set(catalogue_devices())
    assert {figure.model for figure in figures} <= set(catalogue_models())
    assert [figure.context for figure in figures if figure.value is None] == [8192, 16384]


def test_the_studys_own_step_gives_the_studys_own_figure():
    # (15.231 + 0.117) GB ÷ 3.35 TB/s ÷ 0.270 = 16.97 ms, one of the study's three for this cell.
    rows = rows_with_ours([record(0.01697)])
    (row,) = (row for row in rows if row.figure.device == "h100-sxm5")
    (ours,) = row.ours
    assert row.figure.value == 0.270
    assert ours.unlike is None
    assert ours.value == pytest.approx(15.348673536e9 / 3.35e12 / 0.01697)
    assert ours.value == pytest.approx(row.figure.value, rel=0.001)


def test_another_device_stands_beside_every_device_and_is_comparable_to_none():
    rows = rows_with_ours([record(0.059, device="NVIDIA H200")])
    cells = [row for row in rows if row.figure.kind == "R_published"]
    assert {row.figure.device for row in cells} == {"h100-sxm5", "a100-80-sxm", "l40s", "l4"}
    assert {ours.unlike for row in rows for ours in row.ours} == {"another device"}


def test_another_format_is_not_comparable():
    rows = rows_with_ours([record(0.01697, format="fp32")])
    assert {ours.unlike for row in rows for ours in row.ours} == {
        "in fp32",
        "in fp32, another device",
    }


def test_another_context_or_runtime_is_no_counterpart():
    assert rows_with_ours([record(0.01, context=4000)]) == []
    assert rows_with_ours([record(0.01, runtime="hf-graph")]) == []


def test_the_graph_speed_up_comes_from_a_comparison_of_the_same_kernels():
    def arm(name, seconds):
        runtime = "hf-static" if name == "A" else "hf-graph"
        return record(
            seconds, runtime=runtime, arm=Arm(comparison="g", name=name, pair=0, margin=0.05)
        )

    rows = rows_with_ours([arm("A", 0.015), arm("B", 0.012)])
    by_device = {row.figure.device: row for row in rows}
    assert set(by_device) == {"h100-sxm5", "l4"}
    assert by_device["h100-sxm5"].figure.value == 1.259
    (ours,) = by_device["h100-sxm5"].ours
    assert (ours.value, ours.unlike) == (pytest.approx(1.25), None)
    assert by_device["l4"].ours[0].unlike == "another device"


def test_the_command_shows_and_refuses(program, tmp_path):
    from decodegap.record_files import write_record

    write_record(record(0.0168), tmp_path)
    ended = program("report", tmp_path, "--against", "reference")
    assert ended.code == 0
    assert "5 of 25 published figures have one of ours beside them" in ended.out
    assert "not comparable: another device" in ended.out
    documents = program("report", tmp_path, "--against", "reference", "--json").json
    assert sum(bool(row["ours"]) for row in documents) == 5
    assert program("report", tmp_path, "--against", "hearsay").code == 2
