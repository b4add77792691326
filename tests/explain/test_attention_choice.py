"""What torch's own choice of attention kernel costs, from records of known times."""

import msgspec
import pytest

from builders import make_gpu_record, make_profile, make_record
from decodegap.explain.findings import Finding
from decodegap.explain.part import HOST_BEYOND, LAUNCH
from decodegap.explain.result import read_result

CUDNN, FLASH = "cudnn_generated_fort_native_sdpa_flash_fprop", "pytorch_flash::flash_fwd_kernel"
MS = 1e-3


def gpu_cell(runtime: str, steps: list[float], busy: float, kernel: str, **changes):
    """One record a step."""
    profile = make_profile({"gemm": busy / 2, kernel: busy / 2}, busy=busy)
    settings = {"runtime": runtime, "profile": profile} | changes
    return [make_gpu_record([step], **settings) for step in steps]


def auto(*steps: float, busy: float = 6 * MS, kernel: str = CUDNN, **changes):
    return gpu_cell("hf-eager", list(steps), busy, kernel, **changes)


def flash(*steps: float, busy: float = 6.5 * MS, **changes):
    return gpu_cell("hf-eager?sdpa=flash", list(steps), busy, FLASH, **changes)


def choices(*records) -> list[Finding]:
    return [found for found in read_result(records).findings if "own choice" in found.text]


def test_a_plan_for_every_length_is_host_work():
    """60 ms against 40: 20 ms saved; the device is busy 0.5 ms longer, so the host saves 20.5."""
    (found,) = choices(*auto(60 * MS), *flash(40 * MS))
    assert found.severity == "advice"
    assert found.cells == ("hf-eager at 16",)
    assert found.text == (
        "torch's own choice of attention kernel (cuDNN) takes 20.0 ms a step more than "
        "hf-eager?sdpa=flash: 20.5 ms host work, -500 µs device busy time"
    )
    assert found.hint == (
        "take hf-eager?sdpa=flash: cuDNN plans for every new KV length, and a growing cache has "
        "one each step"
    )


def test_the_same_from_another_library_is_not_laid_to_plans():
    (found,) = choices(*auto(60 * MS, kernel="fmha_cutlassF"), *flash(40 * MS))
    assert "cuDNN" not in found.text + found.hint
    assert "20.5 ms host work" in found.text
    assert found.hint.endswith("it costs the host less")


def test_cudnn_in_another_kernel_s_name_is_not_attention():
    records = auto(60 * MS, kernel="fmha_cutlassF")
    profile = make_profile({"cudnn_pointwise": MS, "fmha_cutlassF": MS}, busy=2 * MS)
    measurement = msgspec.structs.replace(records[0].measurement, profile=profile)
    record = msgspec.structs.replace(records[0], measurement=measurement)
    (found,) = choices(record, *flash(40 * MS))
    assert "cuDNN" not in found.text


def test_faster_kernels_are_device_time():
    (found,) = choices(*auto(60 * MS, busy=30 * MS), *flash(40 * MS, busy=12 * MS))
    assert "2.00 ms host work, 18.0 ms device busy time" in found.text
    assert found.hint.endswith("its kernels keep the device busy for less time")


def test_host_work_is_what_the_accounts_do_not_call_device_time():
    """Two accounts of one run differ in launch side and host work by what the finding says."""
    records = [
        *auto(60 * MS),
        *flash(40 * MS),
        *gpu_cell("hf-static", [20 * MS], 8 * MS, CUDNN),
        *gpu_cell("hf-graph", [9 * MS], 8 * MS, CUDNN, timings={"back_to_back": [8.5 * MS]}),
        *gpu_cell("hf-static?sdpa=flash", [20 * MS], 8 * MS, CUDNN),
        *gpu_cell(
            "hf-graph?sdpa=flash", [9 * MS], 8 * MS, CUDNN, timings={"back_to_back": [8.5 * MS]}
        ),
    ]
    cells = {cell.summary.key.runtime: cell for cell in read_result(records).cells}
    host = {
        name: sum(p.seconds for p in cell.account.parts if p.name in (LAUNCH, HOST_BEYOND))
        for name, cell in cells.items()
        if name.startswith("hf-eager")
    }
    assert host["hf-eager"] - host["hf-eager?sdpa=flash"] == pytest.approx(20.5 * MS)
    (found,) = choices(*records)
    assert "20.5 ms host work" in found.text


