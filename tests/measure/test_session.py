"""A run stores each record before it starts the next trial, and keeps what is finished."""

import pytest

from builders import make_record, make_trial, one_by_one, tiny
from decodegap.errors import OutputFolder
from decodegap.measure import memory, session
from decodegap.measure.memory import needed_bytes, stacked_bytes
from decodegap.measure.runtimes.registry import get_runtime
from decodegap.measure.session import run_together, run_trials
from decodegap.predict.formats import get_format
from decodegap.record_files import read_folder, read_record


@pytest.fixture
def ran(monkeypatch):
    """Trials that were really run, in order; each takes no time."""
    trials = []

    def run(trial):
        trials.append(trial)
        return make_record(trial=trial, minute=len(trials))

    monkeypatch.setattr(session, "run_process", one_by_one(run))
    return trials


def test_each_record_is_stored_before_the_next_trial_starts(tmp_path, ran):
    trials = [make_trial(order=order) for order in range(3)]
    for number, stored in enumerate(run_trials(trials, tmp_path), start=1):
        assert len(ran) == number
        assert len(list(tmp_path.iterdir())) == number
        assert read_record(stored.path) == stored.record
    assert [record.trial.order for record in read_folder(tmp_path)[0]] == [0, 1, 2]


def test_what_stops_a_run_leaves_the_finished_records(tmp_path, ran, monkeypatch):
    def interrupted(trial):
        if trial.order == 2:
            raise KeyboardInterrupt
        return make_record(trial=trial)

    monkeypatch.setattr(session, "run_process", one_by_one(interrupted))
    with pytest.raises(KeyboardInterrupt):
        list(run_trials([make_trial(order=order) for order in range(4)], tmp_path))
    assert sorted(record.trial.order for record in read_folder(tmp_path)[0]) == [0, 1]


def test_a_folder_that_goes_away_stops_the_run(tmp_path, ran):
    trials = [make_trial(order=order) for order in range(3)]
    with pytest.raises(OutputFolder):
        list(run_trials(trials, tmp_path / "gone"))
    assert len(ran) == 1


def test_trials_of_one_process_are_run_together_and_others_alone(tmp_path, monkeypatch):
    groups = []

    def run(trials):
        groups.append([trial.order for trial in trials])
        yield from (make_record(trial=trial) for trial in trials)

    monkeypatch.setattr(session, "run_process", run)
    processes = (None, None, "round 0", "round 0", "round 1", None, "round 1")
    trials = [make_trial(order=order, process=name) for order, name in enumerate(processes)]
    list(run_trials(trials, tmp_path))
    assert groups == [[0], [1], [2, 3], [4, 6], [5]]


def test_a_runtime_that_cannot_run_here_leaves_its_process_to_the_others(ran):
    trials = [make_trial(runtime=name, process="round 0") for name in ("hf-graph", "hf-eager")]
    assert [record.outcome for record in run_together(trials)] == ["unavailable", "ok"]
    assert ran == trials[1:]


def test_a_runtime_that_cannot_run_here_costs_no_process(ran):
    (record,) = run_together([make_trial(runtime="hf-graph")])
    assert record.outcome == "unavailable"
    assert "needs a CUDA GPU" in record.reason
    assert record.seconds == 0
    assert ran == []


def test_what_does_not_fit_costs_no_process_and_leaves_its_own_to_the_others(ran, monkeypatch):
    """Memory for the model, and not for the engine's second copy of its stacked matrices."""
    eager, engine = (
        make_trial(tiny(head_dim=64), runtime=name, process="round 0")
        for name in ("hf-eager", "engine")
    )
    fmt = get_format(eager.format)
    needed = needed_bytes(eager.shape, eager.context, fmt)
    stacked = stacked_bytes(eager.shape, fmt, get_runtime("engine"))
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: needed + stacked - 1)
    records = list(run_together([engine, eager]))
    assert [record.outcome for record in records] == ["oom", "ok"]
    assert records[0].reason.startswith("not started: tiny at context 16 in engine, which holds")
    assert ran == [eager]
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: needed + stacked)
    assert [record.outcome for record in run_together([engine, eager])] == ["ok", "ok"]


def test_missing_packages_are_named_with_what_installs_them(monkeypatch, ran):
    from decodegap.measure.runtimes import registry

    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    (record,) = run_together([make_trial(runtime="hf-eager")])
    assert record.outcome == "unavailable"
    assert "torch, transformers" in record.reason
    assert "pip install 'decodegap[measure]'" in record.reason
