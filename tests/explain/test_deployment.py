"""What to deploy for a control rate: known steps held against known budgets."""

import msgspec
import pytest

from builders import failed_record, make_environment, make_gpu_record, make_record, shape_of, tiny
from decodegap.explain.deployment import Deployment, Need, deployment
from decodegap.predict.catalogue import catalogue_devices, catalogue_shape
from decodegap.predict.device import Device
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import held_bytes, step_traffic
from decodegap.record import Record

MS = 1e-3
CONTEXT = make_record().trial.context
SHAPE = shape_of(tiny())
BF16, INT4 = get_format("bf16"), get_format("int4-g128")
H200 = catalogue_devices()["h200"]


def gpu_record(samples: list[float], **changes) -> Record:
    return make_gpu_record(samples, format="bf16", **changes)


def need(rate: float = 100.0, **changes) -> Need:
    return Need(**{"shape": SHAPE, "context": CONTEXT, "rate": rate, "margin": 0.1} | changes)


def plan(asked: Need, *records: Record, devices=(H200,), formats=(BF16,)) -> Deployment:
    found, errors = deployment(asked, records, devices, formats)
    assert errors == []
    return found


def answers(found: Deployment) -> dict[str, str]:
    return {one.summary.key.runtime: one.answer for one in found.candidates}


@pytest.mark.parametrize(
    "rate, tokens, margin, seconds",
    [(100, 1, 0.1, 9 * MS), (50, 4, 0.1, 4.5 * MS), (1, 1, 0.5, 0.5), (0.5, 2, 0.25, 0.75)],
)
def test_a_tick_is_shared_by_its_tokens_less_what_stays_free(rate, tokens, margin, seconds):
    asked = need(rate, num_tokens=tokens, margin=margin)
    assert asked.step_seconds == pytest.approx(seconds)


def test_the_99th_percentile_decides():
    """9 ms a step: one is always in time, one is late in a step of fifty, one is too slow."""
    found = plan(
        need(100),
        gpu_record([5 * MS] * 50, runtime="engine"),
        gpu_record([8 * MS] * 49 + [9.1 * MS], runtime="hf-graph"),
        gpu_record([10 * MS] * 50, runtime="hf-static"),
    )
    assert answers(found) == {"engine": "holds", "hf-graph": "late", "hf-static": "misses"}
    assert [one.late_share for one in found.candidates] == pytest.approx([0.0, 0.02, 1.0])
    assert found.holds


def test_a_step_as_long_as_it_may_be_is_in_time():
    assert answers(plan(need(100), gpu_record([9 * MS]))) == {"hf-eager": "holds"}


def test_a_shorter_context_proves_only_that_a_way_is_too_slow():
    found = plan(
        need(100, context=CONTEXT + 1),
        gpu_record([5 * MS], runtime="engine"),
        gpu_record([10 * MS], runtime="hf-static"),
    )
    assert answers(found) == {"engine": "unknown", "hf-static": "misses"}
    assert not found.holds
    (measured, _) = found.findings
    assert "is in time at context 16, the longest measured" in measured.text
    assert measured.hint == "measure it with --context 17"


def test_the_shortest_context_that_is_long_enough_answers():
    records = [
        gpu_record([seconds], context=context)
        for context, seconds in ((8, 3 * MS), (16, 6 * MS), (32, 12 * MS), (64, 24 * MS))
    ]
    for asked, context, answer in ((9, 16, "holds"), (17, 32, "misses"), (65, 64, "misses")):
        (one,) = plan(need(100, context=asked), *records).candidates
        assert (one.summary.key.context, one.answer) == (context, answer)


def test_of_several_runs_the_slowest_counts():
    fast, slow = gpu_record([5 * MS]), gpu_record([10 * MS], run="another")
    assert answers(plan(need(100), fast, slow)) == {"hf-eager": "misses"}


def test_only_the_model_asked_for_and_what_comes_into_question_answers():
    """A model is its shape: the name of its folder is no difference."""
    renamed = gpu_record([5 * MS])
    trial = renamed.trial
    shape = msgspec.structs.replace(trial.shape, name="elsewhere")
    renamed = msgspec.structs.replace(renamed, trial=msgspec.structs.replace(trial, shape=shape))
    other = gpu_record([5 * MS], config=tiny(num_hidden_layers=4))
    other_shape = shape_of(tiny(num_hidden_layers=4))
    other = msgspec.structs.replace(
        other, trial=msgspec.structs.replace(other.trial, shape=other_shape)
    )
    assert len(plan(need(100), renamed).candidates) == 1
    assert plan(need(100), other).candidates == ()
    assert plan(need(100, devices=("l4",)), renamed).candidates == ()
    assert len(plan(need(100, devices=("h200",)), renamed).candidates) == 1
    assert plan(need(100, formats=("fp16",)), renamed).candidates == ()


