"""The account closes: its parts and the residual are the step, whatever was measured. And where the
causes are known beforehand, it names them."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    failed_record,
    make_gpu_record,
    make_profile,
    make_record,
    make_trial,
)
from decodegap.explain.account import Account, account_for
from decodegap.explain.part import (
    ATTENTION,
    FLOOR,
    GAPS,
    HOST,
    HOST_BEYOND,
    LAUNCH,
    LINEAR,
    NEW_LENGTHS,
    SYNCHRONISE,
)
from decodegap.explain.result import device_of, read_result
from decodegap.explain.summary import summarise
from decodegap.measure import worker
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import step_traffic
from decodegap.record import new_id

GEMM, FLASH, CAT, MUL = "nvjet_gemm", "flash_fwd_kernel", "CatArrayBatchedCopy", "mul_kernel"
PROBES = ("linears", "no_attention", "twin", "twin_linears")

seconds = st.floats(1e-7, 1.0)
maybe_seconds = st.none() | seconds


def assert_closes(account: Account) -> None:
    values = [*(part.seconds for part in account.parts), account.residual]
    largest = max(map(abs, [*values, account.step]))
    assert math.fsum(values) == pytest.approx(account.step, abs=1e-13 * largest)
    assert account.parts[0].name == FLOOR
    names = [part.name for part in account.parts]
    assert len(set(names)) == len(names)


def summary_of(*records):
    return summarise(records, device_of(records))


def assert_advises(words: str, account: Account) -> None:
    assert len([note for note in account.notes if words in note]) == 1, account.notes


def parts_of(account: Account) -> dict[str, float]:
    return {part.name: part.seconds for part in account.parts}


def bytes_of(record) -> tuple[int, int]:
    """(all but the cache's, the cache's) of a record's step."""
    trial = record.trial
    flows = step_traffic(trial.shape, trial.context, get_format(trial.format)).flows
    cache = sum(flow.bytes for flow in flows if flow.tensor.startswith("kv_cache"))
    return sum(flow.bytes for flow in flows) - cache, cache


# On a CPU


@given(seconds, st.fixed_dictionaries(dict.fromkeys(PROBES, maybe_seconds)))
def test_a_cpu_account_closes_whatever_was_probed(step, probes):
    given_probes = {name: [value] for name, value in probes.items() if value is not None}
    account = account_for(summary_of(make_record([step], probes=given_probes)), {})
    assert_closes(account)
    assert account.step == step


def test_a_cpu_account_of_known_causes():
    """At 50 GB/s: linears take 2 ms above their bytes, attention 1, the host 3, the rest 4."""
    weights, cache = (num_bytes / 50e9 for num_bytes in bytes_of(make_record()))
    linears, attention, host, rest = weights + 2e-3, cache + 1e-3, 3e-3, 4e-3
    step = linears + attention + host + rest
    probes = {
        "linears": [linears],
        "no_attention": [step - attention],
        "twin": [host + 0.5e-3],
        "twin_linears": [0.5e-3],
    }
    account = account_for(summary_of(make_record([step], probes=probes)), {})
    assert parts_of(account) == {
        FLOOR: pytest.approx(weights + cache),
        LINEAR: pytest.approx(2e-3),
        ATTENTION: pytest.approx(1e-3),
        HOST: pytest.approx(3e-3),
    }
    assert account.residual == pytest.approx(4e-3)
    assert account.notes == ()


def test_what_was_not_probed_stays_in_the_residual_and_is_said():
    account = account_for(summary_of(make_record([0.01])), {})
    assert list(parts_of(account)) == [FLOOR]
    assert account.residual == pytest.approx(0.01 - parts_of(account)[FLOOR])
    assert len(account.notes) == 1


def test_without_a_reachable_floor_there_is_no_account():
    record = make_record(trial=make_trial())
    assert account_for(summary_of(record), {}) is None


