"""Every kernel compiled ahead of time for every architecture we claim, without a GPU."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from decodegap.engine.kernels import (  # noqa: E402
    attend,
    embed,
    head,
    norm_gate_up,
    norm_qkv,
    o_residual,
)
from decodegap.engine.kernels.launch import gemv_constants  # noqa: E402
from decodegap.engine.kernels.settings import AttendSettings, GemvSettings  # noqa: E402

ARCHITECTURES = (80, 89, 90, 100, 120)
_LONG = GemvSettings(rows=4, block=1024, num_warps=4)
_WHOLE_ROWS = GemvSettings(rows=2, tiles=4, num_warps=8, early=True)
_ATTEND = AttendSettings(num_splits=16, block=64, num_warps=4, together=True)


def _cases(pdl: bool) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Kernel and constants, at the Qwen2.5-7B shape."""
    square, long = (torch.empty(8, k, dtype=torch.bfloat16) for k in (3584, 18944))
    whole_rows = gemv_constants(_WHOLE_ROWS, square, pdl)
    return {
        "embed": (embed.embed_kernel, {"BLOCK": 1024, "PDL": pdl, "num_warps": 4}),
        "norm_qkv": (norm_qkv.norm_qkv_kernel, {"BIAS": True, **whole_rows}),
        "attend": (
            attend.attend_kernel,
            attend.attend_constants(7, 128, True, _ATTEND, pdl),
        ),
        "rows_residual": (o_residual.rows_residual_kernel, whole_rows),
        "long_residual": (o_residual.long_residual_kernel, gemv_constants(_LONG, long, pdl)),
        "norm_gate_up": (norm_gate_up.norm_gate_up_kernel, whole_rows),
        "head": (head.head_kernel, {"SLOTS": head.NUM_SLOTS, **whole_rows}),
        "pick": (head.pick_kernel, {"SLOTS": head.NUM_SLOTS, "PDL": pdl, "num_warps": 4}),
    }


_POINTERS = {
    "token_ptr": "*i64",
    "position_ptr": "*i64",
    "best_ptr": "*i64",
    "arrivals_ptr": "*i32",
    "departures_ptr": "*i32",
    "zero_ptr": "*i32",
    **dict.fromkeys(("w_ptr", "x_ptr", "norm_ptr"), "*i32"),  # two bf16 a word
    **dict.fromkeys(
        ("logits_ptr", "cos_ptr", "sin_ptr", "partial_ptr", "maxima_ptr", "sums_ptr"), "*fp32"
    ),
}


def _signature(kernel: Any, constants: dict[str, Any]) -> dict[str, str]:
    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name.endswith("_ptr"):
            return _POINTERS.get(name, "*bf16")
        return "fp32" if name in ("epsilon", "scale") else "i32"

    return {name: kind(name) for name in kernel.arg_names}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", list(_cases(pdl=False)))
def test_kernel_compiles(name: str, architecture: int) -> None:
    pdl = architecture >= 90
    kernel, constants = _cases(pdl)[name]
    options = {key: constants.pop(key) for key in ("num_warps", "launch_pdl") if key in constants}
    signature = _signature(kernel, constants)
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(signature.values())
        if kind.startswith("*")
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    assert compiled.asm["cubin"]
    text = compiled.asm["ptx"]
    assert ("griddepcontrol.wait" in text) == pdl
    if name not in ("embed", "pick"):
        # The first block of weights, or of cached keys, is asked for before the wait.
        assert not pdl or "ld.global" in text.split("griddepcontrol.wait")[0]
