"""The parent against workers that do everything a worker can do wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import monotonic, sleep

import msgspec
import psutil
import pytest

from builders import make_trial, run_trial, tiny, write_config
from decodegap.errors import DecodegapError, DoesNotFit, Unavailable
from decodegap.measure import parent, worker
from decodegap.measure.parent import (
    WorkerExit,
    WorkerReport,
    interpret,
    require_ok,
    run_process,
    run_worker,
)
from decodegap.record_files import read_folder

ANSWER = msgspec.json.encode(WorkerReport(outcome="ok", reason=None))
PLENTY = 30.0


@pytest.fixture(autouse=True)
def _fake_workers_can_be_run(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


def run(name: str, job: bytes = ANSWER, timeout: float = PLENTY) -> WorkerExit:
    return run_worker(f"fake_workers.{name}", job, timeout)


def ended(**changes: object) -> WorkerExit:
    quiet = {"message": b"", "returncode": 0, "timed_out": False, "seconds": 1.0, "tail": ""}
    return WorkerExit(**quiet | changes)


def wait_for(condition: Callable[[], object], seconds: float = 15.0) -> bool:
    """Whether `condition` became true in time."""
    deadline = monotonic() + seconds
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.02)
    return True


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Workers that answer


def test_an_answer_arrives_whole():
    job = os.urandom(25_000).hex().encode()
    end = run("echoes", job)
    assert (end.message, end.returncode, end.timed_out, end.tail) == (job, 0, False, "")
    assert 0 < end.seconds < PLENTY


def test_a_job_and_an_answer_larger_than_a_pipe_holds():
    job = b"x" * 3_000_000
    assert run("echoes", job).message == job


def test_what_a_worker_prints_is_never_its_answer():
    end = run("prints")
    assert end.message == ANSWER
    assert interpret(end, PLENTY) == WorkerReport(outcome="ok", reason=None)


def test_an_answer_counts_though_the_worker_crashes_after_it():
    end = run("answers_then_crashes")
    assert end.returncode == -signal.SIGABRT
    assert interpret(end, PLENTY).outcome == "ok"


def test_an_answer_counts_though_the_worker_does_not_end():
    end = run("answers_then_hangs", timeout=1.0)
    assert end.message == ANSWER
    assert interpret(end, 1.0).outcome == "ok"


def test_a_child_left_behind_does_not_hold_the_answer_up():
    end = run("leaves_a_child", timeout=3.0)
    assert end.message == ANSWER
    assert not end.timed_out


def test_a_worker_numbers_gpus_as_the_driver_does(monkeypatch):
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    assert run("tells_gpu_order").message == b"PCI_BUS_ID"


def test_an_order_that_a_person_has_set_is_left_to_the_worker(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert run("tells_gpu_order").message == b"FASTEST_FIRST"


# Workers that die


@pytest.mark.parametrize(
    "name, job, words",
    [
        ("raises", b"", "worker ended with exit code 1: ValueError: no such luck"),
        ("aborts", b"", "worker ended with SIGABRT"),
        ("killed", b"", "worker ended with SIGKILL (what the kernel sends when host memory"),
        ("exits", b"0", "worker ended with exit code 0: it printed nothing"),
        ("exits", b"3", "worker ended with exit code 3: it printed nothing"),
        ("dies_unread", b"x" * 1_000_000, "worker ended with exit code 7"),
        ("prints", b"die", "worker ended with exit code 1: the last line"),
        ("no_such_worker", b"", "worker ended with exit code 1"),
    ],
)
def test_a_death_is_a_crash_that_says_how(name, job, words):
    report = interpret(run(name, job), PLENTY)
    assert report.outcome == "crash"
    assert words in report.reason
    assert "\n" not in report.reason
    assert report.measurement is None


def test_only_the_end_of_what_was_printed_is_kept():
    assert len(run("prints", b"die").tail) <= 2000


# Workers that answer rubbish


@pytest.mark.parametrize(
    "message",
    [
        b"\x00garbage{",
        ANSWER[: len(ANSWER) // 2],
        ANSWER + b"}",
        b"[]",
        b"null",
        b'{"outcome": "splendid", "reason": null}',
        b'{"outcome": "ok", "reason": null, "more": 1}',
        b'{"outcome": "ok", "reason": null, "measurement": {}}',
        b'{"outcome": "ok", "reason": "\xff\xfe"}',
    ],
)
def test_rubbish_is_a_crash_that_says_so(message):
    report = interpret(run("echoes", message), PLENTY)
    assert report.outcome == "crash"
    assert report.reason.startswith("the worker's answer is damaged")


def test_half_an_answer_and_then_nothing_is_a_timeout():
    report = interpret(run("half_answers", timeout=1.0), 1.0)
    assert report.outcome == "timeout"


# Workers that hang


def test_a_hang_ends_at_the_timeout_and_takes_the_worker_s_children_with_it(tmp_path):
    path = tmp_path / "ids"
    end = run("hangs", str(path).encode(), timeout=1.5)
    assert end.timed_out
    assert 1.5 <= end.seconds < 10
    worker_id, child_id = map(int, path.read_text().split())
    assert wait_for(lambda: is_gone(worker_id) and is_gone(child_id))
    report = interpret(end, 1.5)
    assert report.outcome == "timeout"
    assert "raise --timeout" in report.reason


def test_a_worker_that_never_reads_a_large_job_ends_at_the_timeout_too():
    end = run("never_reads", b"x" * 1_000_000, timeout=0.5)
    assert end.timed_out
    assert end.seconds < 3


def test_no_descriptor_is_left_open():
    before = psutil.Process().num_fds()
    for name in ("echoes", "raises", "dies_unread"):
        run(name)
    run("half_answers", timeout=0.2)
    assert psutil.Process().num_fds() == before


# The parent's own end


def test_a_worker_dies_with_a_parent_that_is_killed(tmp_path):
    path = tmp_path / "ids"
    code = (
        "from decodegap.measure.parent import run_worker\n"
        f"run_worker('fake_workers.hangs', {str(path)!r}.encode(), 60.0)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    assert wait_for(path.exists)
    worker_id, child_id = map(int, path.read_text().split())
    assert not is_gone(worker_id)
    parent.kill()
    parent.wait()
    try:
        assert wait_for(lambda: is_gone(worker_id), 5)
    finally:
        for pid in (worker_id, child_id):
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_ctrl_c_kills_the_worker_and_its_children(tmp_path):
    path = tmp_path / "ids"
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from decodegap.measure.parent import run_worker\n"
        f"run_worker('fake_workers.hangs', {str(path)!r}.encode(), 60.0)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    assert wait_for(path.exists)
    ids = list(map(int, path.read_text().split()))
    parent.send_signal(signal.SIGINT)
    _, printed = parent.communicate(timeout=10)
    assert b"KeyboardInterrupt" in printed
    assert wait_for(lambda: all(map(is_gone, ids)))


@pytest.mark.slow
def test_ctrl_c_during_measure_keeps_finished_records(tmp_path, known_bandwidth):
    config, out = write_config(tmp_path / "mine"), tmp_path / "out"
    arguments = [
        *("measure", str(config), "-c", "16", "-d", "cpu", "-r", "hf-eager", "--no-probes"),
        *("--trials", "100", "--steps", "3", "--out", str(out)),
    ]
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.argv = ['decodegap', *{arguments!r}]\n"
        "from decodegap.cli import main; main()"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert wait_for(lambda: list(out.glob("*.json")), 60)
    assert wait_for(lambda: psutil.Process(program.pid).children())
    workers = psutil.Process(program.pid).children(recursive=True)
    program.send_signal(signal.SIGINT)
    _, printed = program.communicate(timeout=20)
    assert program.returncode == 130
    assert "decodegap: interrupted; finished records are kept" in printed
    assert "Traceback" not in printed
    records, unreadable = read_folder(out)
    assert [record.outcome for record in records] == ["ok"] * len(records)
    assert records
    assert unreadable == []
    assert sorted(out.iterdir()) == sorted(out.glob("*.json"))  # nothing half-written
    assert wait_for(lambda: not any(process.is_running() for process in workers))


# Trials


def test_a_trial_that_takes_too_long_is_a_record_of_it():
    trial = make_trial(timeout_seconds=0.2)
    record = run_trial(trial)
    assert record.outcome == "timeout"
    assert record.trial == trial
    assert record.seconds >= 0.2
    assert (record.measurement, record.environment) == (None, None)


def answers(*words):
    """A worker's job for `takes_turns`: one thing to do a trial."""
    return [make_trial(order=order, folder=word) for order, word in enumerate(words)]


