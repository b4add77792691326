"""Studies: what a file may say, which trials it means, and that none is lost or run twice."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from builders import (
    assert_refused,
    failed_record,
    make_environment,
    make_record,
    one_by_one,
    tiny,
    write_config,
)
from decodegap.measure.memory import needed_bytes
from decodegap.measure.runtimes.registry import get_runtime
from decodegap.predict.catalogue import catalogue_shape
from decodegap.predict.formats import get_format
from decodegap.record import new_id
from decodegap.record_files import read_folder, record_paths
from decodegap.study import matrix
from decodegap.study.file import BadStudy, parse_study, study_text
from decodegap.study.folder import StudyFolder, claim, held, read_stored
from decodegap.study.matrix import plan_study
from decodegap.study.run import settled, work_left
from decodegap.study.words import duration, estimate_seconds, plan_words, progress

STUDIES = Path(__file__).parent.parent / "studies"

SMALL = ("smollm2-135m", "qwen2.5-0.5b")
BASE = """
name = "small"
models = ["smollm2-135m", "qwen2.5-0.5b"]
devices = ["cpu"]
runtimes = ["hf-eager", "hf-static"]
formats = ["fp32"]
contexts = [16, 32]
[protocol]
num_trials = 3
num_warmup = 1
num_steps = 2
weights = "synthetic"
probes = false
"""

AB = """
[[compare]]
name = "cache"
a = "hf-eager"
b = "hf-static"
num_pairs = 2
models = ["smollm2-135m"]
contexts = [16]
margin = "2%"
predict = "ratio>1.20"
"""


def read_study(path):
    return parse_study(study_text(path), str(path))


def plan_of(text, device="cpu"):
    return plan_study(parse_study(text, "here.toml"), device)


# What a file means


def test_the_matrix_is_every_combination_each_cell_as_often_as_asked():
    plan = plan_of(BASE)
    trials = [planned.trial for planned in plan.trials]
    cells = {(t.shape.name, t.runtime, t.context) for t in trials}
    assert len(cells) == plan.num_cells == 8
    assert len(trials) == 24
    assert {(t.num_warmup, t.num_steps, t.weights, t.probes) for t in trials} == {
        (1, 2, "synthetic", False)
    }


def test_cells_of_one_model_take_turns_forth_and_back():
    trials = [p.trial for p in plan_of(BASE).trials if p.trial.shape.name == "smollm2-135m"]
    turns = [(trial.context, trial.runtime) for trial in trials]
    assert turns[:4] == turns[7:3:-1] == turns[8:]
    assert len(set(turns[:4])) == 4


def test_with_a_process_a_round_cells_share_and_comparisons_do_not():
    text = BASE.replace("[16, 32]", "[16, 128]").replace("probes = false", 'process = "round"')
    plan = plan_of(text + AB)
    matrix = [planned.trial for planned in plan.trials if planned.trial.arm is None]
    processes = Counter((trial.shape.name, trial.process) for trial in matrix)
    rounds = ("round 0", "round 1", "round 2", "profile")
    assert processes == {(model, name): 4 for model in SMALL for name in rounds}
    timed = [trial for trial in matrix if trial.num_steps]
    assert len(timed) == 8 * 3
    assert {trial.process for trial in timed if trial.probes} == {"round 0"}
    assert not any(trial.profile for trial in timed)
    arms = [planned.trial for planned in plan.trials if planned.trial.arm is not None]
    assert {(trial.process, trial.profile) for trial in arms} == {(None, True)}


def test_contexts_too_close_for_one_process_are_an_error():
    with pytest.raises(BadStudy, match="closer than"):
        plan_of(BASE + 'process = "round"')


def test_every_trial_has_an_identity_of_its_own_that_a_new_plan_finds_again():
    first, again = plan_of(BASE + AB), plan_of(BASE + AB)
    identities = [planned.trial.identity for planned in first.trials]
    assert len(set(identities)) == len(identities) == 28
    assert identities == [planned.trial.identity for planned in again.trials]


@pytest.mark.parametrize(
    "old, new",
    [
        ("num_steps = 2", "num_steps = 3"),
        ("num_warmup = 1", "num_warmup = 2"),
        ("[16, 32]", "[17, 32]"),
        ('formats = ["fp32"]', 'formats = ["bf16"]'),
    ],
)
def test_what_measures_otherwise_has_another_identity(old, new):
    before = {planned.trial.identity for planned in plan_of(BASE).trials}
    after = {planned.trial.identity for planned in plan_of(BASE.replace(old, new)).trials}
    assert old in BASE
    assert before != after


def test_comments_and_spacing_do_not_make_another_study_but_a_prediction_does():
    study = parse_study(BASE + AB, "")
    assert parse_study("# why\n" + (BASE + AB).replace(" = ", "="), "").sha256 == study.sha256
    assert parse_study((BASE + AB).replace("1.20", "1.3"), "").sha256 != study.sha256


def test_a_comparison_is_pairs_in_a_run_of_its_own_with_its_prediction():
    plan = plan_of(BASE + AB)
    arms = [planned.trial for planned in plan.trials if planned.trial.arm is not None]
    assert plan.num_comparisons == 1
    assert [(t.arm.name, t.arm.pair, t.runtime) for t in arms] == [
        ("A", 0, "hf-eager"),
        ("B", 0, "hf-static"),
        ("B", 1, "hf-static"),
        ("A", 1, "hf-eager"),
    ]
    assert {(t.arm.margin, t.arm.prediction, t.context) for t in arms} == {
        (0.02, "ratio > 1.2", 16)
    }
    assert len({t.arm.prediction_sha256 for t in arms}) == 1
    matrix = {planned.trial.run for planned in plan.trials if planned.trial.arm is None}
    assert {t.run for t in arms}.isdisjoint(matrix)


def test_a_comparison_without_axes_is_made_in_every_cell_of_the_study():
    everywhere = AB.replace('models = ["smollm2-135m"]\ncontexts = [16]\n', "")
    assert plan_of(BASE + everywhere).num_comparisons == 4


def test_an_exclusion_takes_one_value_or_a_list_and_needs_all_its_axes_to_match():
    excluded = """
