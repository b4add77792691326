"""The doctor's verdict: fit, fit with warnings, not fit, each with what to do."""

import msgspec
import pytest

from builders import make_host_state
from decodegap.doctor import examination
from decodegap.doctor.examination import (
    Problem,
    gpu_problems,
    host_problems,
    runtime_problems,
)
from decodegap.measure.machine import describe_host
from decodegap.measure.runtimes.registry import RUNTIMES

HOST = msgspec.structs.replace(describe_host(), num_cpus=4, cpu_limit=None)


def texts(problems: list[Problem]) -> list[tuple[str, str]]:
    return [(problem.severity, problem.text) for problem in problems]


def test_a_quiet_host_has_no_problem():
    assert host_problems(HOST, make_host_state(busy_share=0.05)) == []


def test_other_work_is_a_warning():
    problems = host_problems(HOST, make_host_state(busy_share=0.5))
    assert texts(problems) == [("warning", "other work takes 50% of the cores")]


def test_a_quota_is_a_warning_only_if_it_binds():
    for limit, num_problems in ((1.5, 1), (4.0, 0), (None, 0)):
        host = msgspec.structs.replace(HOST, cpu_limit=limit)
        assert len(host_problems(host, make_host_state())) == num_problems


def test_no_memory_is_unfit():
    state = msgspec.structs.replace(make_host_state(), available_memory_bytes=300 << 20)
    assert texts(host_problems(HOST, state)) == [("unfit", "300 MiB of memory free")]


def test_no_runtime_is_unfit():
    (problem,) = runtime_problems({"a": "needs torch", "b": "needs a GPU"})
    assert problem.severity == "unfit"
    assert "pip install" in problem.remedy
    assert runtime_problems({"a": None, "b": "needs a GPU"}) == []


def test_throttling_is_a_warning_with_its_reason():
    state = make_host_state(throttled=("hardware slowdown",)).gpu
    assert texts(gpu_problems(state)) == [("warning", "the GPU is held back: hardware slowdown")]
    assert gpu_problems(make_host_state(throttled=()).gpu) == []
    assert gpu_problems(None) == []


@pytest.fixture
def machine(monkeypatch):
    """This machine without a GPU, as quiet as `state` says."""

    def set_state(**changes):
        state = msgspec.structs.replace(make_host_state(), **changes)
        monkeypatch.setattr(examination, "host_state", lambda device: state)

    monkeypatch.setattr(examination, "list_gpus", list)
    monkeypatch.setattr(examination, "describe_host", lambda: HOST)
    set_state()
    return set_state


@pytest.mark.parametrize(
    "changes, code, words",
    [
        ({}, 0, "fit to measure"),
        ({"busy_share": 0.5}, 1, "fit, with warnings"),
        ({"available_memory_bytes": 1 << 20}, 2, "not fit to measure"),
        ({"busy_share": 0.5, "available_memory_bytes": 1 << 20}, 2, "not fit to measure"),
    ],
)
def test_the_exit_code_is_the_verdict(program, machine, changes, code, words):
    machine(**changes)
    shown, as_json = program("doctor"), program("doctor", "--json")
    assert words in shown.out
    assert as_json.json["exit_code"] == code
    assert (shown.code, as_json.code) == (code, code)


def test_the_page_says_what_is_here_and_why_the_rest_is_not(program, machine):
    out = program("doctor").out
    assert HOST.cpu in out
    assert "none (no NVIDIA driver answers)" in out
    assert "not measured yet" in out
    for name in RUNTIMES:
        assert f"runtime {name}" in out
    (graph,) = [line for line in out.splitlines() if line.strip().startswith("runtime hf-graph")]
    assert "needs a CUDA GPU" in graph


def test_a_known_bandwidth_is_shown(program, machine, known_bandwidth):
    assert "50.00 GB/s on 2026-11-30" in program("doctor").out


def test_as_json_every_part_is_there(program, machine):
    document = program("doctor", "--json").json
    assert document["host"]["num_cpus"] == 4
    assert document["torch_device"] == "cpu"
    assert document["runtimes"]["hf-eager"] is None
    assert "CUDA" in document["runtimes"]["hf-graph"]
    assert document["packages"]["decodegap"]
    assert document["bandwidth"] is None
