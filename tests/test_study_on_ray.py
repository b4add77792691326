"""A study on a Ray cluster of two nodes in this machine, one of them killed in the middle."""

import os
import time
import warnings
from collections import Counter
from itertools import pairwise

import pytest

from builders import assert_refused
from decodegap.record import Record
from decodegap.record_files import read_folder
from decodegap.study.file import parse_study
from decodegap.study.folder import claim, held, read_stored
from decodegap.study.matrix import Planned, plan_study
from decodegap.study.run import work_left

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="decodegap[cluster] is not installed")

pytestmark = pytest.mark.slow

TEXT = """
name = "spread"
models = ["smollm2-135m"]
devices = ["cpu", "h200"]
runtimes = ["hf-eager", "hf-static"]
formats = ["fp32"]
contexts = [16]
[protocol]
num_trials = 2
weights = "synthetic"
[[compare]]
name = "cache"
a = "hf-eager"
b = "hf-static"
num_pairs = 2
"""


@pytest.fixture
def cluster():
    """A head without devices; the test adds nodes that offer one."""
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        yield made
        ray.shutdown()
        made.shutdown()


def made_up_launch(tmp_path, seconds=0.3):
    """A launch that takes a moment and notes its start; sent to the nodes by value."""
    notes = str(tmp_path / "started")

    def launch(together: list[Planned]) -> list[Record]:
        return [record_of(planned) for planned in together]

    def record_of(planned: Planned) -> Record:
        from datetime import UTC, datetime

        from decodegap.record import new_id

        with open(notes, "a") as file:
            file.write(f"{planned.trial.identity}\n")
        time.sleep(seconds)
        return Record(
            id=new_id(),
            trial=planned.trial,
            outcome="timeout",
            reason="made up",
            started_at=datetime.now(UTC),
            seconds=seconds,
            measurement=None,
            environment=None,
        )

    return launch


@pytest.mark.filterwarnings("ignore")
def test_a_lost_nodes_trial_runs_again_elsewhere_and_nothing_is_lost(cluster, tmp_path):
    from decodegap.study.cluster import connect, devices_there, run_on_ray

    first = cluster.add_node(num_cpus=1, resources={"cpu": 1})
    connect(cluster.address)
    plan = plan_study(parse_study(TEXT, ""), "cpu")
    devices = devices_there([planned.device for planned in plan.trials])
    assert devices == {"cpu": "cpu"}
    work = work_left(plan, [], devices)
    assert (len(work.here), len(work.elsewhere)) == (8, 8)

    with held(tmp_path / "out") as folder:
        claim(folder, plan.study, TEXT)
        # A worker outlives its node by a moment; the trial must not end within it.
        launch = made_up_launch(tmp_path, seconds=2.0)
        records = []
        for stored in run_on_ray(work.here, (), folder, launch, patience_seconds=5):
            records.append(stored.record)
            if len(records) == 2:
                cluster.add_node(num_cpus=1, resources={"cpu": 1})
                cluster.remove_node(first, allow_graceful=False)
        there = read_stored(folder)

    wanted = Counter(planned.trial.identity for planned in work.here)
    assert Counter(record.trial.identity for record in there.records) == wanted
    nodes = [record.placement.node for record in records]
    assert len(set(nodes)) == 2
    retried = [record for record in records if record.placement.retried]
    assert retried
    assert nodes[0] not in {record.placement.node for record in retried}
    started = Counter((tmp_path / "started").read_text().split())
    again = {identity for identity, times in started.items() if times > 1}
    assert again <= {record.trial.identity for record in retried}


@pytest.mark.filterwarnings("ignore")
def test_trials_of_one_device_never_run_side_by_side(cluster, tmp_path):
    from decodegap.study.cluster import connect, run_on_ray

    cluster.add_node(num_cpus=4, resources={"cpu": 1})
    connect(cluster.address)
    plan = plan_study(parse_study(TEXT.replace(', "h200"', ""), ""), "cpu")
    with held(tmp_path / "out") as folder:
        claim(folder, plan.study, TEXT)
        list(run_on_ray(plan.trials, (), folder, made_up_launch(tmp_path)))
        records, _ = read_folder(folder)
    assert len(records) == 8
    ends = [record.started_at.timestamp() for record in records]
    assert min(b - a for a, b in pairwise(ends)) > 0.25


@pytest.mark.filterwarnings("ignore")
def test_trials_that_share_a_process_are_one_task(cluster, tmp_path):
    from decodegap.study.cluster import connect, run_on_ray

    cluster.add_node(num_cpus=1, resources={"cpu": 1})
    connect(cluster.address)
    text = TEXT.partition("[[compare]]")[0].replace(', "h200"', "").replace("[16]", "[16, 128]")
    plan = plan_study(parse_study(text + 'process = "round"', ""), "cpu")
    with held(tmp_path / "out") as folder:
        claim(folder, plan.study, text)
        launch, sizes = made_up_launch(tmp_path, seconds=0.0), str(tmp_path / "sizes")

        def counted(together: list[Planned]) -> list[Record]:
            with open(sizes, "a") as file:
                file.write(f"{len(together)} {len({one.trial.process for one in together})}\n")
            return launch(together)

        list(run_on_ray(plan.trials, (), folder, counted))
        there = read_stored(folder)
    assert len(there.records) == len(plan.trials) == 4 * 3
    assert (tmp_path / "sizes").read_text().split("\n") == ["4 1"] * 3 + [""]


@pytest.mark.filterwarnings("ignore")
def test_when_the_last_node_with_a_device_goes_the_study_says_so(cluster, tmp_path):
    from decodegap.study.cluster import LostDevice, connect, run_on_ray

    only = cluster.add_node(num_cpus=1, resources={"cpu": 1})
    connect(cluster.address)
    plan = plan_study(parse_study(TEXT.replace(', "h200"', ""), ""), "cpu")
    records: list[Record] = []
    with held(tmp_path / "out") as folder:
        claim(folder, plan.study, TEXT)
        running = run_on_ray(plan.trials, (), folder, made_up_launch(tmp_path), 2)
        records += [next(running).record, next(running).record]
        cluster.remove_node(only, allow_graceful=False)
        with pytest.raises(LostDevice, match="no node offers cpu any more"):
            records.extend(stored.record for stored in running)
        assert len(read_stored(folder).records) == len(records)


def test_without_a_cluster_the_command_says_so(program, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(TEXT)
    out = tmp_path / "out"
    ended = program("study", file, "--out", out, "--ray", "127.0.0.1:1")
    assert_refused(ended, "no Ray cluster answers at 127.0.0.1:1")
    assert not out.exists()
