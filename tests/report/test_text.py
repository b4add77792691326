"""What is shown is what was computed: figures on the screen, one line where one is enough."""

import re

import msgspec
import pytest
from rich.console import Console

from builders import (
    failed_record,
    make_gpu_record,
    make_profile,
    make_record,
    make_trial,
    shape_of,
    tiny,
)
from decodegap.explain.result import read_result
from decodegap.predict.catalogue import catalogue_devices, catalogue_shape
from decodegap.predict.device import Device, derive_device, with_measured
from decodegap.predict.floor import step_floor
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import held_bytes, step_traffic
from decodegap.report import account_view, text

BF16 = get_format("bf16")


def lines(*parts) -> list[str]:
    console = Console(width=150, highlight=False)
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    return [line.rstrip() for line in captured.get().splitlines()]


def line_with(shown: list[str], *words: str) -> str:
    (line,) = [line for line in shown if all(word in line for word in words)]
    return line


# Floors


def floor_lines(shape, context: int, *devices: Device) -> list[str]:
    rows = [(device, step_floor(shape, context, BF16, device)) for device in devices]
    traffic = step_traffic(shape, context, BF16)
    return lines(text.floor_view(rows, traffic, held_bytes(shape, context, BF16)))


def test_floors_are_shown_fastest_first_and_unknown_last():
    devices = catalogue_devices()
    unknown = derive_device("Unknown", None, None)
    shown = floor_lines(
        catalogue_shape("qwen2.5-7b"), 2048, devices["l4"], unknown, devices["h200"]
    )
    rows = [line.split("  ")[0].strip() for line in shown[2:]]
    assert rows == ["NVIDIA H200 SXM 141GB", devices["l4"].title, "Unknown"]
    assert line_with(shown, "Unknown").count("–") == 3


def test_the_heading_has_both_counts():
    shown = floor_lines(catalogue_shape("qwen2.5-7b"), 2048, catalogue_devices()["h200"])
    assert "14.26 GB" in shown[0]
    assert "15.35 GB as published" in shown[0]
    assert "context 2048" in shown[0]


def test_a_floor_is_a_time_and_a_rate():
    device = with_measured(catalogue_devices()["h200"], 4.5e12, "a test")
    row = line_with(floor_lines(catalogue_shape("qwen2.5-7b"), 2048, device), "NVIDIA")
    # 15.349 and 14.258 GB over 4.8 TB/s, and 14.258 over 4.5.
    for words in ("3.20 ms", "313 Hz", "2.97 ms", "337 Hz", "3.17 ms", "316 Hz"):
        assert words in row


def test_the_same_tensor_of_all_layers_is_one_line():
    traffic = step_traffic(shape_of(tiny(num_hidden_layers=7)), 16, BF16)
    shown = lines(text.flows_table(traffic))
    row = line_with(shown, "model.layers.*.mlp.gate_proj.weight")
    assert row.split()[2] == "7"
    assert "12.29 kB" in row  # 2 × 64 × 96
    assert "86.02 kB" in row  # seven of them
    assert line_with(shown, "kv_cache", "written").split()[2] == "7"


def test_every_flow_is_in_the_table():
    traffic = step_traffic(shape_of(tiny()), 16, BF16)
    shown = lines(text.flows_table(traffic))
    assert sum(int(line.split()[2]) for line in shown[1:-1]) == len(traffic.flows)
    assert shown[-1].split()[:2] == ["all", str(len(traffic.flows))]


# Plans


def plan_lines(device: Device, *trials) -> list[str]:
    return lines(text.plan_view(trials, device))


def test_a_plan_says_what_will_run_and_on_what():
    trials = [
        make_trial(runtime=runtime, context=context)
        for runtime in ("hf-eager", "hf-static")
        for context in (16, 32)
    ]
    device = with_measured(derive_device("Some CPU", None, None), 5e10, "sum over 1.07 GB")
    shown = " ".join(plan_lines(device, *trials))
    for words in (
        *("tiny, fp32, synthetic weights (seeded), on Some CPU", "50.00 GB/s", "sum over 1.07 GB"),
        *("hf-eager, hf-static; 4 trials", "1 warm-up steps, 3 timed"),
        *("context 16: ", "context 32: ", "at the bandwidth measured here"),
    ):
        assert words in shown
    assert "datasheet" not in shown


def test_a_plan_of_a_checkpoint_names_its_folder():
    trial = make_trial(weights="checkpoint", folder="/models/mine")
    shown = plan_lines(catalogue_devices()["h200"], trial)
    assert "/models/mine" in shown[0]
    assert "synthetic" not in shown[0]
    assert "by the datasheet" in shown[-1]


# Results


def test_times_table_has_the_figures_of_its_records():
    records = [make_gpu_record([0.010, 0.011, 0.020]), make_gpu_record([0.012, 0.012, 0.012])]
    (cell,) = read_result(records).cells
    header, row = lines(text.times_table([cell.summary]))
    assert header.split() == [
        *("runtime", "context", "step", "of", "trials", "p95", "p99", "rate", "trials", "CV")
    ]
    # The median of 11 and 12 ms; their deviation is 0.707 ms, 6.1 % of it.
    for words in ("11.5 ms", "11.0 ms – 12.0 ms", "20.0 ms", "87.0 Hz", " 2 ", "6.1%"):
        assert words in row


def test_memory_table_has_bytes_ratios_and_verdict():
    (cell,) = read_result([make_gpu_record([0.010])]).cells
    header, row = lines(text.memory_table([cell.summary]))
    assert header.split() == [
        *("runtime", "context", "bytes", "achieved"),
        *("R_floor", "R_published", "R_reachable", "top-1", "KL"),
    ]
    assert "100%" in row
    assert "0.0001" in row
    for floor in (cell.summary.floor.exact, cell.summary.floor.reachable):
        assert f"{floor / 0.010:.3f}" in row