@pytest.mark.parametrize("runtime", ["hf-eager", "hf-static"])
def test_an_account_of_a_real_cpu_trial_closes_and_has_every_part(runtime):
    trial = make_trial(runtime=runtime, num_steps=5, probes=True, reachable_bytes_per_second=50e9)
    report = worker.report_on(trial, worker.LoadedModel())
    record = msgspec.structs.replace(
        make_record(trial=trial),
        measurement=report.measurement,
        environment=report.environment,
        outcome=report.outcome,
    )
    (cell,) = read_result([record]).cells
    assert_closes(cell.account)
    assert list(parts_of(cell.account)) == [FLOOR, LINEAR, ATTENTION, HOST]


# On a GPU


def profiled(runtime: str, step: float, kernels: dict[str, float], busy: float, replay=None):
    timings = {} if replay is None else {"back_to_back": [replay]}
    profile = make_profile(kernels, busy=busy, wall=2 * step)
    return make_gpu_record([step], runtime=runtime, timings=timings, profile=profile)


def accounts(*records) -> dict[str, Account]:
    return {cell.summary.key.runtime: cell.account for cell in read_result(records).cells}


@st.composite
def gpu_records(draw, runtime):
    names = draw(st.lists(st.sampled_from([GEMM, FLASH, CAT, MUL]), unique=True))
    kernels = {name: draw(seconds) for name in names}
    record = profiled(runtime, draw(seconds), kernels, draw(seconds), draw(maybe_seconds))
    if draw(st.integers(0, 3)) == 0:
        measurement = msgspec.structs.replace(record.measurement, profile=None)
        record = msgspec.structs.replace(record, measurement=measurement)
    return record


@given(
    eager=st.none() | gpu_records("hf-eager"),
    static=st.none() | gpu_records("hf-static"),
    graph=st.none() | gpu_records("hf-graph"),
    asked=st.none() | gpu_records("hf-eager?sdpa=math"),
    replayed=st.none() | gpu_records("hf-graph?sdpa=math"),
)
def test_gpu_accounts_close_whatever_ran_beside(eager, static, graph, asked, replayed):
    records = [record for record in (eager, static, graph, asked, replayed) if record is not None]
    for account in accounts(*records).values():
        assert_closes(account)


WEIGHTS, CACHE = (num_bytes / 4.5e12 for num_bytes in bytes_of(make_gpu_record()))
STATIC_KERNELS = {GEMM: WEIGHTS + 5e-3, FLASH: CACHE + 2e-3, MUL: 1e-3}
EAGER_KERNELS = {**STATIC_KERNELS, CAT: 3e-3}
BUSY_STATIC, BUSY_EAGER = sum(STATIC_KERNELS.values()), sum(EAGER_KERNELS.values())
GAP, WAIT, LAUNCHES, HOST_WORK = 0.4e-3, 0.1e-3, 6e-3, 20e-3
REPLAY = BUSY_STATIC + GAP
GRAPH_STEP = REPLAY + WAIT
STATIC_STEP = GRAPH_STEP + LAUNCHES
# The host sets the pace of both: what the device has more to do passes under the launches.
EAGER_STEP = STATIC_STEP + HOST_WORK

GRAPH = profiled("hf-graph", GRAPH_STEP, STATIC_KERNELS, BUSY_STATIC, REPLAY)
STATIC = profiled("hf-static", STATIC_STEP, STATIC_KERNELS, BUSY_STATIC, STATIC_STEP)
EAGER = profiled("hf-eager", EAGER_STEP, EAGER_KERNELS, BUSY_EAGER, EAGER_STEP)

KERNEL_PARTS = {
    FLOOR: WEIGHTS + CACHE,
    LINEAR: 5e-3,
    ATTENTION: 2e-3,
    "norms and elementwise (kernels)": 1e-3,
}
REPLAY_PARTS = {GAPS: GAP, SYNCHRONISE: WAIT}
KNOWN = {
    "hf-graph": {**KERNEL_PARTS, **REPLAY_PARTS},
    "hf-static": {**KERNEL_PARTS, **REPLAY_PARTS, LAUNCH: LAUNCHES},
    "hf-eager": {
        **KERNEL_PARTS,
        **REPLAY_PARTS,
        "cache copies (kernels)": BUSY_EAGER - BUSY_STATIC,
        LAUNCH: LAUNCHES - (BUSY_EAGER - BUSY_STATIC),
        HOST_BEYOND: HOST_WORK,
    },
}