@pytest.mark.parametrize(
    "words, outcomes, places",
    [
        (("ok", "ok", "ok"), ["ok", "ok", "ok"], [0, 1, 2]),
        (("ok", "wrong", "ok"), ["ok", "wrong", "ok"], [0, 1, 2]),
        (("ok", "unavailable", "ok"), ["ok", "unavailable", "ok"], [0, 1, 2]),
        (("ok", "oom", "ok", "ok"), ["ok", "oom", "ok", "ok"], [0, 1, 0, 1]),
        (("die", "ok"), ["crash", "ok"], [0, 0]),
        (("ok", "die", "ok"), ["ok", "crash", "ok"], [0, 1, 0]),
        (("ok", "ok", "die"), ["ok", "ok", "crash"], [0, 1, 2]),
    ],
)
def test_trials_share_a_process_up_to_a_failure_that_ends_it(monkeypatch, words, outcomes, places):
    monkeypatch.setattr(parent, "_WORKER", "fake_workers.takes_turns")
    trials = answers(*words)
    records = list(run_process(trials))
    assert [record.trial for record in records] == trials
    assert [record.outcome for record in records] == outcomes
    assert [record.place_in_process for record in records] == places


def test_a_record_is_there_before_the_process_s_next_trial_ends(monkeypatch):
    monkeypatch.setattr(parent, "_WORKER", "fake_workers.takes_turns")
    running = run_process(answers("ok", "sleep"))
    start = monotonic()
    assert next(running).outcome == "ok"
    running.close()
    assert monotonic() - start < 20


