"""Charts: what is drawn, in which order and colour; and that a page needs nothing from outside."""

import json
import re
import sys

import altair
import pytest

from builders import (
    assert_refused,
    failed_record,
    make_gpu_record,
    make_profile,
    run_program,
)
from decodegap.explain import part
from decodegap.explain.kernels import KINDS
from decodegap.explain.result import read_result
from decodegap.record_files import write_record
from decodegap.report.account_chart import PART_COLOURS, account_chart
from decodegap.report.curve_chart import curve_chart


def graph_records(runtime: str, context: int, *steps: float, **changes):
    profile = make_profile({"gemm": 1e-3, "flash_fwd": 1e-3}, busy=2e-3)
    return [
        make_gpu_record([step], runtime=runtime, context=context, profile=profile, **changes)
        for step in steps
    ]


RECORDS = [
    *graph_records("hf-static", 16, 0.010, 0.012),
    *graph_records("hf-eager", 16, 0.020),
    *graph_records("hf-static", 64, 0.011, 0.015),
    *graph_records("hf-eager", 64, 0.050),
]


@pytest.fixture
def folder(tmp_path):
    """The records in a folder."""
    for record in RECORDS:
        write_record(record, tmp_path)
    return tmp_path


def layers_of(chart) -> dict[str, dict]:
    """Layers of a chart by their mark; data put where they are used."""
    spec = chart.to_dict()
    return {layer["mark"]["type"]: layer for layer in spec["layer"]} | {"whole": spec}


def curve_layers(records=RECORDS, runtimes=("hf-static", "hf-eager")):
    curves = read_result(records).curves
    return layers_of(curve_chart(altair, curves, list(runtimes)))


# The curve


def test_points_are_trial_medians_and_lines_pass_their_medians():
    layers = curve_layers()
    points = {(row["context"], round(row["ms"], 6)) for row in values(layers["circle"])}
    assert points == {(16, 10), (16, 12), (16, 20), (64, 11), (64, 15), (64, 50)}
    (steps, floor) = [
        layer for layer in layers["whole"]["layer"] if layer["mark"]["type"] == "line"
    ][::-1]
    assert [(row["context"], round(row["ms"], 6)) for row in values(steps)] == [
        *((16, 11), (64, 13), (16, 20), (64, 50)),
    ]
    assert floor["mark"]["strokeDash"]


def values(layer) -> list[dict]:
    return layer["data"]["values"]


def test_the_floor_s_line_has_the_floors_of_the_records():
    whole = curve_layers()["whole"]
    floor = next(layer for layer in whole["layer"] if layer["mark"].get("strokeDash"))
    curve = read_result(RECORDS).curves[0]
    rows = values(floor)
    for row, point in ((rows[0], curve.points[0]), (rows[-1], curve.points[-1])):
        assert row["context"] == point.context
        assert row["ms"] == pytest.approx(point.floor * 1e3)


def test_the_legend_has_the_runtimes_in_their_order_with_the_cost():
    colour = curve_layers()["circle"]["encoding"]["color"]
    labels = colour["scale"]["domain"]
    assert [label.split(":")[0] for label in labels] == ["hf-static", "hf-eager"]
    assert colour["sort"] == labels
    # 30 ms for 48 × 512 bytes at 4.5 TB/s.
    assert labels[1] == f"hf-eager: {0.030 * 4.5e12 / (48 * 512):.0f}× the memory's"
    assert labels[0] == "hf-static: no growth shown"  # a trial at 64 is faster than one at 16
    assert len(set(colour["scale"]["range"])) == 2


def test_a_runtime_keeps_its_colour_in_every_chart():
    colour = curve_layers(graph_records("hf-eager", 16, 0.02) + graph_records("hf-eager", 32, 0.03))
    (alone,) = colour["circle"]["encoding"]["color"]["scale"]["range"]
    assert alone == curve_layers()["circle"]["encoding"]["color"]["scale"]["range"][1]


def test_titles_name_model_device_and_date_and_axes_their_units():
    layers = curve_layers()
    title = layers["whole"]["title"]
    assert title["text"] == "Step against context: tiny, fp32, synthetic weights"
    assert "NVIDIA H200 SXM 141GB, 2026-11-30 12:00 UTC" in title["subtitle"][0]
    assert "4.50 TB/s" in title["subtitle"][1]
    assert "ms" in layers["circle"]["encoding"]["y"]["title"]
    assert "tokens" in layers["circle"]["encoding"]["x"]["title"]


# The account


def account_rows(records=RECORDS):
    spec = account_chart(altair, read_result(records).cells).to_dict()
    return spec, spec["data"]["values"]


def test_the_bars_of_a_cell_sum_to_its_step():
    _, rows = account_rows()
    bars = {(row["context"], row["runtime"]): 0.0 for row in rows}
    for row in rows:
        bars[row["context"], row["runtime"]] += row["ms"]
    assert bars == {
        ("context 16", "hf-static"): pytest.approx(11),
        ("context 16", "hf-eager"): pytest.approx(20),
        ("context 64", "hf-static"): pytest.approx(13),
        ("context 64", "hf-eager"): pytest.approx(50),
    }


def test_every_part_there_is_has_a_colour_of_its_own():
    """Else it would be drawn grey, like what is left."""
    kinds = {f"{kind} (kernels)" for kind in KINDS} - {"linear (kernels)", "attention (kernels)"}
    constants = {value for name, value in vars(part).items() if name.isupper()}
    assert set(PART_COLOURS) == kinds | constants
    assert len(set(PART_COLOURS.values())) == len(PART_COLOURS)


