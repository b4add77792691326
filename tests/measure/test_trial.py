"""From a request to the trials: their order, their defaults, and what is refused before any."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from builders import TINY_LLAMA, shape_of, tiny, write_config
from decodegap.errors import (
    BadCheckpoint,
    BadContext,
    DecodegapError,
    DoesNotFit,
    UnknownModel,
    UnknownRuntime,
)
from decodegap.measure import memory
from decodegap.measure.memory import check_fits, needed_bytes, stacked_bytes
from decodegap.measure.runtimes.registry import RUNTIMES, get_runtime
from decodegap.measure.trial import (
    Request,
    held_against,
    interleave,
    plan_trials,
)
from decodegap.predict.formats import get_format
from decodegap.predict.tensors import parameter_tensors

GIB = 1 << 30


def request(**changes: Any) -> Request:
    settings: dict[str, Any] = {
        "model": "smollm2-135m",
        "runtimes": ("hf-eager", "hf-static"),
        "contexts": (16,),
        "num_trials": 2,
        "num_warmup": 1,
        "num_steps": 3,
        "weights": None,
        "format": "bf16",
        "device": "cpu",
        "seed": 7,
        "timeout_seconds": 60.0,
        "probes": True,
    }
    return Request(**settings | changes)


@pytest.fixture
def free_memory(monkeypatch):
    def set_free(num_bytes):
        monkeypatch.setattr(memory, "free_memory_bytes", lambda device: num_bytes)

    set_free(64 * GIB)
    return set_free


# Order


def test_cells_are_interleaved_there_and_back():
    cells = [(16, "a"), (16, "b"), (32, "a")]
    assert list(interleave(cells, 3)) == [*cells, *reversed(cells), *cells]


def test_two_cells_make_a_b_b_a(free_memory):
    trials = plan_trials(request())
    assert [trial.runtime for trial in trials] == [
        *("hf-eager", "hf-static"),
        *("hf-static", "hf-eager"),
    ]
    assert [trial.order for trial in trials] == [0, 1, 2, 3]


@given(st.integers(1, 5), st.integers(0, 6))
def test_every_cell_has_every_trial_and_drift_meets_all_alike(num_cells, num_pairs):
    """Over pairs of rounds each cell's mean place in the order is the same."""
    cells = [(16, str(index)) for index in range(num_cells)]
    order = list(interleave(cells, 2 * num_pairs))
    assert Counter(order) == (dict.fromkeys(cells, 2 * num_pairs) if num_pairs else {})
    places = [sum(i for i, one in enumerate(order) if one == cell) for cell in cells]
    assert len(set(places)) == 1


def test_all_trials_of_one_request_are_one_run(free_memory):
    trials = [held_against(trial, 5e10) for trial in plan_trials(request(contexts=(16, 32)))]
    assert len({trial.run for trial in trials}) == 1
    assert {trial.reachable_bytes_per_second for trial in trials} == {5e10}
    assert {trial.seed for trial in trials} == {7}
    assert Counter((trial.context, trial.runtime) for trial in trials) == dict.fromkeys(
        [(16, "hf-eager"), (16, "hf-static"), (32, "hf-eager"), (32, "hf-static")], 2
    )
    assert plan_trials(request())[0].run != trials[0].run


def test_with_no_runtime_named_several_run(free_memory):
    runtimes = {trial.runtime for trial in plan_trials(request(runtimes=()))}
    assert {"hf-eager", "hf-static", "hf-graph"} <= runtimes


# Twice the same


@pytest.mark.parametrize("process", ["trial", "round"])
@pytest.mark.parametrize(
    "runtimes, words",
    [
        (("hf-eager", "hf-static", "hf-eager"), "--runtime 'hf-eager' is given twice; leave one"),
        (
            ("hf-eager", "hf-eager?sdpa=auto"),
            r"'hf-eager' is given twice, once as 'hf-eager\?sdpa=auto'; leave one out",
        ),
        (
            ("hf-static?sdpa=math&sdpa=math", "hf-static?sdpa=math"),
            r"twice, once as 'hf-static\?sdpa=math'; leave one out, and ask for more --trials",
        ),
    ],
)
def test_a_runtime_twice_is_refused_however_it_is_spelled(free_memory, runtimes, words, process):
    """Its cell would be in a round twice, and in a round's process two of its trials."""
    with pytest.raises(DecodegapError, match=words):
        plan_trials(request(runtimes=runtimes, process=process))


def test_a_context_twice_is_refused(free_memory):
    with pytest.raises(BadContext, match="--context 16 is given twice; leave one out"):
        plan_trials(request(contexts=(16, 128, 16)))


def test_both_arms_of_a_comparison_may_be_one_runtime(free_memory):
    arms = {"runtimes": ("hf-static", "hf-static"), "num_trials": 1, "probes": False}
    a, b = plan_trials(request(**arms, arms=True))
    assert (a.runtime, b.runtime, a.process, b.process) == ("hf-static", "hf-static", None, None)
    with pytest.raises(DecodegapError, match="given twice"):
        plan_trials(request(**arms))


