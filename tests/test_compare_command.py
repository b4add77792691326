"""`decodegap compare`: order, refusals, exit codes, what is said, what is written and when."""

import tomllib
from itertools import count

import msgspec
import pytest

from builders import (
    TINY_LLAMA,
    assert_refused,
    failed_record,
    make_profile,
    make_record,
    one_by_one,
    write_config,
)
from decodegap.explain.prediction import parse_prediction, registered_hash
from decodegap.measure import session
from decodegap.record import new_id
from decodegap.record_files import read_folder

pytestmark = pytest.mark.usefixtures("known_bandwidth")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def compare(program, tmp_path, folder):
    """`compare("hf-eager", "hf-static", …)` on the tiny model."""
    config = write_config(tmp_path / "tiny", TINY_LLAMA)

    def run(a, b, *more):
        short = ("--context", "16", "--steps", "3", "--format", "fp32", "--device", "cpu")
        return program("compare", config, a, b, *short, "--out", folder, *more)

    return run


@pytest.fixture
def trials_take(monkeypatch):
    """Trials that run no process: `trials_take(lambda trial: seconds)`; a record is used as is."""

    def install(seconds_of):
        started = count()

        def run_one(trial):
            found = seconds_of(trial)
            if not isinstance(found, float):
                return msgspec.structs.replace(found, trial=trial, id=new_id())
            profile = make_profile({"gemv": 1e-3})
            return make_record([found], trial=trial, minute=next(started), profile=profile)

        monkeypatch.setattr(session, "run_process", one_by_one(run_one))

    return install


def by_arm(a, b, spread=0.0):
    """Seconds by arm, the pairs `spread` apart in a fixed pattern."""
    return lambda trial: (
        (a if trial.arm.name == "A" else b)
        * (1 + spread * ((trial.arm.pair * 7 + 3 * (trial.arm.name == "A")) % 5 - 2))
    )


@pytest.mark.parametrize(
    "a, b, spread, code, words",
    [
        (0.030, 0.010, 0.001, 0, "B is faster: "),
        (0.010, 0.030, 0.001, 1, "B is slower: its step is "),
        (0.010, 0.010, 0.001, 3, "no difference within ±5 %"),
        (0.010, 0.010, 0.100, 4, "inconclusive"),
    ],
)
def test_the_verdict_is_the_exit_code(compare, trials_take, a, b, spread, code, words):
    trials_take(by_arm(a, b, spread))
    ended = compare("hf-eager", "hf-static")
    assert ended.code == code, ended
    assert words in ended.out
    assert "lies within ±5 % of 1" in ended.out
    assert "95% interval [" in ended.out
    assert "both arms run the same, equally often" in ended.out


def test_trials_alternate_a_b_b_a_and_every_record_says_its_place(compare, trials_take, folder):
    trials_take(by_arm(0.03, 0.01))
    compare("hf-eager", "hf-static", "-n", "4", "--margin", "2%")
    records, _ = read_folder(folder)
    trials = [record.trial for record in sorted(records, key=lambda record: record.trial.order)]
    assert "".join(trial.arm.name for trial in trials) == "ABBAABBA"
    assert [trial.arm.pair for trial in trials] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [trial.order for trial in trials] == list(range(8))
    assert {(trial.arm.name, trial.runtime) for trial in trials} == {
        ("A", "hf-eager"),
        ("B", "hf-static"),
    }
    assert {(trial.run, trial.seed, trial.arm.margin) for trial in trials} == {
        (trials[0].run, 0, 0.02)
    }


def test_a_runtime_against_itself_is_two_arms(compare, trials_take):
    trials_take(by_arm(0.010, 0.010, 0.001))
    ended = compare("hf-eager", "hf-eager", "--json")
    assert ended.code == 3
    assert ended.json["a"]["runtime"] == ended.json["b"]["runtime"] == "hf-eager"
    assert len(ended.json["pair_ratios"]) == 10


def test_the_document_has_the_values_of_the_screen(compare, trials_take, folder):
    trials_take(by_arm(0.030, 0.010, 0.001))
    document = compare("hf-eager", "hf-static?sdpa=math", "--json").json
    assert document["ratio"] == pytest.approx(3, rel=0.01)
    assert document["interval"]["low"] < document["ratio"] < document["interval"]["high"]
    assert (document["verdict"], document["exit_code"]) == ("faster", 0)
    assert document["b"]["runtime"] == "hf-static?sdpa=math"
    assert document["b"]["step_s"] == pytest.approx(0.010, rel=0.01)
    assert document["kernels"]["answer"] == "same"
    assert document["records"] == str(folder)