def test_an_engine_s_ops_are_drawn_with_their_kind():
    """The step without attend is 1 ms shorter, without head 2 ms: less bytes, all above them."""
    probes = {"replay_without_attend": [0.009], "replay_without_head": [0.008]}
    probes |= {"replay_without_nothing": [0.010]}
    record = make_gpu_record([0.011], runtime="engine", probes=probes)
    (cell,) = read_result([record]).cells
    _, rows = account_rows([record])
    drawn = {row["part"]: row["ms"] for row in rows}
    parts = {part.name: part.seconds * 1e3 for part in cell.account.parts}
    assert drawn["attention above its bytes"] == parts["attend above its bytes"]
    assert drawn["linears above their bytes"] == parts["head above its bytes"]
    assert sum(drawn.values()) == pytest.approx(11)


def test_runtimes_and_parts_keep_their_order():
    spec, rows = account_rows()
    bars = spec["spec"]["layer"][0]["encoding"]
    assert bars["y"]["sort"] == ["hf-static", "hf-eager"]
    parts = bars["color"]["scale"]["domain"]
    assert parts[0] == "reachable floor"
    assert parts[-1].startswith("not separated")  # what is left comes last
    assert set(parts) == {row["part"] for row in rows}
    assert len(set(bars["color"]["scale"]["range"])) == len(parts)
    assert spec["facet"]["row"]["sort"] == ["context 16", "context 64"]


def test_a_part_below_zero_is_within_the_axis():
    """Kernels of 2 ms in a step of 1 ms leave −1 ms."""
    spec, rows = account_rows(graph_records("hf-static", 16, 0.001))
    low, high = spec["spec"]["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low <= min(row["ms"] for row in rows) < -0.9
    assert high > 2


# The files


def test_one_page_and_a_png_each(program, folder):
    charts = folder / "drawn" / "here"
    ended = program("report", folder, "--charts", charts)
    assert ended.code == 0, ended.err
    assert f"charts: {charts / 'charts.html'} and 2 images beside it" in ended.out
    assert sorted(path.name for path in charts.iterdir()) == [
        *("account-tiny-20261130T1200.png", "charts.html", "curve-tiny-20261130T1200.png"),
    ]
    for path in charts.glob("*.png"):
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        assert int.from_bytes(data[16:20], "big") > 1000  # pixels wide


def test_the_page_loads_nothing_from_outside(program, folder):
    program("report", folder, "--charts", folder / "drawn")
    page = (folder / "drawn" / "charts.html").read_text(encoding="utf-8")
    assert re.findall(r"<(?:script|link)[^>]*\s(?:src|href)=", page) == []
    assert re.findall(r"(?:src|href)\s*=\s*[\"'](?:https?:)?//", page) == []
    assert re.findall(r"(?:import|fetch)\(\s*[\"']https?:", page) == []
    spec = json.loads(re.search(r"const spec = (\{.*\});", page).group(1))
    assert len(spec["vconcat"]) == 2
    assert '"actions": false' in page  # no menu that leads to an editor elsewhere
    addresses = re.findall(r"https?://[^\"]*", json.dumps(spec))
    assert all(address.startswith("https://vega.github.io/schema/") for address in addresses)


def test_charts_of_one_minute_have_names_of_their_own(program, tmp_path):
    for run in ("a", "b"):
        for record in graph_records("hf-eager", 16, 0.02, run=run):
            write_record(record, tmp_path)
    program("report", tmp_path, "--charts", tmp_path / "drawn")
    names = sorted(path.name for path in (tmp_path / "drawn").glob("*.png"))
    assert names == ["account-tiny-20261130T1200-2.png", "account-tiny-20261130T1200.png"]


def test_json_stays_one_document(program, folder):
    (document,) = program("report", folder, "--charts", folder / "drawn", "--json").json
    assert len(document["curves"]) == 2
    assert (folder / "drawn" / "charts.html").exists()


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_what_to_install_is_said(program, tmp_path, monkeypatch, missing):
    write_record(RECORDS[0], tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    ended = program("report", tmp_path, "--charts", tmp_path / "drawn")
    assert_refused(ended, "pip install 'decodegap[report]'")
    assert not (tmp_path / "drawn").exists()


def test_nothing_to_draw(program, tmp_path):
    write_record(failed_record("oom", "no room"), tmp_path)
    assert_refused(
        program("report", tmp_path, "--charts", tmp_path / "drawn"), "nothing to draw", "--context"
    )
    assert not (tmp_path / "drawn").exists()


def test_a_folder_that_cannot_be_written(program, tmp_path):
    write_record(RECORDS[0], tmp_path)
    (tmp_path / "file").write_text("")
    ended = program("report", tmp_path, "--charts", tmp_path / "file" / "below")
    assert_refused(ended, "cannot write charts to", "--charts")


def test_without_charts_altair_is_not_loaded(tmp_path):
    write_record(RECORDS[0], tmp_path)
    (tmp_path / "hiding").mkdir()
    (tmp_path / "hiding" / "altair.py").write_text("raise SystemExit('altair was imported')")
    ended = run_program("report", tmp_path, PYTHONPATH=str(tmp_path / "hiding"))
    assert ended.code == 0, ended.err
    drawn = run_program(
        *("report", tmp_path, "--charts", tmp_path / "drawn"),
        PYTHONPATH=str(tmp_path / "hiding"),
    )
    assert "altair was imported" in drawn.err