[[exclude]]
model = "qwen2.5-0.5b"
context = [16, 32]
runtime = "hf-static"
reason = "too slow"
"""
    plan = plan_of(BASE + excluded)
    left = {(p.trial.shape.name, p.trial.runtime) for p in plan.trials}
    assert (plan.num_excluded, plan.num_cells) == (2, 6)
    assert ("qwen2.5-0.5b", "hf-static") not in left
    assert ("qwen2.5-0.5b", "hf-eager") in left


def test_cells_whose_runtime_does_not_take_the_format_are_left_out_and_told():
    plan = plan_of(BASE.replace('["fp32"]', '["fp32", "nf4"]'))
    assert len(plan.not_taken) == 8
    assert {planned.trial.format for planned in plan.trials} == {"fp32"}


def test_without_devices_the_one_here_is_measured():
    plan = plan_of(BASE.replace('devices = ["cpu"]\n', ""), "cpu")
    assert {planned.device for planned in plan.trials} == {"cpu"}


# What a file may not say

REFUSED = {
    "unknown key": (BASE.replace("models", "modles"), ["modles", "did you mean models"]),
    "unknown protocol key": (BASE.replace("num_steps", "steps"), ["steps", "num_steps"]),
    "unknown compare key": (BASE + AB.replace("margin", "margins"), ["margins", "margin"]),
    "a value of the wrong type": (BASE.replace("[16, 32]", '["16"]'), ["contexts", "int"]),
    "not TOML": (BASE + "[[", ["not TOML"]),
    "a missing name": (BASE.replace('name = "small"', ""), ["name"]),
    "a value twice": (BASE.replace("[16, 32]", "[16, 16]"), ["contexts has 16 twice"]),
    "a comparison twice": (BASE + AB + AB, ["'cache' twice"]),
    "a format twice": (BASE.replace('["fp32"]', '["fp32", "fp32"]'), ["formats has 'fp32' twice"]),
    "a runtime twice": (BASE.replace('"hf-static"', '"hf-eager"'), ["has 'hf-eager' twice; leave"]),
    "a runtime twice, once with its default": (
        BASE.replace('"hf-static"', '"hf-eager?sdpa=auto"'),
        ["runtimes has 'hf-eager' twice, once as 'hf-eager?sdpa=auto'; leave one out"],
    ),
    "a device twice, once by another name": (
        BASE.replace('["cpu"]', '["H200", "cpu", "NVIDIA H200"]'),
        ["devices has 'H200' twice, once as 'NVIDIA H200'; leave one out"],
    ),
    "a model twice, once by its Hugging Face id": (
        BASE.replace('"qwen2.5-0.5b"', '"HuggingFaceTB/SmolLM2-135M"'),
        ["models has 'smollm2-135m' twice, once as 'HuggingFaceTB/SmolLM2-135M'"],
    ),
    "a context of a comparison twice": (
        BASE + AB.replace("[16]", "[16, 16]"),
        ["compare 'cache': contexts has 16 twice"],
    ),
    "a device of a comparison twice": (
        BASE + AB + 'devices = ["h200", "NVIDIA H200"]',
        ["compare 'cache': devices has 'h200' twice, once as 'NVIDIA H200'"],
    ),
    "a model of a comparison twice": (
        BASE + AB.replace('["smollm2-135m"]', '["smollm2-135m", "SmolLM2-135M"]'),
        ["compare 'cache': models has 'smollm2-135m' twice, once as 'SmolLM2-135M'"],
    ),
    "no trials": (BASE.replace("num_trials = 3", "num_trials = 0"), ["at least 1"]),
    "no end of trials": (BASE.replace("num_trials = 3", "num_trials = 10001"), ["at most 10000"]),
    "no end of time": (BASE + "timeout_seconds = inf\n", ["timeout_seconds inf", "at most 604800"]),
    "no number of time": (BASE + "timeout_seconds = nan\n", ["timeout_seconds nan"]),
    "a seed below zero": (BASE + "seed = -1\n", ["seed -1", "at least 0"]),
    "a seed no generator takes": (BASE + f"seed = {2**63}\n", [str(2**63)]),
    "a name that leads elsewhere": (
        BASE.replace('"small"', '"../small"'),
        ["'../small'", "letters"],
    ),
    "a name that is none": (BASE.replace('"small"', '""'), ["names the folder"]),
    "no pairs": (BASE + AB.replace("num_pairs = 2", "num_pairs = 0"), ["at least 1"]),
    "an unknown model": (BASE.replace("qwen2.5-0.5b", "qwen2.5-0.6b"), ["'qwen2.5-0.6b'"]),
    "an unknown device": (BASE.replace('["cpu"]', '["h300"]'), ["'h300'", "h100"]),
    "an unknown runtime": (BASE.replace("hf-static", "hf-statik"), ["did you mean hf-static"]),
    "an unknown option": (BASE.replace("hf-static", "hf-static?sdpa=no"), ["none of auto"]),
    "an unknown format": (BASE.replace("fp32", "fp31"), ["'fp31'"]),
    "an unknown arm": (BASE + AB.replace('"hf-eager"', '"hf-eagr"'), ["did you mean hf-eager"]),
    "a context too long": (BASE.replace("[16, 32]", "[99999]"), ["99999"]),
    "a prediction that does not parse": (BASE + AB.replace("ratio>1.20", "faster"), ["'faster'"]),
    "a margin that is none": (BASE + AB.replace("2%", "2"), ["'2'"]),
    "no runtime": (BASE.replace('["hf-eager", "hf-static"]', "[]"), ["measures nothing"]),
    "no model": (BASE.replace('["smollm2-135m", "qwen2.5-0.5b"]', "[]"), ["measures nothing"]),
    "everything excluded": (
        BASE + '[[exclude]]\ndevice = "cpu"\nreason = "no"\n',
        ["measures nothing"],
    ),
    "an exclusion of everything by leaving out what": (
        BASE + '[[exclude]]\nreason = "no"\n',
        ["exclude 1 (no) names no axis"],
    ),
    "an exclusion without a reason": (BASE + "[[exclude]]\ncontext = 16\n", ["reason"]),
    "an exclusion of nothing": (
        BASE + '[[exclude]]\ncontext = 64\nreason = "no"\n',
        ["excludes nothing: no cell is like that"],
    ),
    "an exclusion of what is excluded": (
        BASE + 2 * '[[exclude]]\ncontext = 16\nreason = "no"\n',
        ["exclude 2 (no) excludes nothing: earlier ones do so already"],
    ),
    "an exclusion of a whole comparison": (
        BASE + AB + '[[exclude]]\ncontext = 16\nreason = "no"\n',
        ["nothing is left of compare 'cache'"],
    ),
}


@pytest.mark.parametrize("text, words", REFUSED.values(), ids=REFUSED)
def test_what_a_file_may_not_say_is_one_clear_error(text, words):
    with pytest.raises(BadStudy) as refused:
        plan_of(text)
    message = str(refused.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_an_exclusion_may_be_of_a_comparison_alone():
    """A study without a matrix; of the two contexts of its comparison one is left out."""
    text = BASE.replace('["hf-eager", "hf-static"]', "[]") + AB.replace(
        "contexts = [16]", "contexts = [16, 32]"
    )
    plan = plan_of(text + '[[exclude]]\ncontext = 32\nreason = "no"\n')
    assert {planned.trial.context for planned in plan.trials} == {16}
    with pytest.raises(BadStudy, match="no cell is like that"):
        plan_of(text + '[[exclude]]\ncontext = 64\nreason = "no"\n')


def test_a_mark_in_front_of_a_file_is_no_part_of_it(tmp_path):
    path = tmp_path / "marked.toml"
    path.write_bytes(b"\xef\xbb\xbf" + BASE.encode())
    assert read_study(path).sha256 == parse_study(BASE, "").sha256


def test_a_folder_by_two_paths_is_one_model(tmp_path):
    write_config(tmp_path / "mine")
    paths = f'"{tmp_path}/mine/config.json", "{tmp_path}/mine/../mine/config.json"'
    text = BASE.replace('"smollm2-135m", "qwen2.5-0.5b"', paths)
    with pytest.raises(BadStudy, match=r"models has '.*' twice, once as '.*/mine/\.\./mine"):
        plan_of(text)


def test_a_context_whose_last_steps_find_no_position_is_refused():
    """8192 positions, 3 steps, and what follows them: 16 steps on a CPU, 56 on a GPU."""
    assert plan_of(BASE.replace("[16, 32]", "[8173]"))
    with pytest.raises(BadStudy, match="at most 8173"):
        plan_of(BASE.replace("[16, 32]", "[8174]"))
    with pytest.raises(BadStudy, match="at most 8133"):
        plan_of(BASE.replace("[16, 32]", "[8173]").replace('["cpu"]', '["l4"]'))


def test_a_model_is_looked_up_once_however_many_its_cells_are(monkeypatch):
    asked, proven = [], []
    find, prove = matrix.resolve_model, matrix.choose_weights
    monkeypatch.setattr(matrix, "resolve_model", lambda name: asked.append(name) or find(name))
    monkeypatch.setattr(
        matrix,
        "choose_weights",
        lambda source, wanted: proven.append(source.shape.name) or prove(source, wanted),
    )
    plan = plan_study(read_study(STUDIES / "reference.toml"), "cpu")
    assert len(plan.trials) == 48 * 3 + 20 + 20 + 40
    assert asked == proven == ["qwen2.5-7b", "mistral-7b-v0.3", "llama-3.1-8b"]


# Running: a folder, a lock, a resumption


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text((BASE + AB).replace('"qwen2.5-0.5b"', f'"{other_model(tmp_path)}"'))
    return path


def other_model(tmp_path):
    return write_config(tmp_path / "other", tiny())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def ran(monkeypatch):
    """Trials that run no process; the list of those that did run. `ran.end[identity]` overrides
    how one ends, `ran.stop_after` raises KeyboardInterrupt."""

    class Ran(list):
        stop_after = None

    ran, started = Ran(), count()
    ran.end = {}

    def run_one(trial):
        if ran.stop_after == len(ran):
            raise KeyboardInterrupt
        ran.append(trial)
        if (outcome := ran.end.get(trial.runtime)) is not None:
            failed = failed_record(outcome, "made up")
            return msgspec.structs.replace(failed, trial=trial, id=new_id())
        return make_record([0.01, 0.011], trial=trial, minute=next(started))

    monkeypatch.setattr("decodegap.measure.session.run_process", one_by_one(run_one))
    return ran


@pytest.fixture
def study(program, file, folder, known_bandwidth):
    return lambda *more: program("study", file, "--out", folder, *more)


def identities(folder):
    records, unreadable = read_folder(folder)
    assert unreadable == []
    return sorted(record.trial.identity for record in records)


def planned_identities(file):
    plan = plan_study(read_study(file), "cpu")
    return sorted(planned.trial.identity for planned in plan.trials)


def test_a_study_runs_every_trial_once_and_shows_cells_and_comparison(study, file, folder, ran):
    ended = study()
    assert ended.code == 0, ended
    assert identities(folder) == planned_identities(file)
    assert len(ran) == 28
    assert "28 trials, each a fresh process; 0 finished" in ended.out
    assert "compare cache: hf-eager against hf-static, 2 pairs in 1 cell" in ended.out
    assert "predicted “ratio > 1.2”" in ended.out
    assert (folder / "study.toml").read_text() == file.read_text()


def test_the_plan_alone_runs_nothing(study, folder, ran):
    ended = study("--dry-run")
    assert (ended.code, len(ran)) == (0, 0)
    assert "to run here: 28 trials, about" in ended.out
    assert not folder.exists()
    ran.stop_after = 5
    study()
    assert "5 finished" in study("--dry-run").out
    assert len(ran) == 5


def test_a_stopped_study_goes_on_where_it_was(study, file, folder, ran):
    ran.stop_after = 5
    assert study().code == 130
    assert len(identities(folder)) == 5
    ran.stop_after = None
    ended = study()
    assert ended.code == 0
    assert "5 finished" in ended.out
    assert len(ran) == 28
    assert identities(folder) == planned_identities(file)
    assert "28 finished" in study().out
    assert len(ran) == 28


def test_a_study_does_not_go_on_with_other_versions(study, folder, ran, monkeypatch):
    cpu = make_environment().host_cpu
    monkeypatch.setattr("decodegap.study.run.describe_host", lambda: SimpleNamespace(cpu=cpu))
    ran.stop_after = 5
    study()
    for more in ((), ("--dry-run",)):
        ended = study(*more)
        assert_refused(ended, "was made with decodegap None, and 0.1.0+src.")
        assert "move the older records out of the folder" in ended.err
    assert len(ran) == 5
    monkeypatch.setattr("decodegap.study.run.package_versions", lambda: make_environment().packages)
    ran.stop_after = None
    assert study().code == 0
    assert len(ran) == 28


KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
from builders import make_record, one_by_one
from decodegap import cli
from decodegap.study import run

def slow(trial):
    time.sleep(0.05)
    return make_record([0.01], trial=trial)

run.run_together = one_by_one(slow)
sys.argv = ["decodegap", "study", {file!r}, "--out", {folder!r}]
cli.main()
"""


