"""Cells for other programs: one row each, the figures those of the summary, by hand."""

import csv
import io
import json
import math
import sys

import msgspec
import pytest

from builders import (
    PASSED,
    failed_record,
    make_environment,
    make_gpu_record,
    make_record,
    shape_of,
    tiny,
)
from decodegap.errors import DecodegapError, Unavailable
from decodegap.explain.summary import UnlikeRecords
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import published_bytes, step_traffic
from decodegap.record import Arm
from decodegap.report.export import EXPORTS, as_csv, as_github, as_jsonl, as_parquet
from decodegap.report.markdown import as_markdown
from decodegap.report.rows import Row, export_rows

SHAPE = shape_of(tiny(), "tiny")


def arm(name: str) -> Arm:
    return Arm(comparison="run0", name=name, pair=0, margin=0.05)


def from_csv(rows: list[Row]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(as_csv(rows).decode())))


def two_trials() -> list[Row]:
    """Medians of 10 and 14 ms on an H200 at 4.5 TB/s."""
    slow = make_gpu_record((0.013, 0.014, 0.020), minute=1)
    return export_rows([make_gpu_record((0.009, 0.010, 0.011)), slow])


def test_a_row_has_the_figures_of_its_cell():
    (row,) = two_trials()
    num_bytes = step_traffic(SHAPE, 16, get_format("fp32")).bytes
    assert row.step_s == pytest.approx(0.012)
    assert (row.p95_s, row.p99_s) == (0.020, 0.020)
    assert row.between_trial_cv == pytest.approx(math.sqrt(0.000_008) / 0.012)
    assert row.bytes == num_bytes
    assert row.published_bytes == published_bytes(SHAPE, 16, get_format("fp32"))
    assert row.achieved_bytes_per_s == pytest.approx(num_bytes / 0.012)
    assert row.exact_floor_s == pytest.approx(num_bytes / 4.8e12)
    assert row.published_floor_s == pytest.approx(row.published_bytes / 4.8e12)
    assert row.reachable_floor_s == pytest.approx(num_bytes / 4.5e12)
    assert row.r_floor == pytest.approx(num_bytes / 4.8e12 / 0.012)
    assert row.r_reachable == pytest.approx(num_bytes / 4.5e12 / 0.012)
    assert row.r_published == pytest.approx(row.published_bytes / 4.8e12 / 0.012)


def test_the_worst_verdict_of_the_trials_is_shown():
    worse = msgspec.structs.replace(PASSED, top1_agreement=0.9, kl_divergence=2e-3)
    for verdicts in ((PASSED, worse), (worse, PASSED)):
        (row,) = export_rows([make_record((0.01,), verdict=verdict) for verdict in verdicts])
        assert (row.top1_agreement, row.kl_divergence_nats) == (0.9, 2e-3)


def test_a_row_says_what_was_measured_and_where():
    (row,) = two_trials()
    assert (row.model, row.runtime, row.format, row.weights) == (
        *("tiny", "hf-eager", "fp32", "synthetic"),
    )
    assert (row.device, row.device_name, row.driver) == ("h200", "NVIDIA H200", "580.0")
    assert (row.host_cpu, row.torch_version) == ("Some CPU", "2.13.0")
    assert (row.context_tokens, row.num_trials, row.num_failed_trials) == (16, 2, 0)
    assert (row.num_warmup_steps, row.num_timed_steps) == (1, 3)
    assert (row.outcome, row.arm) == ("ok", None)
    assert row.started_at.isoformat() == "2026-11-30T12:00:00+00:00"


def test_cells_runs_and_arms_have_rows_of_their_own():
    rows = export_rows(
        [
            make_record((0.01,), runtime="hf-eager"),
            make_record((0.02,), runtime="hf-static"),
            make_record((0.03,), runtime="hf-eager", context=32),
            make_record((0.04,), runtime="hf-eager", run="run1"),
            make_record((0.05,), runtime="hf-eager", run="run2", arm=arm("A")),
            make_record((0.06,), runtime="hf-eager", run="run2", arm=arm("B")),
        ]
    )
    assert [row.step_s for row in rows] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    assert [row.arm for row in rows] == [None, None, None, None, "A", "B"]