@pytest.mark.parametrize("runtime", KNOWN)
def test_gpu_accounts_of_known_causes(runtime):
    account = accounts(EAGER, STATIC, GRAPH)[runtime]
    assert parts_of(account) == pytest.approx(KNOWN[runtime])
    assert account.residual == pytest.approx(0, abs=1e-12)


def test_gaps_below_zero_are_explained():
    """The profiler can slow the kernels themselves, by more than the gaps between them."""
    slowed = profiled("hf-graph", GRAPH_STEP, STATIC_KERNELS, 1.02 * REPLAY, REPLAY)
    for runtime, account in accounts(EAGER, STATIC, slowed).items():
        assert parts_of(account)[GAPS] == pytest.approx(-0.02 * REPLAY), runtime
        assert_advises("the kernels of hf-graph took 2.0% longer than a whole", account)
    for account in accounts(*(EAGER, STATIC, GRAPH)).values():
        assert not any("below zero" in note for note in account.notes)


def test_a_compiled_step_is_a_replay_too():
    compiled = profiled("hf-compile", GRAPH_STEP, STATIC_KERNELS, BUSY_STATIC, REPLAY)
    for beside in ((), (STATIC, GRAPH)):
        account = accounts(compiled, *beside)["hf-compile"]
        assert_advises("what torch.compile checks before each replay", account)
        assert parts_of(account) == pytest.approx(KNOWN["hf-graph"])
        assert account.residual == pytest.approx(0, abs=1e-12)


def test_kernels_may_be_listed_by_a_trial_that_is_run_for_nothing_else():
    """As where a process makes a round: timed trials run no profiler."""
    timed = [
        msgspec.structs.replace(
            record, measurement=msgspec.structs.replace(record.measurement, profile=None)
        )
        for record in (EAGER, STATIC, GRAPH)
    ]
    listed = [untimed(record) for record in (EAGER, STATIC, GRAPH)]
    for runtime, account in accounts(*timed, *listed).items():
        assert parts_of(account) == pytest.approx(KNOWN[runtime])
    assert accounts(*timed)["hf-graph"].notes == ("no trial has a kernel profile",)


def met_again(record, *pairs: tuple[float, float]):
    """The record with steps over new lengths and over lengths it has seen, in turn."""
    new, seen = ([*steps] for steps in zip(*pairs, strict=True))
    probes = {"lengths_new": new, "lengths_seen": seen}
    measurement = msgspec.structs.replace(record.measurement, probes=probes)
    return msgspec.structs.replace(record, measurement=measurement)


def test_what_a_new_length_costs_is_taken_out_of_host_work():
    eager = met_again(EAGER, (40e-3, 30e-3))
    account = accounts(eager, STATIC, GRAPH)["hf-eager"]
    new = EAGER_STEP / 4
    assert parts_of(account) == pytest.approx(
        {**KNOWN["hf-eager"], NEW_LENGTHS: new, HOST_BEYOND: HOST_WORK - new}
    )
    assert account.residual == pytest.approx(0, abs=1e-12)
    assert_advises("a cache kept another way, more launches, what the processes differ by", account)


def in_turn(record, *turns: tuple[float, float, float]):
    """The record with steps over new lengths, over seen ones and with a static cache, in turn."""
    record = met_again(record, *((new, seen) for new, seen, _ in turns))
    probes = record.measurement.probes | {"static_cache": [static for *_, static in turns]}
    measurement = msgspec.structs.replace(record.measurement, probes=probes)
    return msgspec.structs.replace(record, measurement=measurement)