@pytest.mark.parametrize("after", [1, 7])
def test_a_killed_study_loses_and_repeats_nothing(study, file, folder, ran, after):
    code = KILLED.format(tests=str(Path(__file__).parent), file=str(file), folder=str(folder))
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not folder.exists() or len(record_paths(folder)) < after:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = identities(folder)
    assert after <= len(kept) < 28
    assert study().code == 0
    assert len(ran) == 28 - len(kept)
    assert identities(folder) == planned_identities(file)


def test_a_kill_between_a_record_and_its_line_does_not_repeat_the_trial(study, folder, ran):
    ran.stop_after = 3
    study()
    lines = (folder / "finished.jsonl").read_text().splitlines(keepends=True)
    (folder / "finished.jsonl").write_text("".join(lines[:2]) + lines[2][:20])
    ran.stop_after = None
    assert study().code == 0
    assert len(ran) == 28


def test_a_copied_record_is_refused(study, folder, ran):
    """As another trial it would narrow the spread of its cell."""
    study()
    path = record_paths(folder)[3]
    copy = folder / "copy.json"
    copy.write_bytes(path.read_bytes())
    assert_refused(study(), "is a copy of", "move one out")
    assert len(ran) == 28


def test_a_line_that_was_cut_short_takes_no_other_in(study, folder, ran):
    """The record of the cut line is listed anew, on a line of its own: edited, it is refused."""
    study()
    lines = folder / "finished.jsonl"
    lines.write_bytes(lines.read_bytes()[:-20])
    assert study().code == 0
    assert len(lines.read_text().splitlines()) == 29
    last = max(record_paths(folder), key=lambda path: path.stat().st_mtime_ns)
    listed = lines.read_text().splitlines()[-1]
    (path,) = [path for path in record_paths(folder) if path.name in listed]
    path.write_text(path.read_text().replace("0.011", "0.001"))
    assert_refused(study(), "was changed after it was written")
    assert len(ran) == 28
    assert last


