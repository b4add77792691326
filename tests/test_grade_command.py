"""`decodegap grade` and `decodegap export`: what they print, where they write, how they refuse."""

import csv
import io
import json
from pathlib import Path

import pytest

from builders import assert_refused, failed_record, make_gpu_record, make_record
from decodegap.record_files import write_record

FILES = Path(__file__).parent / "fixtures" / "foreign"


@pytest.fixture
def records(tmp_path) -> Path:
    """A folder with one measured cell of two trials and one that ran out of memory."""
    folder = tmp_path / "records"
    folder.mkdir()
    for record in (
        make_gpu_record((0.010,)),
        make_gpu_record((0.014,), minute=1),
        failed_record("oom", "out of memory", context=32),
    ):
        write_record(record, folder)
    return folder


# grade


SMOLLM2_HERE = ("--model", "smollm2-135m", "--bandwidth", "60e9")


def test_grade_on_the_screen(program):
    ended = program("grade", FILES / "llama_bench.json", *SMOLLM2_HERE)
    assert ended.code == 0
    out = ended.out.splitlines()
    assert out[0] == "llama-bench 1 0c1e570, smollm2-135m, AMD EPYC, batch 1"
    rows = [line for line in out if line.startswith(" llama 256M")]
    assert len(rows) == 8
    (line,) = [line for line in rows if "BF16 tg32 @ d256" in line]
    # 2 × 134 515 008 + 272 × 23 040 + 99 456 bytes ÷ 60 GB/s; 32 steps in 348.7 ms.
    for word in ("bf16", "271", "10.9 ms", "91.8 Hz", "275.40 MB", "4.59 ms", "0.421"):
        assert word in line
    assert "  step = median of 3 repetitions ÷ 32 steps" in out
    assert "  floor = bytes ÷ 60.00 GB/s" in out
    assert "! all figures: one process" in ended.out
    assert ended.out.count("prefill is inside") == 1


def test_grade_shows_bounds_as_bounds(program):
    ended = program("grade", FILES / "llama_bench_quantised.jsonl", *SMOLLM2_HERE)
    rows = [line for line in ended.out.splitlines() if line.startswith(" llama 256M Q4_0")]
    alone, with_prompt = rows[0], rows[1]
    assert "≥ 90.31 MB" in alone
    assert "≤" not in alone
    assert "≤" in with_prompt
    assert "pp64+tg32, 3 more: prefill is inside" in ended.out
    assert ended.out.count("a format that is none of ours") == 1


def test_a_figure_alone_has_its_subject_above_it(program):
    ended = program("grade", FILES / "optimum_benchmark.json", "--bandwidth", "60e9")
    assert ended.out.splitlines()[0] == (
        "optimum-benchmark 0.6.0, smollm2-135m, bf16, AMD EPYC, batch 1"
    )


def test_grade_as_json(program):
    path = FILES / "optimum_benchmark.json"
    ended = program("grade", path, "--bandwidth", "60e9", "--json")
    (figure,) = ended.json["figures"]
    decode = json.loads(path.read_text())["report"]["decode"]["latency"]
    assert figure["tool"] == "optimum-benchmark"
    assert figure["step_s"] == pytest.approx(decode["p50"] / 31)
    assert figure["samples_s"] == decode["values"]
    assert figure["model"] == "smollm2-135m"
    assert figure["model_text"] == "HuggingFaceTB/SmolLM2-135M"
    assert figure["r_floor"] == pytest.approx(figure["floor_s"]["exact"] / figure["step_s"])
    assert not figure["impossible"]
    assert all(finding["hint"] for finding in ended.json["findings"])


def test_an_impossible_figure_is_exit_code_1(program, tmp_path):
    path = tmp_path / "fast.json"
    path.write_text(json.dumps({"avg_latency": 0.1, "latencies": [0.1]}))
    options = ("-m", "qwen2.5-7b", "-d", "h200", "-f", "bf16", "--tokens", "129")
    ended = program("grade", path, *options)
    assert ended.code == 1
    assert "impossible: faster than memory" in ended.out
    assert program("grade", path, *options, "--json").code == 1