def test_the_slowest_memory_that_holds_is_to_be_deployed():
    """The H200 is faster still, and more than is needed."""
    l4 = make_environment(device_name="NVIDIA L4", driver="580.0")
    found = plan(
        need(100),
        gpu_record([2 * MS], runtime="engine"),
        gpu_record([7 * MS], runtime="engine", environment=l4, run="on an L4"),
        gpu_record([8 * MS], runtime="hf-graph", environment=l4, run="on an L4"),
        devices=[catalogue_devices()["l4"]],
    )
    (finding,) = found.findings
    assert finding.cells == ("engine, bf16, on NVIDIA L4 24GB",)
    assert "p99 7.00 ms of the 9.00 ms that a step may take, 22% to spare" in finding.text


def test_what_comes_nearest_is_named_where_nothing_holds():
    found = plan(need(1000), gpu_record([2 * MS], runtime="engine"), gpu_record([3 * MS]))
    assert not found.holds
    assert found.findings[0].cells == ("engine, bf16, on NVIDIA H200 SXM 141GB",)
    assert (
        "does not hold 1000 Hz: p99 2.00 ms, 2.22× what a step may take" in found.findings[0].text
    )


def test_a_cell_that_cannot_be_read_is_told_and_the_rest_answers():
    torch = make_environment(packages={"torch": "2.14.0"}, device_name="NVIDIA H200")
    records = [
        gpu_record([5 * MS]),
        gpu_record([5 * MS], environment=torch),
        gpu_record([5 * MS], runtime="engine"),
        failed_record("oom", "no room", runtime="hf-static"),
    ]
    found, errors = deployment(need(100), records, [H200], [BF16])
    assert answers(found) == {"engine": "holds"}
    (error,) = errors
    assert "a cell is left out" in str(error)


# What memory allows


def device(name: str, bandwidth: float | None, memory: int | None = None) -> Device:
    return Device(
        name=name,
        title=name.upper(),
        bandwidth_bytes_per_second=bandwidth,
        memory_bytes=memory,
        source="made up",
    )


QWEN = catalogue_shape("qwen2.5-7b")


def outlooks(asked: Need, *devices: Device, formats=(BF16,)):
    return {
        (o.device.name, o.format): o for o in plan(asked, devices=devices, formats=formats).outlooks
    }


def test_a_share_is_the_floor_of_the_budget():
    asked = need(100, shape=QWEN, context=2048)
    num_bytes = step_traffic(QWEN, 2048, BF16).bytes
    found = outlooks(asked, device("a", num_bytes / 9e-3), device("b", num_bytes / 18e-3))
    assert found["a", "bf16"].share == pytest.approx(1.0)
    assert found["b", "bf16"].share == pytest.approx(2.0)
    assert not found["b", "bf16"].is_possible


def test_a_device_without_room_is_no_way_however_fast():
    needed = held_bytes(QWEN, 2048, BF16)
    asked = need(1, shape=QWEN, context=2048)
    found = outlooks(asked, device("full", 1e15, needed), device("small", 1e15, needed - 1))
    assert found["full", "bf16"].is_possible
    assert not found["small", "bf16"].is_possible
    unknown = outlooks(asked, device("dark", None))["dark", "bf16"]
    assert (unknown.fits, unknown.share, unknown.is_possible) == (True, None, False)


def test_the_slowest_memory_in_reach_of_what_was_reached_is_named():
    """Nothing here has come nearer to its floor than 0.5, so 0.9 is not what to count on."""
    asked = need(100, shape=QWEN, context=2048)
    num_bytes = step_traffic(QWEN, 2048, BF16).bytes
    near, far = device("near", num_bytes / 8.1e-3), device("far", num_bytes / 3.6e-3)
    tiny_bytes = step_traffic(SHAPE, CONTEXT, BF16).bytes
    record = gpu_record([2 * tiny_bytes / 4.8e12])
    found = plan(asked, record, devices=[near, far])
    assert found.reached == pytest.approx(0.5)
    (finding,) = found.findings
    assert finding.cells == ("FAR",)
    assert "a runtime has to reach 0.40 of its floor in bf16" in finding.text
    assert finding.hint == (
        "measure it there: decodegap measure qwen2.5-7b --context 2048 --format bf16"
    )
    # With no record of anything, the floor itself is the limit.
    assert plan(asked, devices=[near, far]).findings[0].cells == ("NEAR",)
    assert plan(asked, record, devices=[near]).findings[0].cells == ("NEAR",)


def test_a_format_that_no_runtime_takes_is_not_to_be_measured():
    asked = need(100, shape=QWEN, context=2048)
    num_bytes = step_traffic(QWEN, 2048, INT4).bytes
    found = plan(asked, devices=[device("a", num_bytes / 5e-3)], formats=[BF16, INT4])
    assert "0.56 of its floor in int4-g128" in found.findings[0].text
    assert "decodegap grade" in found.findings[0].hint


def test_out_of_reach_is_said():
    (finding,) = plan(need(1e6, shape=QWEN, context=2048)).findings
    assert "is out of reach on each of these devices and formats" in finding.text