@pytest.mark.parametrize(
    "touch, words",
    [
        (lambda folder: (folder / "finished.jsonl").write_bytes(b"\xff\xfe\n"), ["finished.jsonl"]),
        (lambda folder: (folder / "study.toml").write_bytes(b"\xff\xfe\n"), ["study.toml"]),
        (lambda folder: swap_for_folder(folder / "finished.jsonl"), ["finished.jsonl"]),
        (lambda folder: swap_for_folder(folder / "study.toml"), ["study.toml"]),
        (lambda folder: swap_for_folder(folder / ".lock"), [".lock"]),
        (lambda folder: swap_for_folder(record_paths(folder)[0]), [".json"]),
    ],
    ids=["bytes", "a study of bytes", "a folder", "a study that is one", "a lock", "a record"],
)
def test_a_damaged_folder_is_one_clear_error(study, folder, ran, touch, words):
    study()
    touch(folder)
    assert_refused(study(), "cannot", *words)
    assert len(ran) == 28


def swap_for_folder(path):
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("verb", [(), ("--dry-run",)], ids=["run", "dry run"])
def test_a_dry_run_refuses_what_a_run_would(study, file, folder, ran, verb):
    study()
    path = record_paths(folder)[3]
    kept = path.read_text()
    path.write_text(kept.replace("0.011", "0.001"))
    assert_refused(study(*verb), path.name, "was changed after it was written")
    path.write_text(kept)
    file.write_text(file.read_text().replace("1.20", "1.5"))
    assert_refused(study(*verb), "belongs to study small")
    (folder / "study.toml").unlink()
    assert_refused(study(*verb), "records of no study")