# Shared processes


def test_a_process_a_round_times_every_cell_and_a_last_one_lists_kernels(free_memory):
    trials = plan_trials(request(process="round", contexts=(16, 128)))
    rounds = {}
    for trial in trials:
        rounds.setdefault(trial.process, []).append(trial)
    assert list(rounds) == ["round 0", "round 1", "profile"]
    cells = {(trial.context, trial.runtime) for trial in trials}
    for together in rounds.values():
        assert {(trial.context, trial.runtime) for trial in together} == cells
        assert len(together) == len(cells) == 4
    made = {
        name: {(trial.num_steps, trial.profile, trial.probes) for trial in together}
        for name, together in rounds.items()
    }
    assert made == {
        "round 0": {(3, False, True)},
        "round 1": {(3, False, False)},
        "profile": {(0, True, False)},
    }


def test_what_is_listed_has_caches_as_long_as_what_is_timed(free_memory):
    """Or a static cache would be of another length: other attention, and a step compiled anew."""
    trials = plan_trials(request(process="round", runtimes=("hf-static",)))
    lengths = {(t.process, t.context + t.num_warmup + t.num_steps) for t in trials}
    assert len({length for _, length in lengths}) == 1
    assert len(lengths) == 3


def test_cudnn_by_name_never_shares_with_torch_s_choice_of_it(free_memory):
    runtimes = ("hf-eager", "hf-eager?sdpa=cudnn", "hf-eager?sdpa=math", "hf-static?sdpa=cudnn")
    trials = plan_trials(request(process="round", runtimes=runtimes))
    processes = {}
    for trial in trials:
        processes.setdefault(trial.process, set()).add(trial.runtime)
    assert len(processes) == 2 * 3
    for shared in processes.values():
        assert {"cudnn" in runtime for runtime in shared} in ({True}, {False})


@pytest.mark.parametrize("contexts, fits", [((16, 84), True), ((84, 16), True), ((16, 83), False)])
def test_contexts_of_one_process_do_not_run_into_each_other(free_memory, contexts, fits):
    """Four steps and 64 spare positions."""
    asked = request(process="round", contexts=contexts)
    if fits:
        assert plan_trials(asked)
        return
    with pytest.raises(BadContext, match=r"closer than the 68 steps .* a process per trial"):
        plan_trials(asked)
    assert plan_trials(request(contexts=contexts))


# The model


def test_with_no_model_a_cpu_gets_the_small_one(free_memory):
    assert plan_trials(request(model=None))[0].shape.name == "smollm2-135m"


def test_with_no_model_a_gpu_gets_the_study_s(free_memory):
    asked = request(model=None, device="cuda:0")
    assert plan_trials(asked)[0].shape.name == "qwen2.5-7b"


@pytest.mark.parametrize(
    "free, name",
    [
        # 2 × parameters, the cache, and 1 GiB to work: 3 212 749 824 of Llama 3.2 3B are the most
        # that 8 GiB take, and of 4 GiB 1 543 714 304 of Qwen2.5 1.5B.
        (8 * GIB, "llama-3.2-3b"),
        (int(4.05 * GIB), "qwen2.5-1.5b"),
        (int(1.3 * GIB), "smollm2-135m"),
    ],
)
def test_with_no_model_a_small_gpu_gets_the_largest_that_fits(free_memory, free, name):
    free_memory(free)
    assert plan_trials(request(model=None, device="cuda:0"))[0].shape.name == name


def test_nothing_fits(free_memory):
    free_memory(GIB)
    with pytest.raises(DoesNotFit, match="no catalogue model fits"):
        plan_trials(request(model=None))


# Of the tiny model: q and k, v; gate and up; the rest of a layer's matrices and its norms.
QKV, GATE_UP, REST = 64 * 64 + 2 * 32 * 64, 2 * 96 * 64, 64 * 64 + 96 * 64 + 2 * 64
TINY_WEIGHTS = 101 * 64 * 2 + 64 + 2 * (QKV + GATE_UP + REST)


def test_a_model_fits_to_the_byte(free_memory):
    shape, bf16 = shape_of(TINY_LLAMA), get_format("bf16")
    needed = needed_bytes(shape, 16, bf16)
    assert needed == 2 * TINY_WEIGHTS + 16 * 2 * 2 * 2 * 32 + GIB
    free_memory(needed)
    check_fits(shape, 16, bf16, "cpu")
    free_memory(needed - 1)
    with pytest.raises(DoesNotFit, match="take a smaller model or context"):
        check_fits(shape, 16, bf16, "cpu")