@pytest.mark.parametrize("pace", [1.0, 1.5])
def test_a_static_step_in_turn_takes_the_pace_of_the_host_out_of_host_work(pace):
    """Between the eager cell and the static one the host may slow down; what takes turns slows
    alike, so host work is what it was, and the launch side belongs to the eager step."""
    static = STATIC_STEP / EAGER_STEP
    eager = in_turn(EAGER, (40e-3, 30e-3, static * 40e-3), (80e-3, 60e-3, static * 80e-3))
    elsewhere = profiled("hf-static", STATIC_STEP * pace, STATIC_KERNELS, BUSY_STATIC)
    found = accounts(eager, elsewhere, GRAPH)
    account, new = found["hf-eager"], EAGER_STEP / 4
    assert parts_of(account) == pytest.approx(
        {**KNOWN["hf-eager"], NEW_LENGTHS: new, HOST_BEYOND: HOST_WORK - new}
    )
    assert account.residual == pytest.approx(0, abs=1e-12)
    (launch,) = (part for part in account.parts if part.name == LAUNCH)
    assert launch.basis == "hf-static in turn − hf-graph at this device time"
    assert_advises("hf-eager launches 1 kernel more than hf-static, and the host", account)
    assert "processes differ" not in " ".join(account.notes)
    # hf-static's own account is of its own step.
    assert parts_of(found["hf-static"])[LAUNCH] == pytest.approx(STATIC_STEP * pace - GRAPH_STEP)


def test_less_device_time_leaves_more_of_the_launches_uncovered():
    """The host paces both steps, so what the eager one spares the device is no gain: its host work
    is still the whole difference, and more of its launches stand alone."""
    spared = 1.5e-3
    kernels = {**STATIC_KERNELS, FLASH: STATIC_KERNELS[FLASH] - spared}
    eager = profiled("hf-eager", EAGER_STEP, kernels, BUSY_STATIC - spared)
    account = accounts(eager, STATIC, GRAPH)["hf-eager"]
    parts = parts_of(account)
    assert parts[LAUNCH] == pytest.approx(LAUNCHES + spared)
    assert parts[HOST_BEYOND] == pytest.approx(HOST_WORK)
    assert account.residual == pytest.approx(0, abs=1e-12)
    assert_advises("launches as many kernels as hf-static", account)


@pytest.mark.parametrize("extra", [3e-3, -1.5e-3])
def test_where_the_device_sets_the_pace_its_time_is_no_host_work(extra):
    """A slow GPU: a static step hardly longer than its replay. What the eager one runs more or less
    on the device is in the difference of the steps, and is not called host work."""
    hidden, host = 0.05 * GRAPH_STEP, 1e-3
    static = profiled("hf-static", GRAPH_STEP + hidden, STATIC_KERNELS, BUSY_STATIC)
    kernels = {**STATIC_KERNELS, FLASH: STATIC_KERNELS[FLASH] + extra}
    step = GRAPH_STEP + hidden + extra + host
    eager = profiled("hf-eager", step, kernels, BUSY_STATIC + extra)
    account = accounts(eager, static, GRAPH)["hf-eager"]
    parts = parts_of(account)
    assert (parts[LAUNCH], parts[HOST_BEYOND]) == pytest.approx((hidden, host))
    assert account.residual == pytest.approx(0, abs=1e-12)
    assert_advises("and their device time is taken out", account)


def test_no_more_of_the_launches_is_covered_than_there_is():
    extra = 2 * LAUNCHES
    kernels = {**STATIC_KERNELS, FLASH: STATIC_KERNELS[FLASH] + extra}
    eager = profiled("hf-eager", EAGER_STEP, kernels, BUSY_STATIC + extra)
    parts = parts_of(accounts(eager, STATIC, GRAPH)["hf-eager"])
    assert (parts[LAUNCH], parts[HOST_BEYOND]) == pytest.approx((0, HOST_WORK - LAUNCHES))


def test_without_a_profile_of_the_static_step_host_work_is_not_separated():
    blind = msgspec.structs.replace(
        STATIC, measurement=msgspec.structs.replace(STATIC.measurement, profile=None)
    )
    account = accounts(EAGER, blind, GRAPH)["hf-eager"]
    assert parts_of(account)[LAUNCH] == pytest.approx(LAUNCHES)
    assert HOST_BEYOND not in parts_of(account)
    assert_advises("no kernel profile of hf-static in this run: host work", account)
    assert_closes(account)