@pytest.mark.parametrize("step, num_found", [(44.5 * MS, 1), (43.5 * MS, 0), (30 * MS, 0)])
def test_a_tenth_is_the_least_worth_saying(step, num_found):
    assert len(choices(*auto(step), *flash(40 * MS))) == num_found


def test_the_fastest_of_several_kernels_is_advised():
    slower = gpu_cell("hf-eager?sdpa=math", [45 * MS], 9 * MS, "softmax")
    (found,) = choices(*slower, *auto(60 * MS), *flash(40 * MS))
    assert found.hint.startswith("take hf-eager?sdpa=flash")


@pytest.mark.parametrize(
    "others",
    [
        [],
        gpu_cell("hf-static?sdpa=math", [20 * MS], 9 * MS, "softmax"),
        gpu_cell("hf-graph", [9 * MS], 8 * MS, CUDNN),
        flash(40 * MS, context=32),
    ],
    ids=["alone", "a static cache", "another runtime", "another context"],
)
def test_only_a_sibling_that_names_its_kernel_shows_it(others):
    assert choices(*auto(60 * MS), *others) == []


def test_a_static_cache_has_one_length_and_no_finding():
    records = [
        *gpu_cell("hf-static", [60 * MS], 6 * MS, CUDNN),
        *gpu_cell("hf-static?sdpa=math", [40 * MS], 6 * MS, "softmax"),
    ]
    assert choices(*records) == []


def test_a_named_kernel_that_is_slow_is_no_choice_of_torch_s():
    slow = gpu_cell("hf-eager?sdpa=math", [60 * MS], 9 * MS, "softmax")
    assert choices(*slow, *flash(40 * MS)) == []


def test_trials_that_overlap_are_said_to():
    """Steps paced by the host vary more between processes than many a choice matters."""
    (found,) = choices(*auto(60 * MS, 62 * MS, 44 * MS), *flash(40 * MS, 41 * MS, 45 * MS))
    assert "trials of both overlap" in found.hint
    assert "decodegap compare" in found.hint
    (found,) = choices(*auto(60 * MS, 62 * MS, 46 * MS), *flash(40 * MS, 41 * MS, 45 * MS))
    assert "overlap" not in found.hint


def test_on_a_cpu_the_saving_is_said_and_not_split():
    records = [make_record([60 * MS]), make_record([40 * MS], runtime="hf-eager?sdpa=math")]
    (found,) = choices(*records)
    assert found.text == (
        "torch's own choice of attention kernel takes 20.0 ms a step more than hf-eager?sdpa=math"
    )
    assert found.hint == "take hf-eager?sdpa=math"


def seen(new: float, again: float) -> dict[str, list[float]]:
    return {"lengths_new": [new], "lengths_seen": [again]}


def new_lengths(*records) -> list[Finding]:
    return [found for found in read_result(records).findings if "being new" in found.text]


@pytest.mark.parametrize("kernel, whose", [(CUDNN, ": cuDNN's plans"), (FLASH, "")])
def test_a_step_that_is_mostly_new_length_is_said_to_be(kernel, whose):
    (found,) = new_lengths(*auto(60 * MS, kernel=kernel, probes=seen(60 * MS, 24 * MS)))
    assert (found.severity, found.cells) == ("advice", ("hf-eager at 16",))
    assert found.text == (
        f"60% of a step go into its KV length being new to the process{whose}; met a second time, "
        "a length costs none of it"
    )


def test_a_runtime_s_contexts_are_one_finding():
    (found,) = new_lengths(
        *auto(60 * MS, probes=seen(60 * MS, 24 * MS)),
        *auto(80 * MS, probes=seen(60 * MS, 18 * MS), context=32),
        *auto(80 * MS, probes=seen(60 * MS, 58 * MS), context=64),
    )
    assert found.cells == ("hf-eager at 16", "hf-eager at 32")
    assert found.text.startswith("60% to 70% of a step go into")


@pytest.mark.parametrize("again, num_found", [(53 * MS, 1), (55 * MS, 0), (61 * MS, 0)])
def test_a_tenth_of_a_step_is_worth_saying(again, num_found):
    assert len(new_lengths(*auto(60 * MS, probes=seen(60 * MS, again)))) == num_found


def test_it_comes_with_the_other_advice():
    severities = [f.severity for f in read_result([*auto(60 * MS), *flash(40 * MS)]).findings]
    assert severities == sorted(severities)
