"""Kernels by their real names."""

import pytest

from builders import make_profile
from decodegap.explain.kernels import (
    KINDS,
    kind_of,
    num_launches,
    same_kernels,
    seconds_by_kind,
)
from decodegap.record import KernelUse

# As torch's profiler printed them on an H200.
SEEN = {
    "nvjet_sm90_tst_192x8_64x8_4x1_v_bz_TNT": "linear",
    "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_bias_TNT": "linear",
    "void cublasLt::splitKreduce_kernel<32, 16, int, __nv_bfloat16>(...)": "linear",
    "void gemv2T_kernel_val<int, int, __nv_bfloat16>(...)": "linear",
    "void pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128>>(...)": "attention",
    "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::Params)": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3": "attention",
    "void cudnn::fusion::lean_reduction_kernel<false, false, false>(...)": "attention",
    "void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>(...)": "cache copies",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, ArgMaxOps>>": "sampling",
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu>": "norms and elementwise",
    "Memset (Device)": "norms and elementwise",
}


@pytest.mark.parametrize("name, kind", SEEN.items())
def test_kind_of_a_kernel_that_was_seen(name, kind):
    assert kind_of(name) == kind


def test_every_kernel_of_the_records_that_ship_has_a_kind():
    from pathlib import Path

    from decodegap.record_files import read_folder

    results = Path(__file__).parents[2] / "results"
    for record in read_folder(results)[0]:
        if record.measurement is not None and record.measurement.profile is not None:
            kernels = record.measurement.profile.kernels
            assert {kind_of(kernel.name) for kernel in kernels} <= set(KINDS)
            assert sum(seconds_by_kind(kernels).values()) == pytest.approx(
                sum(kernel.seconds for kernel in kernels)
            )


def test_seconds_by_kind_in_a_fixed_order():
    kernels = make_profile({"vectorized_mul": 1.0, "nvjet_a": 2.0, "gemv2T": 4.0}).kernels
    assert list(seconds_by_kind(kernels).items()) == [
        ("linear", 6.0),
        ("norms and elementwise", 1.0),
    ]


def use(name: str, count: float = 1.0, seconds: float = 1.0) -> KernelUse:
    return KernelUse(name=name, count=count, seconds=seconds)


def test_the_same_kernels_equally_often():
    assert same_kernels([use("a"), use("b")], [use("b", seconds=9.0), use("a")])
    assert not same_kernels([use("a")], [use("a", count=2.0)])
    assert not same_kernels([use("a")], [use("a"), use("b")])


def test_copies_and_fills_do_not_tell_two_runs_apart():
    assert same_kernels([use("a"), use("Memcpy DtoD (Device -> Device)")], [use("a")])
    assert same_kernels([use("a"), use("Memset (Device)")], [use("a")])


def test_launches_are_counted_with_their_repeats():
    assert num_launches([use("a", count=28.0), use("b", count=1.5)]) == 29.5