def test_a_column_without_a_value_is_left_out():
    (cell,) = read_result([make_record()]).cells
    assert "CV" not in lines(text.times_table([cell.summary]))[0]  # one trial
    header, _ = lines(text.memory_table([cell.summary]))
    assert "R_floor" not in header  # a CPU has no datasheet
    assert "R_reachable" in header


def test_the_worst_verdict_of_a_cell_is_shown():
    good = make_record()
    verdict = msgspec.structs.replace(
        good.measurement.verdict, top1_agreement=0.94, kl_divergence=0.015
    )
    (cell,) = read_result([good, make_record(verdict=verdict)]).cells
    _, row = lines(text.memory_table([cell.summary]))
    assert "94%" in row
    assert "0.01" in row or "0.02" in row


def test_an_account_s_lines_sum_to_the_step():
    probes = {"linears": [3e-3], "no_attention": [8e-3], "twin": [5e-3], "twin_linears": [1e-3]}
    (cell,) = read_result([make_record([0.010], probes=probes)]).cells
    shown = lines(account_view.account_view(cell.account, 16))
    assert shown[0] == "where the step of hf-eager goes, context 16"
    assert [line.split("  ")[0].strip() for line in shown[1:]] == [
        *("reachable floor", "linears above their bytes", "attention above its bytes"),
        *("host work", "cache copies, norms, elementwise", "step"),
    ]
    shares = [float(word[:-1]) for line in shown[1:] for word in line.split() if word[-1] == "%"]
    assert shares[-1] == 100
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.3)
    assert "4.00 ms" in line_with(shown, "host work")
    assert "40.0%" in line_with(shown, "host work")
    assert line_with(shown, "host work").count("█") == 13  # of 32


def by_context(*steps: tuple[int, float]) -> list[str]:
    records = [
        make_record([step], context=context, probes={"linears": [step / 2]})
        for context, step in steps
    ]
    views = account_view.accounts_view(read_result(records).cells)
    return [line for view in views for line in lines(view)]


def test_contexts_of_a_runtime_stand_side_by_side():
    shown = by_context((32, 0.020), (16, 0.010))
    assert shown[0] == "where the step of hf-eager goes, by context"
    assert shown[1].split() == ["context", "16", "32"]
    assert line_with(shown, "step  ").split()[:7] == [
        *("step", "10.0", "ms", "100%", "20.0", "ms", "100%"),
    ]
    (note,) = [line for line in shown if "without all interventions" in line]
    assert not note.strip().startswith("at ")  # it is of both
    for context in (0, 1):
        shares = [
            int(words[context][:-1])
            for line in shown
            if len(words := [word for word in line.split() if word.endswith("%")]) == 2
        ]
        assert sum(shares[:-1]) == pytest.approx(shares[-1], abs=2)


def test_more_contexts_than_fit_go_below():
    shown = by_context(*((context, 0.01) for context in range(16, 22)))
    headings = [line for line in shown if line.startswith("where the step")]
    assert len(headings) == 2
    assert shown[1].split() == ["context", "16", "17", "18", "19"]
    alone = by_context(*((context, 0.01) for context in range(16, 21)))
    assert "where the step of hf-eager goes, context 20" in alone


def test_a_part_that_one_context_lacks_is_blank_there():
    records = [
        make_record([0.010], context=16, probes={"linears": [0.004]}),
        make_record([0.010], context=32),
    ]
    (view, *_) = account_view.accounts_view(read_result(records).cells)
    shown = lines(view)
    assert len(re.findall(r"\d+%", line_with(shown, "linears above their bytes"))) == 1
    residuals = [line for line in shown if "what is left" in line]
    assert [len(re.findall(r"\d+%", line)) for line in residuals] == [1, 1]
    assert shown.index(residuals[0]) > shown.index(line_with(shown, "linears above their bytes"))


def test_a_negative_part_has_no_bar():
    probes = {"linears": [3e-3], "no_attention": [0.012]}
    (cell,) = read_result([make_record([0.010], probes=probes)]).cells
    row = line_with(lines(account_view.account_view(cell.account, 16)), "attention above")
    assert "-2.00 ms" in row
    assert "█" not in row


def test_a_failure_is_said_once_with_its_reason():
    records = [failed_record("oom", "no room [/at] all", runtime="hf-static")] * 3
    records.append(failed_record("timeout", "too slow", runtime="hf-static"))
    shown = lines(text.result_view(read_result(records)))
    assert shown == [
        "hf-static, context 16: oom: no room [/at] all",
        "hf-static, context 16: timeout: too slow",
    ]


def test_a_result_shows_steps_accounts_failures_and_findings_in_order():
    records = [
        make_gpu_record([0.010], profile=make_profile({"gemm": 5e-3}, busy=5e-3)),
        failed_record("oom", "no room", runtime="hf-static"),
    ]
    shown = "\n".join(lines(text.result_view(read_result(records))))
    places = [
        shown.index(words)
        for words in ("R_reachable", "where the step of hf-eager goes", "oom: no room", "→ ", "! ")
    ]
    assert places == sorted(places)


def test_a_run_s_heading():
    heading = lines(text.run_heading(read_result([make_gpu_record()])))
    assert heading == ["tiny, fp32, synthetic weights, on NVIDIA H200, 2026-11-30 12:00 UTC"]
    failed = lines(text.run_heading(read_result([failed_record("oom", "no room")])))
    assert failed == ["tiny, fp32, synthetic weights, on cpu, 2026-11-30 12:00 UTC"]