def test_a_cell_without_a_time_is_a_row():
    good = make_gpu_record((0.01,))
    rows = export_rows([good, failed_record("oom", "out of memory", context=32)])
    assert [row.outcome for row in rows] == ["ok", "oom"]
    lost = rows[1]
    assert (lost.num_trials, lost.num_failed_trials) == (0, 1)
    assert (lost.step_s, lost.r_floor) == (None, None)
    assert lost.device == "h200"  # where the rest of its run was measured


def test_a_failed_trial_of_a_cell_is_counted():
    (row,) = export_rows([make_record((0.01,)), failed_record("timeout", "too long")])
    assert (row.outcome, row.num_trials, row.num_failed_trials) == ("ok", 1, 1)


def test_a_trial_that_lists_kernels_is_neither_a_time_nor_a_failure():
    timed = [make_record((0.01,), process=f"round {index}") for index in range(2)]
    looked = make_record((), process="profile", num_steps=0)
    for records in ([*timed, looked], [looked, *timed]):
        (row,) = export_rows(records)
        assert (row.num_trials, row.num_failed_trials, row.process) == (2, 0, "round")
        assert row.num_timed_steps == timed[0].trial.num_steps
    assert two_trials()[0].process == "trial"


def test_markdown_says_that_processes_were_shared():
    shared = as_markdown(export_rows([make_record((0.01,), process="round 0")])).decode()
    assert "a trial is a fresh process, which measures other cells too, with" in shared
    assert "a trial is a fresh process with" in as_markdown(two_trials()).decode()


def test_unlike_trials_are_not_pooled():
    other = make_record((0.01,), environment=make_environment(host_cpu="Another"))
    with pytest.raises(UnlikeRecords, match="host CPU"):
        export_rows([make_record((0.01,)), other])


# CSV and JSON lines


def test_csv_has_the_columns_of_a_row_and_empty_unknowns():
    rows = [*two_trials(), *export_rows([failed_record("oom", "out of memory")])]
    first, second = from_csv(rows)
    assert tuple(first) == Row.__struct_fields__
    assert float(first["step_s"]) == rows[0].step_s
    assert first["arm"] == ""
    assert (second["outcome"], second["step_s"], second["driver"]) == ("oom", "", "")
    assert first["started_at"] == "2026-11-30T12:00:00Z"


def test_csv_quotes_what_needs_it():
    environment = make_environment(host_cpu='A "fast", hot CPU\nof two lines')
    (row,) = from_csv(export_rows([make_record((0.01,), environment=environment)]))
    assert row["host_cpu"] == 'A "fast", hot CPU\nof two lines'


def test_json_lines_are_rows():
    rows = [*two_trials(), *export_rows([failed_record("oom", "out of memory")])]
    lines = as_jsonl(rows).decode().splitlines()
    first, second = (json.loads(line) for line in lines)
    assert tuple(first) == Row.__struct_fields__
    assert first["step_s"] == rows[0].step_s
    assert second["step_s"] is None


# Parquet


def test_parquet_keeps_types_whatever_is_empty(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [*two_trials(), *export_rows([failed_record("oom", "out of memory")])]
    for some in (rows, rows[1:]):
        path = tmp_path / f"{len(some)}.parquet"
        path.write_bytes(as_parquet(some))
        table = parquet.read_table(path)
        assert table.column_names == list(Row.__struct_fields__)
        assert str(table.schema.field("step_s").type) == "double"
        assert str(table.schema.field("context_tokens").type) == "int64"
        assert str(table.schema.field("started_at").type) == "timestamp[us, tz=UTC]"
        assert table.column("step_s").to_pylist() == [row.step_s for row in some]


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unavailable, match=r"pip install 'decodegap\[report\]'"):
        as_parquet(two_trials())


# github-action-benchmark