@pytest.mark.parametrize("fmt, num_bytes", [("bf16", 2), ("fp32", 4)])
def test_what_the_engine_stacks_counts_twice_and_for_the_engine_alone(free_memory, fmt, num_bytes):
    """q, k, v and gate, up of both layers, beside the model that judges it."""
    shape, stored = shape_of(TINY_LLAMA), get_format(fmt)
    engine = get_runtime("engine")
    assert stacked_bytes(shape, stored, engine) == num_bytes * 2 * (QKV + GATE_UP)
    needed = needed_bytes(shape, 16, stored)
    assert needed_bytes(shape, 16, stored, engine) == needed + num_bytes * 2 * (QKV + GATE_UP)
    others = {name: stacked_bytes(shape, stored, entry) for name, entry in RUNTIMES.items()}
    assert {name for name, stacked in others.items() if stacked} == {"engine"}


def test_biases_are_stacked_as_well_and_experts_are_not(free_memory):
    engine, bf16 = get_runtime("engine"), get_format("bf16")
    biased = shape_of(tiny(model_type="qwen2"))
    assert stacked_bytes(biased, bf16, engine) == 2 * 2 * (QKV + GATE_UP + 64 + 2 * 32)
    mixtral = shape_of(tiny(model_type="mixtral", num_local_experts=5, num_experts_per_tok=2))
    assert stacked_bytes(mixtral, bf16, engine) == 2 * 2 * (QKV + 5 * 64)  # the router's


def test_a_plan_is_refused_where_no_runtime_of_it_fits(free_memory):
    """All but the engine's second copy fits: alone it is refused, beside others its trials are
    left to end as they must (test_session)."""
    shape = plan_trials(request())[0].shape
    free_memory(needed_bytes(shape, 16, get_format("bf16"), get_runtime("engine")) - 1)
    with pytest.raises(DoesNotFit, match="in engine, which holds some matrices twice, needs"):
        plan_trials(request(runtimes=("engine",)))
    runtimes = {trial.runtime for trial in plan_trials(request(runtimes=("engine", "hf-eager")))}
    assert runtimes == {"engine", "hf-eager"}


def test_with_no_model_the_engine_gets_one_that_it_fits_with(free_memory):
    free_memory(int(4.05 * GIB))  # as above, where other runtimes get Qwen2.5 1.5B
    asked = request(model=None, device="cuda:0", runtimes=("engine",))
    assert plan_trials(asked)[0].shape.name == "qwen3-0.6b"


def test_where_free_memory_is_not_known_the_trial_decides(free_memory):
    free_memory(None)
    assert plan_trials(request(model="llama-3.1-8b"))


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"runtimes": ("hf-eager", "hf-nothing")}, UnknownRuntime),
        ({"contexts": (16, 8192)}, BadContext),
        ({"contexts": (8190,)}, BadContext),
        ({"model": "smollm2-134m"}, UnknownModel),
    ],
)
def test_one_bad_cell_refuses_the_whole_request(free_memory, changes, error):
    with pytest.raises(error):
        plan_trials(request(**changes))


@pytest.mark.parametrize("device, most", [("cpu", 8172), ("cuda:0", 8132)])
def test_the_last_step_may_use_the_last_position(free_memory, device, most):
    """8192 positions: one to warm up in, three timed, and on a CPU 16, on a GPU 56 of what follows
    them (test_positions)."""
    assert plan_trials(request(contexts=(most,), device=device))
    with pytest.raises(BadContext, match=f"at most {most}, or fewer --steps"):
        plan_trials(request(contexts=(most + 1,), device=device))


def test_no_context_is_named_where_none_is_possible(free_memory):
    with pytest.raises(BadContext, match=r"positions of smollm2-135m; fewer --steps$"):
        plan_trials(request(num_steps=9000))


# The weights


@pytest.fixture
def folder(tmp_path):
    write_config(tmp_path / "mine")
    tensors = parameter_tensors(shape_of(tiny()))
    weights = {tensor.name: np.zeros(tensor.shape, np.float32) for tensor in tensors}
    save_file(weights, tmp_path / "mine" / "model.safetensors")
    return tmp_path / "mine"


@pytest.mark.parametrize("asked, kind", [(None, "checkpoint"), ("synthetic", "synthetic")])
def test_a_folder_s_weights_are_used_unless_synthetic_ones_are_asked_for(
    free_memory, folder, asked, kind
):
    trial = plan_trials(request(model=str(folder), weights=asked))[0]
    assert trial.weights == kind
    assert trial.folder == (str(folder) if kind == "checkpoint" else None)


def test_a_damaged_folder_is_no_hindrance_to_synthetic_weights(free_memory, folder):
    (folder / "model.safetensors").write_bytes(b"")
    assert plan_trials(request(model=str(folder), weights="synthetic"))
    with pytest.raises(BadCheckpoint):
        plan_trials(request(model=str(folder)))


def test_a_config_file_gets_synthetic_weights(free_memory, folder):
    trial = plan_trials(request(model=str(folder / "config.json")))[0]
    assert (trial.weights, trial.folder) == ("synthetic", None)
    with pytest.raises(UnknownModel, match="without weights"):
        plan_trials(request(model=str(folder / "config.json"), weights="checkpoint"))
