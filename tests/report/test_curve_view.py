"""Curves on the screen, in documents and from the command line."""

import pytest
from rich.console import Console

from builders import (
    assert_refused,
    make_gpu_record,
    make_record,
    one_by_one,
    shape_of,
    tiny,
    write_config,
)
from decodegap.explain.result import read_result
from decodegap.measure import session
from decodegap.record_files import write_record
from decodegap.report.curve import curve_document, curves_view

BANDWIDTH = 1e9
NEED = 16 * 512 / BANDWIDTH  # seconds for 16 tokens more of the tiny model


def records(runtime: str, context: int, *steps: float, **changes):
    settings = {"reachable_bytes_per_second": BANDWIDTH} | changes
    return [make_gpu_record([step], runtime=runtime, context=context, **settings) for step in steps]


def curves(*groups):
    return read_result([record for group in groups for record in group]).curves


STEEP = (
    records("hf-eager", 16, 0.010, 0.010),
    records("hf-eager", 32, 0.010 + 21 * NEED, 0.010 + 23 * NEED),
)


def shown(found) -> list[str]:
    console = Console(width=150, highlight=False)
    with console.capture() as captured:
        console.print(curves_view(found))
    return [line.rstrip() for line in captured.get().splitlines()]


def line_with(lines: list[str], *words: str) -> str:
    (line,) = [line for line in lines if all(word in line for word in words)]
    return line


def test_each_context_is_a_line_with_its_floor():
    lines = shown(curves(*STEEP))
    assert lines[0] == "step against context: tiny, fp32, synthetic weights"
    first = line_with(lines, "hf-eager", "16")
    floor = read_result(STEEP[0]).cells[0].summary.floor.reachable
    assert f"{floor * 1e6:.0f} µs" in first
    for words in ("8.70 kB", "10.0 ms", " 2"):  # 17 × 512 bytes
        assert words in first
    second = line_with(lines, "16.90 kB")
    assert "10.2 ms" in second
    assert "hf-eager" not in second  # named once


def test_the_slope_is_held_against_the_memory():
    """22 times 8.192 µs over 8,192 bytes: 22 s a GB where the memory needs 1."""
    row = line_with(shown(curves(*STEEP)), "22.0×")
    for words in ("22.0 s", "1.00 s", "21.0× to 23.0×", "two contexts"):
        assert words in row


def test_two_contexts_and_single_trials_say_what_is_not_known():
    text = " ".join(shown(curves(records("e", 16, 0.010), records("e", 32, 0.011))))
    assert "whether the growth is straight is not known" in text
    assert "no range is known" in text


def test_three_contexts_say_how_far_from_straight():
    """0, 1 and 5.6 ms more at equal distances: the middle one lies 1.2 ms below the line."""
    found = curves(
        *(records("e", c, s, s) for c, s in ((16, 0.010), (32, 0.011), (48, 0.0156))),
    )
    lines = shown(found)
    assert "up to 1.20 ms" in line_with(lines, "×", "up to")
    assert "straight is not known" not in " ".join(lines)
    assert "no range is known" not in " ".join(lines)


def test_a_range_that_holds_zero_is_said():
    found = curves(records("e", 16, 0.010, 0.012), records("e", 32, 0.0115, 0.0125))
    assert "e: no growth with context is shown" in " ".join(shown(found))


def test_a_window_shorter_than_all_contexts():
    shape = shape_of(tiny(model_type="mistral", sliding_window=8), "tiny")
    trials = [make_record([0.010], shape=shape, context=context) for context in (16, 32)]
    lines = shown(read_result(trials).curves)
    assert "KV does not grow" in line_with(lines, "KV does not grow")
    assert "×" not in " ".join(lines)


def test_models_have_tables_of_their_own():
    other = shape_of(tiny(num_hidden_layers=3), "other")
    found = curves(
        *STEEP, *(records("hf-eager", context, 0.01, shape=other) for context in (16, 32))
    )
    headings = [line for line in shown(found) if line.startswith("step against context")]
    assert [heading.split()[3] for heading in headings] == ["tiny,", "other,"]


def test_a_curve_of_several_runs_says_so(tmp_path, program):
    for record in (*records("e", 16, 0.01, run="a"), *records("e", 32, 0.011, run="b")):
        write_record(record, tmp_path)
    out = program("report", tmp_path).out
    heading = line_with(out.splitlines(), "step against context")
    assert "on NVIDIA H200 SXM 141GB, from several like runs since 2026-11-30 12:00 UTC" in heading
    documents = program("report", tmp_path, "--json").json
    assert [len(document["curves"]) for document in documents] == [0, 0, 1]
    assert documents[-1]["curves"][0]["runs"] == ["a", "b"]


def test_the_document_has_base_units():
    document = curve_document(curves(*STEEP)[0])
    assert document["model"] == "tiny"
    assert document["runtime"] == "hf-eager"
    assert [point["context"] for point in document["points"]] == [16, 32]
    assert [point["kv_bytes"] for point in document["points"]] == [17 * 512, 33 * 512]
    assert document["points"][0]["step_s"] == 0.010
    assert document["points"][0]["trial_medians_s"] == [0.010, 0.010]
    assert document["memory_seconds_per_byte"] == 1e-9
    assert document["slope"]["seconds_per_byte"] == pytest.approx(22e-9)
    assert document["slope"]["low"] == pytest.approx(21e-9)
    assert document["slope"]["largest_miss"] is None
    assert document["factor"] == pytest.approx(22)
    assert document["factor_range"] == pytest.approx([21, 23])


# The command line


@pytest.fixture
def growing_trials(monkeypatch, known_bandwidth):
    """A step of 1 ms and 1 µs a token of context."""

    def run(asked):
        return make_record([1e-3 + 1e-6 * asked.context], trial=asked)

    monkeypatch.setattr(session, "run_process", one_by_one(run))


@pytest.mark.parametrize(
    "options",
    [["-c", "16,32,64"], ["-c", "16", "-c", "32", "-c", "64"], ["-c", "16,32", "-c", "64"]],
)
def test_measure_takes_contexts_either_way(program, tmp_path, growing_trials, options):
    config = write_config(tmp_path / "mine")
    arguments = ("-d", "cpu", "-r", "hf-eager", "-f", "fp32", "--trials", "2")
    out = tmp_path / "out"
    document = program("measure", config, *options, *arguments, "--out", out, "--json").json
    (curve,) = document["curves"]
    assert [point["context"] for point in curve["points"]] == [16, 32, 64]
    # 1 µs for 512 bytes, where 50 GB/s need 10.24 ns.
    assert curve["factor"] == pytest.approx(1e-6 / (512 / 50e9))
    assert curve["slope"]["largest_miss"] == pytest.approx(0, abs=1e-12)
    screen = program("report", out).out
    assert screen.index("R_reachable") < screen.index("step against context")
    assert screen.index("step against context") < screen.index("where the step of hf-eager goes")
    assert "each added KV byte costs 97.7× what the memory needs" in screen


def test_a_context_given_twice_is_measured_once(program):
    documents = program("floor", "smollm2-135m", "-d", "l4", "-c", "16,32,16", "--json").json
    assert [document["context"] for document in documents] == [16, 32]


@pytest.mark.parametrize(
    "given, words",
    [
        ("16,many", "not an integer"),
        ("16,", "integer"),
        ("16;32", "integer"),
        ("16,0", "at least 1"),
    ],
)
def test_bad_contexts_between_commas(program, given, words):
    assert_refused(program("floor", "smollm2-135m", "-c", given), "context", words)