def test_alone_a_new_length_is_told_apart_and_nothing_else_is():
    account = accounts(met_again(EAGER, (40e-3, 30e-3)))["hf-eager"]
    assert parts_of(account)[NEW_LENGTHS] == pytest.approx(EAGER_STEP / 4)
    assert HOST_BEYOND not in parts_of(account)
    assert_closes(account)


def test_a_host_that_slows_down_for_a_while_is_not_in_a_new_length_s_cost():
    """Pairs in a slow phase save as large a share; one that a phase begins in does not count."""
    phases = [(40e-3, 30e-3), (40e-3, 60e-3), (80e-3, 60e-3), (80e-3, 60e-3), (40e-3, 30e-3)]
    slow = make_gpu_record([0.100], runtime="hf-eager")
    other = met_again(make_gpu_record([0.060], runtime="hf-eager"), (90e-3, 45e-3))
    records = met_again(make_gpu_record([0.040], runtime="hf-eager"), *phases), slow, other
    assert summary_of(*records).new_length_seconds == pytest.approx(0.060 * (0.25 + 0.50) / 2)
    assert summary_of(slow).new_length_seconds is None


def untimed(record):
    """The record as of a trial without timed steps."""
    measurement = msgspec.structs.replace(record.measurement, timings={"warmup": [1.0], "wall": []})
    num_warmup = record.trial.num_warmup + record.trial.num_steps
    trial = msgspec.structs.replace(record.trial, num_warmup=num_warmup, num_steps=0)
    return msgspec.structs.replace(record, id=new_id(), trial=trial, measurement=measurement)


def test_alone_a_runtime_keeps_what_only_others_can_tell_apart():
    account = accounts(STATIC)["hf-static"]
    assert parts_of(account) == pytest.approx(KERNEL_PARTS)
    assert account.residual == pytest.approx(GAP + WAIT + LAUNCHES)
    assert "not separated" in account.residual_name
    assert_advises("run hf-graph beside it to separate", account)
    assert_advises("run hf-static and hf-graph beside it to", accounts(EAGER)["hf-eager"])


def test_eager_beside_the_graph_alone_is_not_split_further():
    """Without hf-static, launching and host work cannot be told apart."""
    account = accounts(EAGER, GRAPH)["hf-eager"]
    assert {LAUNCH, HOST_BEYOND}.isdisjoint(parts_of(account))
    assert_advises("run hf-static beside it to separate", account)


def test_a_graph_without_a_profile_separates_nothing():
    measurement = msgspec.structs.replace(GRAPH.measurement, profile=None)
    blind = msgspec.structs.replace(GRAPH, measurement=measurement)
    account = accounts(EAGER, STATIC, blind)["hf-eager"]
    assert {GAPS, LAUNCH, HOST_BEYOND}.isdisjoint(parts_of(account))
    assert_advises("no kernel profile of hf-graph", account)


# Options: each attention kernel is split against arms that run the same


def with_option(record, option: str, slower: float = 1.0):
    """The record as one of its runtime's with an option; all of its times `slower`."""
    measurement, profile = record.measurement, record.measurement.profile
    kernels = {kernel.name: slower * kernel.seconds for kernel in profile.kernels}
    timings = measurement.timings
    replay = [slower * seconds for seconds in timings["back_to_back"]]
    return make_gpu_record(
        [slower * seconds for seconds in timings["wall"]],
        runtime=f"{record.trial.runtime}?{option}",
        timings={"back_to_back": replay},
        profile=make_profile(
            kernels, busy=slower * profile.busy_seconds, wall=slower * profile.wall_seconds
        ),
    )


PLAIN = (EAGER, STATIC, GRAPH)
MATH = tuple(with_option(record, "sdpa=math", slower=3.0) for record in PLAIN)


@pytest.mark.parametrize("runtime", KNOWN)
def test_a_runtime_with_an_option_is_split_against_those_with_the_same(runtime):
    """All that math does takes three times as long; the plain arms of the run are not its."""
    found = accounts(*PLAIN, *MATH)
    parts = parts_of(found[f"{runtime}?sdpa=math"])
    for name in (GAPS, SYNCHRONISE, LAUNCH, HOST_BEYOND):
        known = KNOWN[runtime].get(name)
        assert parts.get(name) == (None if known is None else pytest.approx(3 * known))
    assert parts_of(found[runtime]) == pytest.approx(KNOWN[runtime])
    assert found[f"{runtime}?sdpa=math"].residual == pytest.approx(0, abs=1e-12)


