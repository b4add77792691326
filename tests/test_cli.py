"""The command line: what it prints for people and programs, and how it refuses."""

import json
import os

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from builders import (
    assert_refused,
    failed_record,
    make_gpu_record,
    make_record,
    one_by_one,
    run_program,
    shape_of,
    tiny,
    write_config,
    write_known_bandwidth,
)
from decodegap import __version__
from decodegap.measure import memory, parent, session
from decodegap.predict.catalogue import catalogue_devices
from decodegap.predict.tensors import parameter_tensors
from decodegap.record_files import read_folder, write_record

# floor


def test_floor_as_json(program):
    ended = program("floor", "qwen2.5-7b", "--device", "h100-sxm5", "--json")
    document = ended.json
    assert ended.code == 0
    assert set(document) == {
        *("model", "device", "context", "format", "bytes", "floor_s", "flows"),
    }
    assert document["model"] == "qwen2.5-7b"
    assert document["device"] == "h100-sxm5"
    assert document["context"] == 2048
    assert document["format"] == "bf16"
    assert set(document["bytes"]) == {"published", "exact"}
    assert set(document["floor_s"]) == {"published", "exact", "reachable"}
    assert round(document["bytes"]["exact"] / 1e9, 2) == 14.26
    assert round(document["floor_s"]["published"] * 1e3, 2) == 4.58
    assert round(document["floor_s"]["exact"] * 1e3, 3) == 4.256
    assert {key for flow in document["flows"] for key in flow} == {
        *("op", "tensor", "bytes", "reason"),
    }
    assert sum(flow["bytes"] for flow in document["flows"]) == document["bytes"]["exact"]


def test_floor_of_every_device_and_context_as_one_json_document(program):
    documents = program("floor", "smollm2-135m", "-c", "100", "-c", "200", "--json").json
    assert {(row["device"], row["context"]) for row in documents} == {
        (device, context) for device in catalogue_devices() for context in (100, 200)
    }


def test_floor_on_the_screen(program):
    ended = program("floor", "qwen2.5-7b", "-d", "h100-sxm5", "-d", "l4")
    assert ended.code == 0
    assert "14.26 GB" in ended.out
    h100, l4 = (line for line in ended.out.splitlines() if line.strip().startswith("NVIDIA"))
    assert "4.58 ms" in h100
    assert "4.26 ms" in h100
    assert "235 Hz" in h100  # 1 / 4.256 ms
    assert "47.5 ms" in l4
    assert "NVIDIA L4" in l4


def test_floor_says_what_does_not_fit(program):
    ended = program("floor", "qwen2.5-7b", "-d", "jetson-orin-nano-8", "-d", "h200")
    lines = ended.out.splitlines()
    (nano,) = [line for line in lines if "Orin Nano" in line]
    (h200,) = [line for line in lines if "H200" in line]
    # 2 × (7 615 616 512 parameters + 28 layers × 1024 × 2048 positions)
    assert "a device must hold 15.35 GB" in ended.out
    assert "does not fit 8.00 GB" in nano
    assert "does not fit" not in h200


def test_flows_on_the_screen(program):
    out = program("floor", "qwen2.5-7b", "-d", "l4", "--flows").out
    assert "tied" not in out
    (row,) = [line for line in out.splitlines() if "mlp.gate_proj.weight" in line]
    assert "28" in row  # one line for all layers
    assert "135.79 MB" in row  # 2 × 18944 × 3584
    assert "one row: the token's" in out


def test_floor_of_a_config_file_and_of_a_folder(program, tmp_path):
    path = write_config(tmp_path / "mine")
    for name in (path, path.parent):
        assert program("floor", name, "-d", "l4", "-c", "16", "--json").json["bytes"]["exact"] > 0


@pytest.mark.parametrize(
    "stated, words",
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq, 4 bits"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes, 4 bits"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"bits": 8}, "by an unnamed method, 8 bits"),
    ],
)
def test_a_floor_wider_than_what_the_config_says_is_stored_says_so(
    program, tmp_path, stated, words
):
    path = write_config(tmp_path, tiny(quantization_config=stated))
    ended = program("floor", path, "-d", "l4", "-c", "16", "--json")
    assert ended.json["format"] == "bf16"
    assert f"is quantised ({words}) by its config, and counted here as bf16; give" in ended.err
    assert program("floor", path, "-d", "l4", "-c", "16", "-f", "int4-g128").err == ""
    plain = write_config(tmp_path / "plain", tiny(quantization_config=None))
    assert program("floor", plain, "-d", "l4", "-c", "16").err == ""