def test_a_prediction_is_on_disk_before_the_first_trial_and_in_every_record(
    compare, trials_take, folder
):
    def seconds(trial):
        written = [tomllib.loads(path.read_text()) for path in folder.glob("prediction-*.toml")]
        assert [row["run"] for row in written] == [trial.run]
        claim = parse_prediction(written[0]["claim"])
        assert registered_hash(claim, written[0]["about"]) == trial.arm.prediction_sha256
        return by_arm(0.030, 0.010, 0.001)(trial)

    trials_take(seconds)
    ended = compare("hf-eager", "hf-static", "--predict", "ratio>1.20")
    assert ended.code == 0
    assert "predicted: ratio > 1.2 (sha256 " in ended.out
    assert ended.out.splitlines()[-2].endswith(": confirmed")
    records, _ = read_folder(folder)
    assert {record.trial.arm.prediction for record in records} == {"ratio > 1.2"}


def test_a_prediction_about_a_model_of_any_name_is_toml(
    program, trials_take, folder, tmp_path, known_bandwidth
):
    trials_take(by_arm(0.03, 0.01))
    config = write_config(tmp_path / 'we"ird\\n\x7f')
    arguments = ("compare", config.parent, "hf-eager", "hf-static", "-n", "1", "--context", "16")
    options = ("-d", "cpu", "--weights", "synthetic", "--predict", "ratio > 1.2", "--out", folder)
    ended = program(*arguments, *options)
    assert ended.code == 4, ended
    (path,) = folder.glob("prediction-*.toml")
    assert tomllib.loads(path.read_text())["about"].startswith('we"ird\\n\x7f, ')


def test_pairs_are_added_until_the_interval_is_narrow_and_no_longer(compare, trials_take):
    trials_take(lambda t: by_arm(0.03, 0.01, 0.05 if t.arm.pair < 8 else 0.0)(t))
    ended = compare("hf-eager", "hf-static", "-n", "8", "--until-ci", "5%", "--json")
    interval = ended.json["interval"]
    num_pairs = len(ended.json["pair_ratios"])
    assert 8 < num_pairs < 50
    assert num_pairs % 2 == 0
    assert interval["high"] - interval["low"] <= 0.05 * ended.json["ratio"] * 1.1


def test_pairs_stop_at_the_limit_however_wide_the_interval(compare, trials_take):
    trials_take(by_arm(0.03, 0.01, 0.2))
    more = ("-n", "6", "--until-ci", "1%", "--max-trials", "9", "--json")
    assert len(compare("hf-eager", "hf-static", *more).json["pair_ratios"]) == 9


def test_an_arm_that_fails_twice_ends_the_comparison_with_its_reason(compare, trials_take, folder):
    broken = failed_record("oom", "not enough memory")
    trials_take(lambda trial: broken if trial.arm.name == "B" else 0.01)
    ended = compare("hf-eager", "hf-static")
    assert ended.code == 2
    assert "hf-static ended oom (not enough memory)" in ended.err
    assert len(list(folder.glob("*.json"))) == 3  # A B, B


def test_one_failed_trial_costs_its_pair_and_no_more(compare, trials_take):
    broken = failed_record("crash", "bad luck")
    normal = by_arm(0.030, 0.010, 0.001)
    trials_take(lambda t: broken if (t.arm.name, t.arm.pair) == ("B", 4) else normal(t))
    ended = compare("hf-eager", "hf-static")
    assert ended.code == 0
    assert "hf-static: crash: bad luck; its pair is left out" in ended.out
    assert "the median of 9 pairs" in ended.out


def test_few_trials_say_before_and_after_that_there_is_no_verdict(compare, trials_take):
    trials_take(by_arm(0.030, 0.010))
    ended = compare("hf-eager", "hf-static", "-n", "2")
    assert ended.code == 4
    assert "fewer than 6 pairs give no interval" in ended.out
    assert "too few pairs for an interval" in ended.out
    assert "about 6 pairs would tell" in ended.out


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("hf-eagr", "hf-static"), ("did you mean hf-eager",)),
        (("hf-eager", "hf-static?sdpa=fast"), ("none of auto, flash",)),
        (("hf-eager", "hf-graph"), ("hf-graph needs a CUDA GPU",)),
        (("hf-eager", "hf-static", "--predict", "faster"), ("ratio > 1.2",)),
        (("hf-eager", "hf-static", "--margin", "5"), ("5%",)),
        (("hf-eager", "hf-static", "--until-ci", "0%"), ("5%",)),
        (("hf-eager", "hf-static", "--context", "300"), ("at most",)),
        (("hf-eager", "hf-static", "--weights", "made-up"), ("synthetic, checkpoint",)),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_written(
    compare, trials_take, folder, arguments, words
):
    trials_take(lambda trial: pytest.fail("a trial ran"))
    assert_refused(compare(*arguments), *words)
    assert not folder.exists()


@pytest.mark.slow
def test_real_processes_end_to_end(compare, folder):
    ended = compare("hf-eager", "hf-static", "-n", "1", "--json")
    assert ended.code == 4, ended  # one pair has no interval
    assert ended.json["kernels"]["answer"] == "different"  # one of them concatenates its cache
    assert len(list(folder.glob("*.json"))) == 2