BAD_GRADES = {
    "no such file": (["no-such.json"], ["no-such.json", "No such file"]),
    "nothing is named": (
        [FILES / "optimum_benchmark_report.json"],
        ["--model", "--device", "--format", "--tokens"],
    ),
    "a model by no name": ([FILES / "llama_bench.json"], ["'llama 256M BF16'", "--model"]),
    "not a tool's": ([FILES / "README.md"], ["not JSON", "llama-bench", "vllm", "optimum"]),
    "another model": (
        [FILES / "llama_bench.json", "-m", "qwen2.5-7b", "-d", "h200"],
        ["134515008", "7615616512", "--model"],
    ),
    "unknown model": ([FILES / "llama_bench.json", "-m", "qwen"], ["unknown model 'qwen'"]),
    "contradicted": (
        [FILES / "llama_bench.json", "-m", "smollm2-135m", "--tokens", "5"],
        ["32", "--tokens"],
    ),
    "no tokens": ([FILES / "vllm_latency.json", "--tokens", "0"], ["--tokens"]),
}


@pytest.mark.parametrize("arguments, words", BAD_GRADES.values(), ids=BAD_GRADES)
def test_grade_refuses_in_one_line(program, arguments, words):
    assert_refused(program("grade", *arguments), *words)


# export


def test_export_to_standard_output(program, records):
    ended = program("export", records, "--to", "csv")
    assert ended.code == 0
    measured, lost = csv.DictReader(io.StringIO(ended.out))
    assert float(measured["step_s"]) == pytest.approx(0.012)
    assert (measured["num_trials"], lost["outcome"]) == ("2", "oom")
    assert len(program("export", records, "--to", "jsonl").out.splitlines()) == 2
    (entry,) = json.loads(program("export", records, "--to", "github").out)
    assert entry["value"] == pytest.approx(12.0)
    assert "| tiny | hf-eager | fp32 | 16 | 2 | 12.0 ms |" in (
        program("export", records, "--to", "markdown").out
    )


def test_export_to_a_file_is_whole_and_never_over_another(program, records, tmp_path):
    path = tmp_path / "cells.csv"
    ended = program("export", records, "--to", "csv", "--out", path)
    assert (ended.code, ended.out) == (0, "")
    before = path.read_bytes()
    assert before.decode() == program("export", records, "--to", "csv").out
    refused = program("export", records, "--to", "jsonl", "--out", path)
    assert_refused(refused, str(path), "never overwritten", "--out")
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [path, records]


def test_export_of_parquet(program, records, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "cells.parquet"
    assert program("export", records, "--to", "parquet", "--out", path).code == 0
    assert parquet.read_table(path).column("outcome").to_pylist() == ["ok", "oom"]


def test_an_unreadable_record_is_told_and_the_rest_exported(program, records):
    (records / "broken.json").write_text("{")
    ended = program("export", records, "--to", "jsonl")
    assert ended.code == 2
    assert "broken.json" in ended.err
    assert len(ended.out.splitlines()) == 2


def test_export_refuses_in_one_line(program, records, tmp_path):
    assert_refused(program("export", records, "--to", "xml"), "'xml'", "markdown")
    assert_refused(program("export", records, "--to", "parquet"), "parquet", "--out")
    assert_refused(program("export", records), "--to")
    assert_refused(program("export", tmp_path / "none", "--to", "csv"), "no folder")
    nowhere = tmp_path / "none" / "cells.csv"
    assert_refused(program("export", records, "--to", "csv", "--out", nowhere), "cannot write")


def test_export_of_only_failures_has_no_chart(program, tmp_path):
    write_record(failed_record("oom", "out of memory"), tmp_path)
    assert_refused(program("export", tmp_path, "--to", "github"), "no cell has a time")
    assert len(program("export", tmp_path, "--to", "jsonl").out.splitlines()) == 1


def test_a_cells_row_is_the_same_in_every_text(program, tmp_path):
    write_record(make_record((0.010, 0.011, 0.012)), tmp_path)
    (line,) = program("export", tmp_path, "--to", "jsonl").out.splitlines()
    (row,) = csv.DictReader(io.StringIO(program("export", tmp_path, "--to", "csv").out))
    assert float(row["step_s"]) == json.loads(line)["step_s"] == 0.011


def test_what_a_file_holds_does_nothing_to_the_terminal(program, tmp_path):
    """Cursor movements, window titles and line starts in a name are shown, not done."""
    rows = (FILES / "llama_bench_quantised.jsonl").read_text(encoding="utf-8").splitlines()
    row = next(row for row in map(json.loads, rows) if row["n_gen"])
    row |= {"gpu_info": "a\x1b]0;owned\x07b\x1b[5A", "model_type": "135M \x1b[2J\r\u202ex"}
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row]), encoding="utf-8")
    for arguments in (SMOLLM2_HERE, ()):  # graded; and refused, for what is not given
        ended = program("grade", path, *arguments)
        shown = ended.out + ended.err
        assert "\\x1b" in shown
        assert {c for c in shown if not c.isprintable()} <= {"\n"}