def test_a_narrower_format_has_a_lower_floor(program):
    bf16, int4 = (
        program("floor", "qwen2.5-7b", "-d", "l4", "-f", fmt, "--json").json["floor_s"]["exact"]
        for fmt in ("bf16", "int4-g128")
    )
    assert int4 < bf16 / 2


def test_version(program):
    assert program("--version").out.strip() == __version__


def test_help_names_every_verb():
    ended = run_program("--help")
    assert ended.code == 0
    for verb in ("floor", "measure", "report", "doctor"):
        assert verb in ended.out


# Refusals of floor, one line each

BAD_FLOORS = {
    "unknown model": (["qwen2.5-7"], ["'qwen2.5-7'", "did you mean", "qwen2.5-7b"]),
    "no such path": (["./no-such-folder"], ["./no-such-folder", "config.json"]),
    "id without a network": (["someone/some-model"], ["someone/some-model", "--weights synthetic"]),
    "unknown device": (["smollm2-135m", "-d", "h10"], ["'h10'", "did you mean", "h100"]),
    "unknown format": (["smollm2-135m", "-f", "int4"], ["'int4'", "did you mean", "int4-g128"]),
    "context 0": (["smollm2-135m", "-c", "0"], ["at least 1 token"]),
    "negative context": (["smollm2-135m", "-c", "-5"], ["at least 1 token", "-5"]),
    "context past the maximum": (["smollm2-135m", "-c", "8192"], ["at most 8191"]),
    "context in words": (["smollm2-135m", "-c", "many"], ["--context", "integer"]),
    "no model": ([], ["argument", "model"]),
    "unknown option": (["smollm2-135m", "--devices", "l4"], ["--devices"]),
    "one bad context of two": (["smollm2-135m", "-c", "16", "-c", "0"], ["at least 1 token"]),
}


@pytest.mark.parametrize("arguments, words", BAD_FLOORS.values(), ids=BAD_FLOORS)
def test_floor_refuses(program, arguments, words):
    assert_refused(program("floor", *arguments), *words)


def test_an_unknown_verb(program):
    assert_refused(program("flor", "smollm2-135m"), "flor")


BAD_CONFIGS = {
    "unknown architecture": (tiny(model_type="lama"), ["lama", "did you mean llama"]),
    "missing field": (tiny(vocab_size=None), ["vocab_size"]),
    "heads not divisible": (tiny(num_attention_heads=6), ["not divisible by 6"]),
    "negative size": (tiny(hidden_size=-1), ["hidden_size", "-1"]),
    "absurd size": (tiny(intermediate_size=10**15), ["intermediate_size", "outside"]),
    "flag for a size": (tiny(num_hidden_layers=True), ["num_hidden_layers", "True"]),
    "text for a size": (tiny(vocab_size="101"), ["vocab_size", "'101'"]),
    "text for a window's layers": (
        tiny(model_type="qwen2", use_sliding_window=True, sliding_window=8, max_window_layers="x"),
        ["max_window_layers"],
    ),
}


@pytest.mark.parametrize("verb", ["floor", "measure"])
@pytest.mark.parametrize("config, words", BAD_CONFIGS.values(), ids=BAD_CONFIGS)
def test_a_bad_config_is_refused_by_both_verbs(program, tmp_path, verb, config, words):
    path = write_config(tmp_path / "mine", config)
    options = ["--out", tmp_path / "out"] if verb == "measure" else []
    assert_refused(program(verb, path, "-c", "16", *options), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["", "{", "not json", "[]"])