def test_a_dry_run_tells_a_deleted_record_and_leaves_the_folder_as_it_is(study, folder, ran):
    study()
    record_paths(folder)[3].unlink()
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ended = study("--dry-run")
    assert "records deleted since: 1; their trials run again" in ended.out
    document = study("--dry-run", "--json").json
    assert (document["trials"], document["finished"], document["here"]) == (28, 27, 1)
    assert document["records_gone"] == 1
    assert document["about_s"] > 0
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_model_that_changed_under_a_study_is_refused_before_anything_runs(
    program, tmp_path, folder, ran, known_bandwidth
):
    config = write_config(tmp_path / "mine")
    file = tmp_path / "own.toml"
    models = BASE.replace('"smollm2-135m", "qwen2.5-0.5b"', f'"{config}"')
    file.write_text(models)
    assert program("study", file, "--out", folder).code == 0
    num_ran = len(ran)
    write_config(tmp_path / "mine", tiny(num_hidden_layers=3, rms_norm_eps=1e-6))
    for verb in ((), ("--dry-run",)):
        ended = program("study", file, "--out", folder, *verb)
        assert_refused(ended, "has changed (num_hidden_layers, rms_norm_eps) since record")
    assert len(ran) == num_ran
    write_config(tmp_path / "mine")
    assert program("study", file, "--out", folder).code == 0
    assert len(ran) == num_ran


