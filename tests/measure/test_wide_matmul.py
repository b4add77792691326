"""On a CPU without instructions for 16-bit matrices prefill and verdict multiply in fp32."""

import pytest
import torch
import torch.nn.functional as F

from builders import make_trial, tiny
from decodegap.measure import wide_matmul, worker
from decodegap.measure.wide_matmul import NOTE, lacks_instructions, wide_where_slow


@pytest.fixture
def plain_cpu(monkeypatch) -> None:
    monkeypatch.setattr(wide_matmul.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")


@pytest.mark.parametrize(
    "machine, capability, dtype, device, lacks",
    [
        ("x86_64", "AVX2", torch.bfloat16, "cpu", True),
        ("x86_64", "AVX2", torch.float16, "cpu", True),
        ("x86_64", "DEFAULT", torch.bfloat16, "cpu", True),
        ("x86_64", "AVX512", torch.bfloat16, "cpu", False),
        ("x86_64", "AVX2", torch.float32, "cpu", False),
        ("x86_64", "AVX2", torch.bfloat16, "cuda:0", False),
        ("aarch64", "DEFAULT", torch.bfloat16, "cpu", False),
    ],
)
def test_where_products_are_slow(monkeypatch, machine, capability, dtype, device, lacks):
    monkeypatch.setattr(wide_matmul.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert lacks_instructions(dtype, device) == lacks


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("chunk", [1, 7 * 16, 1 << 20])
def test_a_linear_is_the_fp32_product_rounded(plain_cpu, monkeypatch, dtype, has_bias, chunk):
    monkeypatch.setattr(wide_matmul, "_CHUNK_ELEMENTS", chunk)
    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 23, bias=has_bias, dtype=dtype)
    given = torch.randn(2, 5, 16, dtype=dtype)
    bias = layer.bias.float() if has_bias else None
    expected = F.linear(given.float(), layer.weight.float(), bias)
    with torch.inference_mode(), wide_where_slow(dtype, "cpu"):
        found = layer(given)
    assert found.dtype == dtype
    assert torch.equal(found, expected.to(dtype))


def test_other_products_too_and_other_types_not(plain_cpu, monkeypatch):
    a, b = torch.randn(3, 4, 5, dtype=torch.bfloat16), torch.randn(3, 5, 6, dtype=torch.bfloat16)
    expected = (a.float() @ b.float()).to(torch.bfloat16)
    with wide_where_slow(torch.bfloat16, "cpu"):
        for found in (a @ b, torch.matmul(a, b), torch.bmm(a, b), a.matmul(b)):
            assert torch.equal(found, expected)
        wide = torch.randn(2, 2)
        assert torch.equal(wide @ wide, torch.mm(wide, wide))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    called = []
    monkeypatch.setitem(wide_matmul._WIDE, F.linear, called.append)
    with wide_where_slow(torch.bfloat16, "cpu"):
        torch.nn.Linear(4, 4, dtype=torch.bfloat16)(torch.ones(4, dtype=torch.bfloat16))
    assert called == []


def test_named_arguments_are_left_to_torch(plain_cpu):
    a = torch.randn(3, 3, dtype=torch.bfloat16)
    out = torch.empty_like(a)
    with wide_where_slow(torch.bfloat16, "cpu"):
        torch.matmul(a, a, out=out)
    assert torch.equal(out, torch.matmul(a, a))


@pytest.mark.parametrize("runtime", ["hf-eager", "hf-static", "engine"])
def test_every_runtime_of_a_cpu_is_judged_right(plain_cpu, runtime):
    trial = make_trial(tiny(head_dim=64), format="bf16", num_steps=3, runtime=runtime)
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)


def test_only_prefill_and_verdict_are_made_so(plain_cpu, monkeypatch):
    """The steps under the clock, and those of the interventions, are the runtime's own."""
    calls = []
    make = wide_matmul._WIDE[F.linear]

    def counted(*arguments):
        calls.append(arguments[0].shape)
        return make(*arguments)

    monkeypatch.setitem(wide_matmul._WIDE, F.linear, counted)
    during = {}
    for name in ("time_steps", "verdict_on", "profile_of"):
        run = getattr(worker, name)

        def noted(*arguments, name=name, run=run):
            before = len(calls)
            found = run(*arguments)
            during[name] = len(calls) - before
            return found

        monkeypatch.setattr(worker, name, noted)
    report = worker.report_on(make_trial(format="bf16", num_steps=3), worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    assert NOTE in report.measurement.notes
    prefill = calls[0]
    assert prefill[-2] == make_trial().context
    num_linears = 7 * make_trial().shape.num_layers + 1
    assert during == {"time_steps": 0, "verdict_on": num_linears, "profile_of": 0}
    assert len(calls) == 2 * num_linears


def test_elsewhere_there_is_nothing_to_note(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    report = worker.report_on(make_trial(format="bf16", num_steps=2), worker.LoadedModel())
    assert report.measurement.notes == ()