def test_a_config_that_is_not_json(program, tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert_refused(program("floor", path), "config.json")


def test_a_refusal_in_a_process_of_its_own():
    assert_refused(run_program("floor", "qwen2.5-7"), "did you mean")


def test_a_closed_pipe_is_no_traceback():
    """`decodegap floor … | head -1`."""
    import subprocess
    import sys

    ended = subprocess.run(
        f"{sys.executable} -m decodegap floor qwen2.5-7b --flows --json | head -c 10",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr


# Refusals of measure: before anything runs, and nothing in the folder


@pytest.fixture
def no_workers(monkeypatch):
    """A refusal that comes too late would start a process."""

    def refuse(*arguments):
        raise AssertionError("a worker was started")

    monkeypatch.setattr(parent, "run_worker", refuse)
    monkeypatch.setattr("decodegap.measure.bandwidth.run_worker", refuse)
    monkeypatch.setattr(session, "run_process", refuse)


BAD_MEASURES = {
    "unknown model": (["smollm2-135"], ["did you mean", "smollm2-135m"]),
    "id without a network": (["someone/some-model"], ["--weights synthetic"]),
    "catalogue id without a network": (
        ["HuggingFaceTB/SmolLM2-135M"],
        ["cannot fetch", "folder", "--weights synthetic"],
    ),
    "unknown runtime": (["CONFIG", "-r", "hf-eagr"], ["'hf-eagr'", "did you mean hf-eager"]),
    "unknown format": (["CONFIG", "-f", "bf61"], ["'bf61'", "bf16"]),
    "a format no runtime here takes": (["CONFIG", "-f", "nf4"], ["nf4"]),
    "unknown device": (["CONFIG", "-d", "tpu"], ["'tpu'", "cpu, cuda"]),
    "a GPU that is not here": (["CONFIG", "-d", "cuda:7"], ["cuda:7", "decodegap doctor"]),
    "context 0": (["CONFIG", "-c", "0"], ["at least 1 token"]),
    "negative context": (["CONFIG", "-c", "-16"], ["at least 1 token"]),
    "context past the maximum": (["CONFIG", "-c", "256"], ["at most 255"]),
    "steps past the maximum": (
        ["CONFIG", "-c", "200", "--steps", "100"],
        ["at most 135", "--steps"],
    ),
    "more steps than positions": (
        ["CONFIG", "-c", "16", "--steps", "1000"],
        ["--steps"],
    ),
    "steps after the timed ones past the maximum": (
        ["CONFIG", "-c", "221", "-r", "engine"],
        ["221, 35 steps and 16 for what follows them", "256 positions", "at most 205"],
    ),
    "a runtime twice": (
        ["CONFIG", "-r", "hf-eager", "-r", "hf-eager?sdpa=auto", "--process", "round"],
        ["'hf-eager' is given twice, once as 'hf-eager?sdpa=auto'", "leave one out"],
    ),
    "no trials": (["CONFIG", "--trials", "0"], ["--trials", "equal to 1"]),
    "no steps": (["CONFIG", "--steps", "0"], ["--steps", "equal to 1"]),
    "negative warm-up": (["CONFIG", "--warmup", "-1"], ["--warmup"]),
    "no time": (["CONFIG", "--timeout", "0"], ["--timeout"]),
    "a time that is no number": (["CONFIG", "--timeout", "nan"], ["--timeout"]),
    "a seed past all numbers": (["CONFIG", "--seed", str(10**30)], ["--seed"]),
    "unknown weights": (["CONFIG", "--weights", "random"], ["'random'", "synthetic, checkpoint"]),
    "checkpoint of a bare config": (
        ["CONFIG", "--weights", "checkpoint"],
        ["without weights", "--weights synthetic"],
    ),
}


@pytest.mark.parametrize("arguments, words", BAD_MEASURES.values(), ids=BAD_MEASURES)
def test_measure_refuses(program, tmp_path, no_workers, known_bandwidth, arguments, words):
    config = str(write_config(tmp_path / "mine"))
    arguments = [config if word == "CONFIG" else word for word in arguments]
    if "-c" not in arguments and config in arguments:
        arguments += ["-c", "16"]
    if "-d" not in arguments:
        arguments += ["-d", "cpu"]
    assert_refused(program("measure", *arguments, "--out", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


def test_the_largest_context_a_refusal_names_is_taken(program, tmp_path, no_workers):
    """The remedy works: 135 with 5 + 100 steps gets past every check, to the first worker."""
    config = write_config(tmp_path / "mine")
    with pytest.raises(AssertionError, match="a worker was started"):
        program(
            *("measure", config, "-c", "135", "--steps", "100", "-d", "cpu"),
            *("--out", tmp_path / "out"),
        )


def test_a_model_that_does_not_fit(program, tmp_path, no_workers, monkeypatch):
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 2_000_000_000)
    out = tmp_path / "out"
    # 7 615 616 512 parameters, 28 layers of 2 × 512 at 2048 positions, 2 bytes each, 1 GiB to work.
    needed = 2 * (7_615_616_512 + 28 * 1024 * 2048) + (1 << 30)
    assert_refused(
        program("measure", "qwen2.5-7b", "-d", "cpu", "--out", out),
        f"needs {needed / 1e9:.2f} GB",
        "2.00 GB free",
        "smaller model or context",
    )
    assert not out.exists()


def test_no_catalogue_model_fits(program, tmp_path, no_workers, monkeypatch):
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 1000)
    ended = program("measure", "-d", "cpu", "--out", tmp_path / "out")
    assert_refused(ended, "no catalogue model fits cpu", "give a MODEL")


def checkpoint(folder, **changes):
    """A checkpoint folder of the tiny model, with some tensors changed or (None) left out."""
    write_config(folder)
    weights = {t.name: np.zeros(t.shape, np.float32) for t in parameter_tensors(shape_of(tiny()))}
    weights |= changes
    save_file({k: v for k, v in weights.items() if v is not None}, folder / "model.safetensors")
    return folder


def test_damaged_checkpoints(program, tmp_path, no_workers):
    norm = "model.norm.weight"
    folders = {
        "no config.json": checkpoint(tmp_path / "a"),
        "holds no *.safetensors": checkpoint(tmp_path / "b"),
        "damaged or cut short": checkpoint(tmp_path / "c"),
        norm: checkpoint(tmp_path / "d", **{norm: None}),
        "[65]": checkpoint(tmp_path / "e", **{norm: np.zeros(65, np.float32)}),
    }
    (tmp_path / "a" / "config.json").unlink()
    (tmp_path / "b" / "model.safetensors").unlink()
    whole = (tmp_path / "c" / "model.safetensors").read_bytes()
    (tmp_path / "c" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    for words, folder in folders.items():
        out = tmp_path / "out"
        assert_refused(program("measure", folder, "-c", "16", "-d", "cpu", "--out", out), words)
        assert not out.exists()


@pytest.mark.parametrize("out", ["FILE/below", "FILE", "/proc/decodegap"])
def test_an_unwritable_folder(program, tmp_path, no_workers, known_bandwidth, out):
    (tmp_path / "file").write_text("")
    out = out.replace("FILE", str(tmp_path / "file"))
    config = write_config(tmp_path / "mine")
    ended = program("measure", config, "-c", "16", "-d", "cpu", "--out", out)
    assert_refused(ended, f"cannot write to {out}", "--out")


# measure, with the worker replaced


@pytest.fixture
def instant_trials(monkeypatch, known_bandwidth):
    """Every trial takes no time and measures 2 ms."""

    def run(asked):
        return make_record([0.002, 0.002, 0.003], trial=asked)

    monkeypatch.setattr(session, "run_process", one_by_one(run))


def test_measure_shows_plan_steps_account_and_folder_in_order(program, tmp_path, instant_trials):
    config = write_config(tmp_path / "mine")
    out = tmp_path / "out"
    ended = program("measure", config, "-c", "16", "-d", "cpu", "-r", "hf-eager", "--out", out)
    assert ended.code == 0
    order = [
        ended.out.index(words)
        for words in (
            "synthetic weights (seeded)",
            "50.00 GB/s",
            "context 16: ",
            "R_reachable",
            "where the step of hf-eager goes",
            f"records: {out}",
        )
    ]
    assert order == sorted(order)
    assert "2.00 ms" in ended.out
    assert len(list(out.glob("*.json"))) == 3


def test_measure_as_json_is_one_document(program, tmp_path, instant_trials):
    config = write_config(tmp_path / "mine")
    arguments = ("-c", "16", "-c", "32", "-d", "cpu", "-r", "hf-eager", "-r", "hf-static")
    ended = program("measure", config, *arguments, "--out", tmp_path / "out", "--json")
    cells = ended.json["cells"]
    assert ended.code == 0
    assert [(cell["context"], cell["runtime"]) for cell in cells] == [
        *((16, "hf-eager"), (16, "hf-static"), (32, "hf-eager"), (32, "hf-static")),
    ]
    for cell in cells:
        assert cell["step_s"] == 0.002
        assert cell["trial_medians_s"] == [0.002, 0.002, 0.002]
        assert cell["between_trial_cv"] == 0
        assert cell["num_samples"] == 9
        assert cell["achieved_bytes_per_second"] == cell["bytes"]["exact"] / 0.002
        assert cell["floor_s"]["reachable"] == cell["bytes"]["exact"] / 50e9
        assert cell["r_floor"]["reachable"] == cell["floor_s"]["reachable"] / 0.002
        assert cell["weights"] == "synthetic"
    assert ended.json["records"] == str(tmp_path / "out")


def test_a_runtime_that_cannot_run_here_is_said_and_recorded(program, tmp_path, instant_trials):
    config = write_config(tmp_path / "mine")
    out = tmp_path / "out"
    ended = program("measure", config, "-c", "16", "-d", "cpu", "--trials", "1", "--out", out)
    assert ended.code == 0
    assert "hf-graph, context 16: unavailable: needs a CUDA GPU" in ended.out
    outcomes = {record.trial.runtime: record.outcome for record in read_folder(out)[0]}
    assert outcomes["hf-graph"] == "unavailable"
    assert outcomes["hf-eager"] == outcomes["hf-static"] == "ok"


def test_no_time_at_all_is_exit_code_one(program, tmp_path, instant_trials):
    config = write_config(tmp_path / "mine")
    options = ("-c", "16", "-d", "cpu", "-r", "hf-graph", "--trials", "1")
    ended = program("measure", config, *options, "--out", tmp_path / "out")
    assert ended.code == 1
    assert "unavailable" in ended.out


def test_a_disk_that_fills_between_trials_keeps_the_first_records(
    program, tmp_path, instant_trials, monkeypatch
):
    out, left = tmp_path / "out", [2]
    real = os.fsync

    def fill_up(descriptor):
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fill_up)
    config = write_config(tmp_path / "mine")
    ended = program(
        *("measure", config, "-c", "16", "-d", "cpu", "-r", "hf-eager", "--json", "--out", out)
    )
    last = ended.err.splitlines()[-1]
    assert ended.code == 2
    assert last.startswith("decodegap: cannot write")
    assert "No space left on device" in last
    assert ended.out == ""
    assert len(read_folder(out)[0]) == 2
    assert len(list(out.iterdir())) == 2


@pytest.mark.slow
def test_a_whole_measurement_as_one_json_document(tmp_path, known_bandwidth):
    """Nothing replaced: a process for the command, one for its trial."""
    config, out = write_config(tmp_path / "mine"), tmp_path / "out"
    ended = run_program(
        *("measure", config, "-c", "16", "-d", "cpu", "-r", "hf-eager"),
        *("--trials", "1", "--steps", "3", "--out", out, "--json"),
    )
    assert ended.code == 0, ended.err
    (cell,) = ended.json["cells"]
    assert (cell["runtime"], cell["context"], cell["num_samples"]) == ("hf-eager", 16, 3)
    assert cell["step_s"] > cell["floor_s"]["reachable"] > 0
    account = cell["account"]
    parts = sum(part["seconds"] for part in account["parts"])
    assert parts + account["residual"] == pytest.approx(cell["step_s"])
    (record,) = read_folder(out)[0]
    assert record.outcome == "ok"
    assert "Traceback" not in ended.err


@pytest.mark.slow
def test_a_worker_that_takes_too_long(tmp_path, known_bandwidth):
    """Loading torch alone takes a worker more than a second."""
    config, out = write_config(tmp_path / "mine"), tmp_path / "out"
    ended = run_program(
        *("measure", config, "-c", "16", "-d", "cpu", "-r", "hf-eager"),
        *("--trials", "1", "--timeout", "1", "--out", out),
    )
    assert ended.code == 1
    assert "hf-eager, context 16: timeout: no result within 1 s; raise --timeout" in ended.out
    assert [record.outcome for record in read_folder(out)[0]] == ["timeout"]


def test_a_worker_that_is_killed_is_said_and_the_others_go_on(
    program, tmp_path, known_bandwidth, monkeypatch
):
    def run(asked):
        if asked.runtime == "hf-static":
            return make_record([0.002], trial=asked)
        failed = failed_record("crash", "worker ended with SIGKILL")
        return msgspec.structs.replace(failed, trial=asked)

    monkeypatch.setattr(session, "run_process", one_by_one(run))
    arguments = ("-c", "16", "-d", "cpu", "-r", "hf-eager", "-r", "hf-static")
    ended = program(
        "measure", write_config(tmp_path / "mine"), *arguments, "--out", tmp_path / "out"
    )
    assert ended.code == 0
    assert ended.out.count("hf-eager, context 16: crash: worker ended with SIGKILL") == 1
    assert "2.00 ms" in ended.out
    assert len(read_folder(tmp_path / "out")[0]) == 6


def test_a_bandwidth_that_cannot_be_makes_no_figure(program, tmp_path, monkeypatch):
    """A probe that read far too little: steps that beat its floor are not believed."""
    from decodegap.measure import worker

    def run_here(asked):
        report = worker.report_on(asked, worker.LoadedModel())
        return msgspec.structs.replace(
            make_record(trial=asked), outcome=report.outcome, reason=report.reason
        )

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_known_bandwidth(1000.0)
    monkeypatch.setattr(session, "run_process", one_by_one(run_here))
    options = ("-c", "16", "-d", "cpu", "-r", "hf-eager", "--trials", "1", "--no-probes")
    ended = program("measure", write_config(tmp_path / "mine"), *options, "--out", tmp_path / "out")
    assert ended.code == 1
    assert "impossible" in ended.out
    assert "--probe-again" in ended.out


@pytest.mark.parametrize("name", ["[red] results", "a [/b] c"])
def test_a_folder_s_name_is_shown_as_it_is(program, tmp_path, instant_trials, name):
    options = ("-c", "16", "-d", "cpu", "-r", "hf-eager", "--trials", "1")
    config = write_config(tmp_path / "mine")
    ended = program("measure", config, *options, "--out", tmp_path / name)
    assert ended.code == 0
    assert f"records: {tmp_path / name}" in ended.out


def test_the_default_model_on_a_cpu(program, tmp_path, instant_trials):
    ended = program("measure", "-d", "cpu", "-r", "hf-eager", "--trials", "1", "--out", tmp_path)
    assert ended.code == 0
    assert "smollm2-135m" in ended.out


# report


def test_report_shows_what_was_measured(program, tmp_path):
    write_record(make_gpu_record([0.010, 0.011, 0.012], runtime="hf-static"), tmp_path)
    write_record(failed_record("oom", "no room", runtime="hf-eager"), tmp_path)
    ended = program("report", tmp_path)
    assert ended.code == 0
    assert "NVIDIA H200" in ended.out
    assert "11.0 ms" in ended.out
    assert "hf-eager, context 16: oom: no room" in ended.out


def test_report_as_json_is_a_document_per_run(program, tmp_path):
    for run, minute in (("a", 0), ("b", 1), ("a", 2)):
        write_record(make_record(run=run, minute=minute), tmp_path)
    documents = program("report", tmp_path, "--json").json
    assert [len(document["cells"][0]["trial_medians_s"]) for document in documents] == [2, 1]


BAD_FILES = {
    "truncated": ("{", ["truncated or not JSON", "measure again"]),
    "foreign": ('{"name": "package"}', ["not a decodegap record", "remove it"]),
    "newer": ('{"schema_version": 999}', ["schema 999", "upgrade decodegap"]),
}


@pytest.mark.parametrize("text, words", BAD_FILES.values(), ids=BAD_FILES)
def test_report_of_a_bad_file(program, tmp_path, text, words):
    (tmp_path / "bad.json").write_text(text)
    assert_refused(program("report", tmp_path), "bad.json", *words)


def test_report_of_good_and_bad_files_shows_the_good_and_names_the_bad(program, tmp_path):
    write_record(make_record(), tmp_path)
    for name, (text, _) in BAD_FILES.items():
        (tmp_path / f"{name}.json").write_text(text)
    ended = program("report", tmp_path)
    assert ended.code == 2
    assert "11.0 ms" in ended.out
    assert len(ended.err.splitlines()) == 3
    assert all(line.startswith("decodegap: ") for line in ended.err.splitlines())


def test_report_of_nothing(program, tmp_path):
    assert_refused(program("report", tmp_path), "no records", "decodegap measure")
    assert_refused(program("report", tmp_path / "none"), "no folder", "decodegap measure")


def test_report_of_unlike_records(program, tmp_path):
    """One run's trials under two versions of torch are not pooled."""
    from builders import make_environment

    for torch in ("2.12.0", "2.13.0"):
        environment = make_environment(packages={"torch": torch})
        write_record(make_record(environment=environment), tmp_path)
    assert_refused(program("report", tmp_path), "torch version", "2.12.0", "2.13.0")


def test_report_of_the_records_that_ship(program):
    from pathlib import Path

    ended = program("report", Path(__file__).parent.parent / "results" / "h200", "--json")
    assert ended.code == 0
    cells = [cell for document in json.loads(ended.out) for cell in document.get("cells", [])]
    assert {cell["device"] for cell in cells} == {"h200"}