def test_a_study_through_a_pipe_is_read_once(program, file, folder, ran, known_bandwidth):
    reading, writing = os.pipe()
    os.write(writing, file.read_bytes())
    os.close(writing)
    assert program("study", f"/dev/fd/{reading}", "--out", folder).code == 0
    os.close(reading)
    assert (folder / "study.toml").read_text() == file.read_text()


def test_a_deleted_record_is_told_and_measured_again(study, file, folder, ran):
    study()
    record_paths(folder)[3].unlink()
    ended = study()
    assert ended.code == 0
    assert "records deleted since: 1; their trials run again" in ended.out
    assert len(ran) == 29
    assert identities(folder) == planned_identities(file)
    assert "deleted" not in study().out


def test_an_edited_record_is_refused_and_left_alone(study, folder, ran):
    study()
    path = record_paths(folder)[3]
    edited = path.read_text().replace("0.011", "0.001")
    path.write_text(edited)
    assert_refused(study(), path.name, "was changed after it was written", "restore it")
    assert path.read_text() == edited
    assert len(ran) == 28


def test_the_folder_of_another_study_is_refused(study, file, folder, ran):
    study()
    file.write_text(file.read_text().replace("1.20", "1.5"))
    assert_refused(study(), "belongs to study small", "another --out")
    assert len(ran) == 28


def test_a_folder_with_records_of_no_study_is_refused(study, folder, ran):
    from decodegap.files import prepare_folder
    from decodegap.record_files import write_record

    write_record(make_record(), prepare_folder(folder))
    assert_refused(study(), "records of no study", "another --out")
    assert not ran