def test_products_that_are_attention_s_are_said_to_count_as_linears():
    for runtime, account in accounts(*PLAIN, *MATH).items():
        said = [note for note in account.notes if "plain matrix products" in note]
        assert len(said) == ("math" in runtime)


def test_the_screen_says_which_arms_were_subtracted():
    account = accounts(*MATH)["hf-eager?sdpa=math"]
    bases = {part.name: part.basis for part in account.parts}
    assert bases[LAUNCH] == "hf-static?sdpa=math − hf-graph?sdpa=math at this device time"
    assert bases[HOST_BEYOND].startswith("hf-eager?sdpa=math − hf-static?sdpa=math")
    assert_advises("hf-static?sdpa=math and hf-graph?sdpa=math launch the same kernels", account)


@pytest.mark.parametrize("beside", [(), PLAIN, (*PLAIN, MATH[2])], ids=["alone", "plain", "math"])
def test_without_arms_of_its_own_option_the_time_stays_in_the_residual(beside):
    flash = with_option(EAGER, "sdpa=flash")
    account = accounts(*beside, flash)["hf-eager?sdpa=flash"]
    assert {GAPS, SYNCHRONISE, LAUNCH, HOST_BEYOND}.isdisjoint(parts_of(account))
    uncovered = LAUNCHES - (BUSY_EAGER - BUSY_STATIC)
    assert account.residual == pytest.approx(GAP + WAIT + uncovered + HOST_WORK)
    assert_advises("run hf-static?sdpa=flash and hf-graph?sdpa=flash beside it to", account)
    assert_closes(account)


def test_a_plain_runtime_is_not_split_against_arms_with_an_option():
    account = accounts(EAGER, *MATH)["hf-eager"]
    assert {GAPS, LAUNCH, HOST_BEYOND}.isdisjoint(parts_of(account))
    assert_advises("run hf-static and hf-graph beside it to", account)


def test_arms_that_were_tried_and_could_not_run_are_not_advised_again():
    """On a GPU torch's flash attention takes no mask, and a static cache needs one."""
    refused = [
        failed_record("unavailable", "no kernel", trial=arm.trial)
        for arm in (with_option(STATIC, "sdpa=flash"), with_option(GRAPH, "sdpa=flash"))
    ]
    account = accounts(*PLAIN, with_option(EAGER, "sdpa=flash"), *refused)["hf-eager?sdpa=flash"]
    assert_advises(
        "hf-static?sdpa=flash ended unavailable and hf-graph?sdpa=flash ended unavailable", account
    )
    assert not any("beside it" in note for note in account.notes)


def test_an_arm_refused_at_another_context_was_not_tried_here():
    elsewhere = failed_record(
        "oom", "no room", trial=msgspec.structs.replace(STATIC.trial, context=17)
    )
    assert_advises("run hf-static beside it", accounts(EAGER, GRAPH, elsewhere)["hf-eager"])


def test_the_graph_needs_nobody():
    assert parts_of(accounts(GRAPH)["hf-graph"]) == pytest.approx(KNOWN["hf-graph"])


def test_it_is_said_whether_the_same_kernels_ran():
    (note,) = [n for n in accounts(STATIC, GRAPH)["hf-static"].notes if "same kernels" in n]
    assert "launch the same kernels, equally often" in note
    other = profiled("hf-graph", GRAPH_STEP, {GEMM: 1e-3}, 1e-3, REPLAY)
    (note,) = [n for n in accounts(STATIC, other)["hf-static"].notes if "same kernels" in n]
    assert "do not launch the same kernels" in note


def test_the_profiler_s_inflation_is_said():
    notes = " ".join(accounts(GRAPH)["hf-graph"].notes)
    assert "2.00× as long" in notes
    assert "3 kernels a step" in notes