def test_a_shared_process_has_a_timeout_for_each_trial(monkeypatch):
    monkeypatch.setattr(parent, "_WORKER", "fake_workers.takes_turns")
    trials = [
        msgspec.structs.replace(trial, timeout_seconds=seconds)
        for trial, seconds in zip(answers("ok", "sleep", "ok"), (20, 0.5, 20), strict=True)
    ]
    assert [record.outcome for record in run_process(trials)] == ["ok", "timeout", "ok"]


@pytest.mark.slow
def test_trials_of_a_shared_process_load_once_and_measure_alike():
    runtimes = ("hf-eager", "hf-static", "hf-eager")
    trials = [
        make_trial(runtime=runtime, context=context, process="round 0", probes=context == 64)
        for runtime, context in zip(runtimes, (16, 64, 112), strict=True)
    ]
    records = list(run_process(trials))
    assert [record.outcome for record in records] == ["ok"] * 3, records
    loads = [record.measurement.load_seconds for record in records]
    assert loads[0] > 0
    assert loads[1:] == [0.0, 0.0]
    alone = run_trial(msgspec.structs.replace(trials[2], process=None))
    tokens = [record.measurement.verdict.decoded_tokens for record in (records[2], alone)]
    assert tokens[0] == tokens[1]
    assert alone.measurement.held_bytes == records[2].measurement.held_bytes


@pytest.mark.slow
def test_a_trial_in_a_process_of_its_own():
    trial = make_trial(runtime="hf-static", num_warmup=2, num_steps=4, probes=True)
    record = run_trial(trial)
    assert (record.outcome, record.reason) == ("ok", None)
    timings = record.measurement.timings
    assert (len(timings["warmup"]), len(timings["wall"])) == (2, 4)
    assert all(0 < sample < record.seconds for sample in timings["wall"])
    assert len(record.measurement.verdict.decoded_tokens) == 2 + 4 + 1
    assert {"twin", "twin_linears", "linears", "no_attention"} <= set(record.measurement.probes)
    assert record.environment.packages["torch"].startswith("2.")


def test_require_ok_hands_the_message_on_or_says_what_failed():
    assert require_ok(ended(message=b"answer"), "the probe", 5.0) == b"answer"
    for end in (ended(returncode=1, tail="no\n"), ended(message=b"late", timed_out=True)):
        with pytest.raises(DecodegapError, match="the probe failed"):
            require_ok(end, "the probe", 5.0)


# What the worker makes of its own failures


def failing(error: Exception) -> Callable[[object], WorkerReport]:
    def measure(trial, loaded):
        raise error

    return measure


def test_no_memory_on_the_device_is_oom(monkeypatch):
    from torch import OutOfMemoryError

    error = OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nSee the docs.")
    monkeypatch.setattr(worker, "measure", failing(error))
    report = worker.report_on(make_trial(), worker.LoadedModel())
    assert (report.outcome, report.reason) == (
        "oom",
        "CUDA out of memory. Tried to allocate 9 GiB.",
    )


def test_no_memory_on_the_host_is_oom(monkeypatch):
    import torch

    monkeypatch.setattr(worker, "measure", lambda trial, loaded: torch.empty(1 << 50))
    report = worker.report_on(make_trial(), worker.LoadedModel())
    assert report.outcome == "oom"
    assert "allocate" in report.reason


def test_what_the_engine_refuses_to_allocate_is_oom(monkeypatch):
    """It asks how much is free before it allocates anything."""
    trial = make_trial(tiny(head_dim=64), runtime="engine")
    monkeypatch.setattr("decodegap.engine.engine.check_fits", refuse_all)
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("oom", "weights and cache need too much")


def refuse_all(num_bytes, device):
    raise DoesNotFit("weights and cache need too much")


def test_what_is_missing_is_unavailable(monkeypatch):
    monkeypatch.setattr(worker, "measure", failing(Unavailable("needs a GPU")))
    assert worker.report_on(make_trial(), worker.LoadedModel()).outcome == "unavailable"


def test_a_known_error_is_a_crash_in_its_own_words(monkeypatch):
    monkeypatch.setattr(worker, "measure", failing(DecodegapError("bad weights")))
    assert worker.report_on(make_trial(), worker.LoadedModel()) == WorkerReport(
        outcome="crash", reason="bad weights"
    )


def test_an_unknown_error_is_not_swallowed(monkeypatch):
    monkeypatch.setattr(worker, "measure", failing(RuntimeError("a fault of ours")))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        worker.report_on(make_trial(), worker.LoadedModel())