def test_two_studies_do_not_write_to_one_folder(study, folder, ran):
    with held(folder):
        assert_refused(study(), "being written by another study", f"process {os.getpid()}")
    assert not ran
    assert study().code == 0


def test_a_lock_left_behind_by_a_kill_holds_nobody_up(study, folder, ran):
    folder.mkdir()
    (folder / ".lock").write_text("process 1")
    assert study().code == 0


def test_failures_are_cells_and_settle_after_two_alike(study, folder, ran):
    ran.end = {"hf-static": "oom"}
    ended = study()
    assert ended.code == 0
    assert "hf-static, context 16: oom: made up" in ended.out
    # Two trials of each of its four cells and of its arm, not three.
    assert sum(trial.runtime == "hf-static" for trial in ran) == 2 * 4 + 2
    before = len(ran)
    again = study()
    assert len(ran) == before
    assert "not tried again, their cells failed twice alike: 4 trials" in again.out
    assert "to run here" not in again.out


def test_a_crash_is_not_settled_and_runs_again_when_asked(study, ran):
    ran.end = {"hf-static": "crash"}
    study()
    assert len(ran) == 28
    study()
    assert len(ran) == 28
    ran.end = {}
    study("--retry")
    assert len(ran) == 28 + 14


def test_without_a_single_time_the_exit_code_says_so(study, ran):
    ran.end = {"hf-static": "unavailable", "hf-eager": "unavailable"}
    assert study().code == 1


def test_a_full_disk_stops_the_study_with_the_records_before_it_whole(
    study, folder, ran, monkeypatch
):
    from decodegap import files as files_module

    written = count()
    real = os.fsync

    def fsync(fd):
        if next(written) == 12:
            raise OSError(28, "No space left on device")
        real(fd)

    monkeypatch.setattr(files_module.os, "fsync", fsync)
    ended = study()
    assert ended.code == 2
    assert "No space left on device" in ended.err
    assert "free space" in ended.err
    monkeypatch.setattr(files_module.os, "fsync", real)
    kept = identities(folder)
    assert 0 < len(kept) < 28
    already = len(ran)
    assert study().code == 0
    assert len(identities(folder)) == 28
    assert len(ran) <= already + 28 - len(kept)


def test_a_device_that_is_not_here_is_left_for_another_machine(file, study, ran, folder):
    file.write_text(file.read_text().replace('["cpu"]', '["cpu", "l4"]'))
    ended = study()
    assert "for devices not here (run the same file there, or --ray): l4 28" in ended.out
    assert {trial.device for trial in ran} == {"cpu"}
    assert len(ran) == 28


def test_a_model_that_does_not_fit_is_a_cell_without_a_process(study, ran, folder, monkeypatch):
    monkeypatch.setattr("decodegap.measure.memory.free_memory_bytes", lambda device: 1 << 20)
    assert study().code == 1
    assert not ran
    records, _ = read_folder(folder)
    assert {record.outcome for record in records} == {"oom"}
    assert all(record.reason.startswith("not started: ") for record in records)


def test_a_runtime_that_holds_more_than_fits_is_a_cell_without_a_process(
    study, file, folder, known_bandwidth, monkeypatch
):
    """Room for the larger model, and with the engine, which stacks, for the smaller alone."""
    text = BASE.replace('"hf-static"', '"engine"').replace("[16, 32]", "[16]")
    file.write_text(text)
    sizes = {
        name: [
            needed_bytes(catalogue_shape(name), 16, get_format("fp32"), get_runtime(runtime))
            for runtime in ("hf-eager", "engine")
        ]
        for name in SMALL
    }
    small, large = (sizes[name] for name in SMALL)
    assert small[1] < large[0] < large[1]
    monkeypatch.setattr("decodegap.measure.memory.free_memory_bytes", lambda device: large[1] - 1)
    monkeypatch.setattr(
        "decodegap.measure.session.run_process",
        one_by_one(lambda trial: make_record([0.01], trial=trial)),
    )
    assert study().code == 0
    records, _ = read_folder(folder)
    ended = Counter((r.trial.shape.name, r.trial.runtime, r.outcome) for r in records)
    assert ended == {
        ("smollm2-135m", "hf-eager", "ok"): 3,
        ("smollm2-135m", "engine", "ok"): 3,
        ("qwen2.5-0.5b", "hf-eager", "ok"): 3,
        ("qwen2.5-0.5b", "engine", "oom"): 2,  # and the third is settled
    }
    reasons = {record.reason for record in records if record.outcome == "oom"}
    assert len(reasons) == 1
    assert reasons.pop().startswith("not started: qwen2.5-0.5b at context 16 in engine")


