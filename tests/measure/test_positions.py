"""The steps after the timed ones are those that are counted, and a plan leaves room for them."""

from types import SimpleNamespace

import msgspec
import pytest
import torch

from builders import make_trial, shape_of, tiny
from decodegap.errors import BadContext
from decodegap.measure import interventions, timers, worker
from decodegap.measure.positions import (
    MOST_TIMER_STEPS,
    NUM_OTHER_TIMERS,
    SPARE_POSITIONS,
    check_positions,
    steps_after,
)
from decodegap.measure.runtimes import hf_eager
from decodegap.measure.runtimes.hf_model import load_model
from decodegap.measure.runtimes.registry import RUNTIMES

WARMUP, STEPS = 3, 12  # enough for the steps of an intervention over lengths seen before


class Counted(hf_eager.HfEager):
    """Counts its steps, those of the prefill not."""

    num_steps = 0

    def step(self):
        self.num_steps += 1
        super().step()


@pytest.fixture
def counted(monkeypatch):
    """Every runtime that is made, in order."""
    made = []

    def load(model, trial):
        made.append(Counted(model))
        return made[-1]

    monkeypatch.setattr(worker, "runtime_factory", lambda entry: load)
    monkeypatch.setattr(interventions, "runtime_factory", lambda entry: load)
    return made


def test_what_follows_on_a_cpu_is_counted(counted):
    """12 steps without attention, 4 under profilers."""
    trial = make_trial(num_warmup=WARMUP, num_steps=STEPS, probes=True)
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    assert counted[0].num_steps - WARMUP - STEPS == steps_after("cpu") == 16


def test_what_follows_on_a_gpu_is_counted(counted, monkeypatch):
    """Two timers of at most 20 steps, 12 over lengths that are new, 4 under profilers: the worker's
    own calls as for a GPU, on a CPU."""

    def events(step, num_steps, device):
        return [step() for _ in range(num_steps)]

    monkeypatch.setattr(timers, "events", events)
    left_out = dict.fromkeys(("twin", "linears", "no_attention"), ((), None))
    own = interventions._INTERVENTIONS["in_turn"]
    monkeypatch.setattr(interventions, "_INTERVENTIONS", left_out | {"in_turn": own})
    trial = make_trial(num_warmup=WARMUP, num_steps=STEPS)
    model, prompt = load_model(trial), worker.make_prompt(trial)
    runtime = worker.runtime_factory(None)(model, trial)
    on_gpu = msgspec.structs.replace(trial, device="cuda:0")
    with torch.inference_mode():
        runtime.prefill(prompt)
        worker.other_timers(runtime, on_gpu, lambda: None, step_seconds=1e-9)
    interventions.intervene(
        interventions.Bench(
            runtime=runtime, model=model, trial=on_gpu, prompt=prompt, synchronize=lambda: None
        )
    )
    worker.profile_of(runtime, trial)
    assert runtime.num_steps == steps_after("cuda:0") == 56


def test_no_other_intervention_decodes_with_the_trial_s_own_cache():
    """Of a kind of device at most one does. The engine's replays start from the context again, and
    are fewer than the two timers take."""
    own = {"cpu": {"no_attention"}, "cuda": {"in_turn"}}
    apart = {"twin", "linears", "ops"}
    assert set(interventions._INTERVENTIONS) == apart.union(*own.values())
    for kind, names in own.items():
        for name in names:
            assert interventions._INTERVENTIONS[name][0] == (kind,)
    assert {name for entry in RUNTIMES.values() for name in entry.interventions} <= set(
        interventions._INTERVENTIONS
    )
    assert interventions._NUM_OP_STEPS <= NUM_OTHER_TIMERS * MOST_TIMER_STEPS


class FakeEngine:
    """Keeps the furthest position that a step on its cache has taken."""

    def __init__(self, position: int) -> None:
        self.position = self.furthest = position

    def place(self, *, token: int, position: int) -> None:
        self.position = position

    def step(self) -> None:
        self.furthest = max(self.furthest, self.position)
        self.position += 1

    def step_without(self, op):
        self.step()  # the warm-up of a capture
        return self.step


def test_the_engine_s_replays_stay_within_what_is_counted():
    """Placed anew before each op is captured and before each is timed: 20 replays from the
    context, wherever the timers had come to."""
    trial = make_trial(runtime="engine", num_warmup=WARMUP, num_steps=STEPS)
    timed = trial.context + WARMUP + STEPS
    engine = FakeEngine(timed + NUM_OTHER_TIMERS * MOST_TIMER_STEPS - 1)
    before = engine.furthest
    bench = interventions.Bench(
        runtime=SimpleNamespace(engine=engine),
        model=None,
        trial=trial,
        prompt=None,
        synchronize=lambda: None,
    )
    samples = interventions.without_each_op(bench)
    assert len(samples) == 8
    assert engine.furthest == before < timed + steps_after("cuda:0")


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "cuda:1", "h100-sxm5"])
def test_a_static_cache_has_room_for_all_that_follows(device):
    assert steps_after(device) <= SPARE_POSITIONS


# The engine alone holds no more positions than the model has, and ends where they do.

ENGINE_CONFIG = tiny(head_dim=64)  # of 256 positions


def engine_trial(context: int):
    return make_trial(
        ENGINE_CONFIG,
        shape=shape_of(ENGINE_CONFIG),
        runtime="engine",
        context=context,
        num_warmup=5,
        num_steps=30,
        probes=True,
    )


def test_the_longest_context_that_is_possible_is_measured_to_its_end():
    """256 positions: 35 steps, and 16 for what follows them on a CPU."""
    trial = engine_trial(205)
    check_positions(trial.shape, 205, 35, "cpu")
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)


@pytest.mark.parametrize("context", [206, 221])
def test_a_context_past_it_is_refused_with_the_most_that_is_possible(context):
    shape = shape_of(ENGINE_CONFIG)
    words = rf"context {context}, 35 steps and 16 for what follows .* of at most 205, or fewer"
    with pytest.raises(BadContext, match=words):
        check_positions(shape, context, 35, "cpu")
    with pytest.raises(BadContext, match="at most 165"):  # 256 - 35 - 56
        check_positions(shape, context, 35, "cuda:0")
