"""The verdict tells right logits from wrong ones, and a time that cannot be from one that can."""

import math

import msgspec
import pytest
import torch

from builders import PASSED, make_trial
from decodegap.measure import worker
from decodegap.measure.runtimes import hf_eager, hf_static
from decodegap.measure.verdict import TOLERANCES, NotFinite, Tolerance, compare
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import step_traffic

VOCAB, NUM_STEPS = 500, 4
TIGHT = TOLERANCES["fp32"]


def logits(seed: int = 0) -> torch.Tensor:
    return torch.randn(NUM_STEPS, VOCAB, generator=torch.Generator().manual_seed(seed))


def verdict(reference, last=None, picks=None, tolerance: Tolerance = TIGHT):
    picks = reference.argmax(1) if picks is None else picks
    last = reference[-1] if last is None else last
    return compare(reference, picks, last, tolerance, tuple(picks.tolist()))


def test_equal_logits_pass():
    result = verdict(logits())
    assert result.passed
    assert result.kl_divergence == pytest.approx(0, abs=1e-6)
    assert (result.top1_agreement, result.worst_gap) == (1.0, 0.0)


@pytest.mark.parametrize("fmt", TOLERANCES)
def test_unrelated_logits_fail_in_every_format(fmt):
    result = verdict(logits(0), last=logits(1)[-1], tolerance=TOLERANCES[fmt])
    assert not result.passed
    assert result.kl_divergence > 0.5


def test_divergence_by_hand():
    """Two words: the reference holds one twice as likely, the runtime four times."""
    reference = torch.tensor([[math.log(2.0), 0.0]])
    result = verdict(reference, last=torch.tensor([math.log(4.0), 0.0]))
    by_hand = 2 / 3 * math.log((2 / 3) / 0.8) + 1 / 3 * math.log((1 / 3) / 0.2)
    assert result.kl_divergence == pytest.approx(by_hand, rel=1e-6)


def test_a_constant_added_to_all_logits_changes_nothing():
    reference = logits()
    assert verdict(reference, last=reference[-1] + 7).passed


@pytest.mark.parametrize("fmt", TOLERANCES)
def test_a_wrong_pick_fails_though_the_logits_are_right(fmt):
    reference = logits()
    picks = reference.argmax(1)
    picks[1] = reference[1].argmin()
    result = verdict(reference, picks=picks, tolerance=TOLERANCES[fmt])
    assert not result.passed
    assert result.top1_agreement == 1 - 1 / NUM_STEPS
    spread = reference[1].std()
    by_hand = (reference[1].max() - reference[1].min()) / spread
    assert result.worst_gap == pytest.approx(by_hand.item())


def test_a_pick_that_is_as_good_as_the_best_passes():
    reference = logits()
    best = reference[2].argmax()
    other = (best + 1) % VOCAB
    reference[2, other] = reference[2, best]
    picks = reference.argmax(1)
    picks[2] = best if picks[2] == other else other
    result = verdict(reference, picks=picks)
    assert result.passed
    assert result.top1_agreement < 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_numbers_fail(value):
    reference = logits()
    last = reference[-1].clone()
    last[3] = value
    if value == -math.inf:
        last[:] = value
    with pytest.raises(NotFinite):
        verdict(reference, last=last)


def test_a_reference_that_is_no_number_fails():
    for value in (math.nan, 0.0):
        with pytest.raises(NotFinite):
            verdict(torch.full((NUM_STEPS, VOCAB), value))


# End to end: sabotaged runtimes, on real transformers models, in this process


class OnePositionLate(hf_static.HfStatic):
    def prefill(self, prompt):
        super().prefill(prompt)
        self.position.add_(1)


class ForgetfulCache(hf_eager.HfEager):
    """Every step decodes against the cache of one position fewer."""

    def step(self):
        self.cache.crop(-1)
        super().step()


class SecondBest(hf_eager.HfEager):
    """Right logits, wrong picks."""

    def _forward(self, ids, **options):
        super()._forward(ids, **options)
        self.token = self._last_logits[:, -1:].topk(VOCAB // 8).indices[..., -1]


class Stuck(hf_eager.HfEager):
    """Decodes its first token again and again, so that its time is of nothing."""

    def step(self):
        pass


def perturbed(model, trial):
    """The verdict's reference is this very model: perturb it only while it is timed."""
    runtime = hf_eager.HfEager(model)
    weight = model.model.layers[0].self_attn.v_proj.weight
    forward = runtime._forward

    def with_another_weight(ids, **options):
        weight.data.mul_(-1)
        try:
            forward(ids, **options)
        finally:
            weight.data.mul_(-1)

    runtime._forward = with_another_weight
    return runtime


SABOTAGED = {
    "one position late": lambda model, trial: OnePositionLate(
        model, hf_static.num_positions(trial) + 1
    ),
    "a forgetful cache": lambda model, trial: ForgetfulCache(model),
    "the second best": lambda model, trial: SecondBest(model),
    "stuck": lambda model, trial: Stuck(model),
    "another weight": perturbed,
}


@pytest.fixture
def strong_weights(monkeypatch):
    """Synthetic weights wide enough that position and context decide the logits."""
    from decodegap.measure.runtimes import hf_model

    monkeypatch.setattr(hf_model, "_SYNTHETIC_STD", 0.3)


@pytest.mark.parametrize("name", SABOTAGED)
def test_a_sabotaged_runtime_is_wrong(monkeypatch, strong_weights, name):
    monkeypatch.setattr(worker, "runtime_factory", lambda entry: SABOTAGED[name])
    report = worker.report_on(make_trial(), worker.LoadedModel())
    assert report.outcome == "wrong"
    assert "logits differ from the reference" in report.reason
    assert "\n" not in report.reason
    assert not report.measurement.verdict.passed
    assert len(report.measurement.timings["wall"]) == 3


@pytest.mark.parametrize("runtime", ["hf-eager", "hf-static"])
def test_the_honest_runtimes_are_right(strong_weights, runtime):
    report = worker.report_on(make_trial(runtime=runtime), worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    assert report.measurement.verdict.top1_agreement == 1.0


def test_a_time_below_the_floor_is_impossible():
    report = worker.report_on(make_trial(reachable_bytes_per_second=1.0), worker.LoadedModel())
    assert report.outcome == "impossible"
    assert "beats the reachable floor" in report.reason
    assert "--probe-again" in report.reason


def test_the_floor_a_time_is_held_against_is_the_traffic_over_the_bandwidth():
    trial = make_trial(reachable_bytes_per_second=1e9)
    num_bytes = step_traffic(trial.shape, trial.context, get_format("fp32")).bytes
    floor = num_bytes / 1e9
    assert worker.reachable_floor(trial) == floor
    assert worker.reachable_floor(make_trial()) is None
    assert worker.outcome_of(PASSED, [floor * 1.001, 1.0], trial) == ("ok", None)
    assert worker.outcome_of(PASSED, [floor * 0.999, 1.0], trial)[0] == "impossible"


def test_a_wrong_answer_is_wrong_before_it_is_impossible():
    failed = msgspec.structs.replace(PASSED, passed=False)
    trial = make_trial(reachable_bytes_per_second=1.0)
    assert worker.outcome_of(failed, [0.001], trial)[0] == "wrong"