def test_report_reads_what_a_study_wrote(study, folder, ran, program):
    study()
    ended = program("report", folder)
    assert ended.code == 0
    assert "A ÷ B: 1.000" in ended.out
    documents = program("report", folder, "--json").json
    assert sum("verdict" in document for document in documents) == 1


def test_work_left_sorts_trials_by_where_they_can_run():
    plan = plan_of(BASE.replace('["cpu"]', '["cpu", "L4"]'))
    work = work_left(plan, [], {"cpu": "cpu"})
    assert (len(work.here), len(work.elsewhere), work.num_finished) == (24, 24, 0)
    assert {planned.device for planned in work.elsewhere} == {"l4"}


def test_a_cell_is_settled_only_by_its_own_failures():
    plan = plan_of(BASE)
    trial = plan.trials[0].trial
    failed = [msgspec.structs.replace(failed_record("oom", ""), trial=trial)] * 2
    assert settled(trial, failed)
    assert not settled(trial, failed[:1])
    assert not settled(plan.trials[1].trial, failed)
    assert not settled(trial, [*failed, make_record(trial=trial)])


def test_progress_counts_no_trial_of_a_settled_cell():
    """Three trials of a cell, of which two failed: the third is neither next nor to come."""
    plan = plan_of(BASE)
    work = work_left(plan, [], {"cpu": "cpu"}).here
    name, total = progress(work, [], [])
    assert name == "smollm2-135m, hf-eager, context 16"
    assert total == len(work) == 24
    first = work[0].trial
    alike = [one.trial for one in work if one.trial.run == first.run and one.trial.arm is None]
    cell = [trial for trial in alike if trial.runtime == first.runtime and trial.context == 16]
    assert len(cell) == 3
    failed = [msgspec.structs.replace(failed_record("oom", ""), trial=trial) for trial in cell[:2]]
    _, total = progress(work, [], failed)
    assert total == 23
    assert progress(work, failed[:1], failed[1:])[1] == 22
    others = [make_record(trial=one.trial) for one in work if one.trial not in cell]
    assert progress(work, [], [*failed, *others]) == ("done", 23)


def test_an_estimate_is_by_what_was_seen_before_by_bytes():
    planned = plan_of(BASE).trials[0]
    seen = msgspec.structs.replace(make_record(trial=planned.trial), seconds=123.0)
    assert estimate_seconds(planned, [seen]) == 123.0
    larger = next(p for p in plan_of(BASE).trials if p.trial.shape.name == "qwen2.5-0.5b")
    assert estimate_seconds(larger, [seen]) > estimate_seconds(planned, [])


def test_an_estimate_knows_that_a_shared_process_loads_once():
    planned = plan_of(BASE).trials[0]
    records = [
        msgspec.structs.replace(
            make_record(trial=planned.trial), seconds=seconds, place_in_process=place
        )
        for place, seconds in enumerate((100.0, 7.0, 9.0))
    ]
    assert estimate_seconds(planned, records) == 100.0
    assert [estimate_seconds(planned, records, place) for place in (1, 5)] == [8.0, 8.0]
    assert estimate_seconds(planned, records[:1], 1) < estimate_seconds(planned, [], 0) < 100.0


@pytest.mark.parametrize(
    "seconds, words", [(0.2, "1 s"), (89, "89 s"), (91, "2 min"), (5460, "1 h 31 min")]
)
def test_durations_are_said_as_people_do(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_studies_that_ship_can_be_planned(path):
    plan = plan_study(read_study(path), "cpu")
    assert plan.study.name == path.stem
    assert tomllib.loads(path.read_text())


def test_a_claim_is_of_the_meaning_of_a_file(tmp_path):
    study = parse_study(BASE, "")
    with held(tmp_path):
        claim(tmp_path, study, BASE)
        claim(tmp_path, study, "# another comment\n" + BASE)
        assert read_stored(tmp_path).records == ()
        with pytest.raises(StudyFolder):
            claim(tmp_path, parse_study(BASE + AB, ""), BASE + AB)
        assert plan_words(plan_of(BASE), work_left(plan_of(BASE), [], {}), read_stored(tmp_path))