def test_another_context_or_run_is_not_the_other_arm():
    other = msgspec.structs.replace(GRAPH.trial, context=17)
    account = accounts(STATIC, msgspec.structs.replace(GRAPH, trial=other))["hf-static"]
    assert LAUNCH not in parts_of(account)


def test_without_a_profile_nothing_is_split():
    account = accounts(make_gpu_record([0.01]))["hf-eager"]
    assert list(parts_of(account)) == [FLOOR]
    assert account.residual_name == "not split"


# The engine: each op left out in turn


OPS = ("embed", "norm_qkv", "attend", "o_residual", "norm_gate_up", "down_residual", "head")


@given(
    st.sampled_from(["without_", "replay_without_"]),
    seconds,
    st.dictionaries(st.sampled_from((*OPS, "nothing")), seconds, min_size=1),
    maybe_seconds,
)
def test_an_engine_account_closes(prefix, step, without, replay):
    probes = {f"{prefix}{op}": [value] for op, value in without.items()}
    timings = {} if replay is None else {"back_to_back": [replay]}
    account = account_for(summary_of(make_gpu_record([step], probes=probes, timings=timings)), {})
    assert_closes(account)


def test_an_op_costs_what_replays_gain_without_it():
    """A step of 10 ms, 9 ms back to back, 2 ms of them the attention's: those of its bytes come
    off, and the wait is what the replays leave."""
    probes = {"replay_without_nothing": [0.009], "replay_without_attend": [0.007]}
    timings = {"back_to_back": [0.009]}
    record = make_gpu_record([0.010], runtime="engine", probes=probes, timings=timings)
    summary = summary_of(record)
    parts = parts_of(account_for(summary, {}))
    kv_seconds = summary.traffic.bytes_by_op()["attend"] / 4.5e12
    assert parts["attend above its bytes"] == pytest.approx(0.002 - kv_seconds)
    assert parts[SYNCHRONISE] == pytest.approx(0.001)


def test_waited_for_ops_without_a_whole_step_are_said_to_read_low():
    record = make_gpu_record([0.010], runtime="engine", probes={"without_attend": [0.009]})
    account = account_for(summary_of(record), {})
    assert "read too low" in account.notes[0]


def test_an_engine_without_probes_is_not_split_against_what_it_does_not_run():
    kernels = {"gemm": 1e-3, "flash_fwd": 1e-3}
    record = profiled("engine", 3.5e-3, kernels, 3.4e-3, 3.45e-3)
    account = accounts(record, STATIC, GRAPH)["engine"]
    assert list(parts_of(account)) == [FLOOR]
    assert account.residual_name == "not split"
    assert_advises("measure it without --no-probes", account)


def test_options_that_transformers_arms_do_not_have_are_not_asked_of_them():
    kernels = {"SinglePrefillWithKVCacheKernel_attention": 2e-3, "gemm": WEIGHTS + 5e-3}
    record = profiled("flashinfer?tensor_cores=on", STATIC_STEP, kernels, BUSY_STATIC)
    assert_advises(
        "run hf-static and hf-graph beside it to", accounts(record)["flashinfer?tensor_cores=on"]
    )
    beside = accounts(record, STATIC, GRAPH)["flashinfer?tensor_cores=on"]
    assert parts_of(beside)[LAUNCH] == pytest.approx(LAUNCHES)


@pytest.mark.parametrize(
    "probes, name",
    [
        ({}, "linears, attention, host work, cache copies, norms, elementwise"),
        ({"linears": [0.004]}, "attention, host work, cache copies, norms, elementwise"),
    ],
)
def test_a_cpu_residual_names_what_was_not_told_apart(probes, name):
    account = account_for(summary_of(make_record([0.01], probes=probes)), {})
    assert account.residual_name == name


# The records that ship


def test_accounts_of_the_records_that_ship_close():
    from pathlib import Path

    from decodegap.explain.result import group_by_run
    from decodegap.record_files import read_folder

    records, _ = read_folder(Path(__file__).parents[2] / "results")
    found = [
        cell.account for run in group_by_run(records).values() for cell in read_result(run).cells
    ]
    assert found
    for account in found:
        assert_closes(account)
