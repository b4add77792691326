"""`decodegap plan`: what it shows, its exit codes, how it refuses."""

from pathlib import Path

import pytest

from builders import assert_refused, make_gpu_record, tiny, write_config
from decodegap.record_files import write_record

MS = 1e-3


@pytest.fixture
def model(tmp_path) -> Path:
    return write_config(tmp_path / "mine", tiny())


@pytest.fixture
def records(tmp_path) -> Path:
    folder = tmp_path / "records"
    folder.mkdir()
    for seconds, runtime in ((4 * MS, "engine"), (20 * MS, "hf-static")):
        write_record(make_gpu_record([seconds], runtime=runtime, format="bf16"), folder)
    return folder


def test_what_holds_is_shown_first_with_what_to_do(program, model, records):
    ended = program("plan", model, "-r", 100, "-c", 16, "--records", records, "-d", "h200")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].endswith(
        "at context 16, a token in each tick of 100 Hz: a step may take 9.00 ms; 10% of a tick "
        "stays free"
    )
    engine, static = lines[2:4]
    assert engine.split()[0] == "engine"
    assert engine.rstrip().endswith("holds")
    assert "225 Hz" in engine  # 0.9 ÷ 4 ms
    assert static.rstrip().endswith("too slow")
    assert "→ engine, bf16, on NVIDIA H200 SXM 141GB: holds 100 Hz" in ended.out


def test_the_same_as_a_document(program, model, records):
    arguments = ("plan", model, "-r", 25, "-n", 4, "-c", 16, "--records", records, "--json")
    found = program(*arguments, "-d", "h200", "-d", "l4", "-f", "bf16").json
    assert found["step_s"] == pytest.approx(9 * MS)
    assert found["holds"]
    assert [row["answer"] for row in found["measured"]] == ["holds", "misses"]
    assert [(row["device"], row["fits"]) for row in found["memory"]] == [
        ("h200", True),
        ("l4", True),
    ]


def test_nothing_that_holds_is_exit_code_1(program, model, records):
    ended = program("plan", model, "-r", 1000, "-c", 16, "--records", records)
    assert ended.code == 1
    assert "comes nearest and does not hold 1000 Hz" in ended.out


def test_without_records_it_is_memory_that_answers(program, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    ended = program("plan", "qwen2.5-7b", "--rate", 10, "--format", "bf16")
    assert ended.code == 1
    assert "no record answers for qwen2.5-7b; --records names other folders" in ended.out
    assert "above 1 none can; no record here says how near one comes" in ended.out
    assert "measure it there: decodegap measure qwen2.5-7b --context 2048" in " ".join(
        ended.out.split()
    )


def test_records_are_found_where_measure_leaves_them(program, monkeypatch, tmp_path, model):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "decodegap-results" / "run"
    folder.mkdir(parents=True)
    write_record(make_gpu_record([4 * MS]), folder)
    assert program("plan", model, "-r", 100, "-c", 16).code == 0


def test_a_record_in_two_folders_counts_once(program, model, records):
    arguments = ("plan", model, "-r", 100, "-c", 16, "--json")
    twice = program(*arguments, "--records", records, "--records", records)
    assert len(twice.json["measured"]) == 2
    assert twice.err == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--rate", "0"), "--rate 0 is no rate"),
        (("--rate", "-5"), "--rate -5 is no rate"),
        (("--rate", "nan"), "--rate nan is no rate"),
        (("--rate", "inf"), "--rate inf is no rate"),
        (("--rate", "10", "--margin", "100%"), "--margin"),
        (("--rate", "10", "--tokens", "0"), "--tokens"),
        (("--rate", "10", "--device", "h2000"), "unknown device"),
        (("--rate", "10", "--format", "int3"), "unknown format"),
        (("--rate", "10", "--context", "10000000"), "context"),
        (("--rate", "10", "--records", "nowhere"), "nowhere"),
        ((), "--rate"),
    ],
)
def test_what_cannot_be_planned_is_one_line(program, arguments, words):
    assert_refused(program("plan", "qwen2.5-7b", *arguments), words)