def test_a_chart_entry_is_the_step_in_milliseconds():
    (entry,) = json.loads(as_github(two_trials()))
    assert entry["name"] == "tiny fp32 hf-eager, context 16, synthetic weights, h200"
    assert entry["unit"] == "ms"
    assert entry["value"] == pytest.approx(12.0)
    assert entry["range"] == "± 23.6%"  # √8 ÷ 12
    assert "trials: 2" in entry["extra"]
    assert "run: run0" in entry["extra"]


def test_one_trial_has_no_range():
    (entry,) = json.loads(as_github(export_rows([make_record((0.01,))])))
    assert "range" not in entry
    assert set(entry) == {"name", "unit", "value", "extra"}


def test_of_a_cell_of_several_runs_the_newest_is_charted_and_says_so():
    old, new = make_record((0.01,), run="old"), make_record((0.02,), run="new", minute=5)
    for records in ([old, new], [new, old]):
        (entry,) = json.loads(as_github(export_rows(records)))
        assert entry["value"] == pytest.approx(20.0)
        assert "run: new\nthe newest of 2 runs" in entry["extra"]


def test_two_models_of_one_name_are_two_lines_of_the_chart():
    """Folders of one name; what tells them apart is the bytes of a step."""
    records = [
        make_record((0.01,), run="a"),
        make_record((0.02,), run="b", config=tiny(vocab_size=909)),
    ]
    for record in records:
        assert record.trial.shape.name == "tiny"
    first, second = json.loads(as_github(export_rows(records)))
    assert (first["value"], second["value"]) == (10.0, 20.0)
    assert "bytes a step" in first["name"]
    assert first["name"] != second["name"]


def test_arms_of_one_runtime_are_two_lines_of_the_chart():
    rows = export_rows([make_record((0.01,), arm=arm("A")), make_record((0.02,), arm=arm("B"))])
    names = [entry["name"] for entry in json.loads(as_github(rows))]
    assert len(set(names)) == 2
    assert "(arm B)" in names[1]


def test_a_cell_without_a_time_is_not_charted():
    lost = failed_record("oom", "out of memory", context=32)
    assert len(json.loads(as_github(export_rows([make_record((0.01,)), lost])))) == 1
    with pytest.raises(DecodegapError, match="no cell has a time"):
        as_github(export_rows([lost]))


# Markdown


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_markdown_states_hardware_protocol_and_trials():
    heading, empty, names, rule, line = as_markdown(two_trials()).decode().splitlines()
    assert heading.startswith(
        "**NVIDIA H200**, Some CPU, driver 580.0, torch 2.13.0, transformers 5.24.0; synthetic"
    )
    assert "1 warm-up and 3 timed steps" in heading
    assert empty == ""
    shown = dict(zip(cells(names), cells(line), strict=True))
    assert shown["trials"] == "2"
    assert (shown["step"], shown["p99"], shown["CV"]) == ("12.0 ms", "20.0 ms", "23.6%")
    assert len(cells(rule)) == len(cells(names))


def test_markdown_tells_failures_and_escapes_bars():
    good = make_gpu_record((0.01,), runtime="a|b")
    lost = failed_record("oom", "out of memory", context=32)
    text = as_markdown(export_rows([good, lost])).decode()
    assert "a\\|b" in text
    (line,) = [line for line in text.splitlines() if "oom" in line]
    assert cells(line)[3:6] == ["32", "0 (1 failed)", "oom"]
    assert text.count("**NVIDIA H200**") == 1


def test_markdown_keeps_machines_apart():
    there = make_environment(device_name="Another CPU")
    records = [make_record((0.01,)), make_record((0.01,), run="run1", environment=there)]
    text = as_markdown(export_rows(records)).decode()
    assert text.count("| model |") == 2
    assert "**Some CPU**" in text
    assert "**Another CPU**" in text


def test_every_export_takes_the_same_rows():
    assert set(EXPORTS) == {"csv", "jsonl", "parquet", "github", "markdown"}
