# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""`norm_gate_up`: inner = silu(G · n) · (U · n), n = rms_norm(hidden). Reference:
`reference.norm_gate_up`.

G and U are stacked, gate first. A program takes `rows` / 2 gate rows and the up rows that belong
to them, so that silu and the product need no other program.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from decodegap.engine.kernels.gemv import load_tile, row_sums, start_rows
from decodegap.engine.kernels.launch import (
    check_matrix,
    check_vector,
    gemv_constants,
    gemv_grid,
    words,
)
from decodegap.engine.kernels.settings import GemvSettings


@triton.jit
def norm_gate_up_kernel(
    hidden_ptr,
    norm_ptr,
    w_ptr,
    zero_ptr,
    inner_ptr,
    epsilon,
    N,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    PAIRS: tl.constexpr = ROWS // 2
    first = tl.program_id(0) * TILES
    weights, low, high, factor, zero = start_rows(
        hidden_ptr, norm_ptr, w_ptr, zero_ptr, N, epsilon, 2, True,
        K, ROWS, TILES, BLOCK, EARLY, PDL,
    )  # fmt: skip
    for tile in tl.range(0, TILES, num_stages=1):
        ahead = load_tile(w_ptr, first + tile + 1, tile + 1 < TILES, N, 2, K, ROWS, BLOCK)
        total = row_sums(weights, low, high, zero) * factor
        gate, up = tl.split(tl.reshape(total, (PAIRS, 2)))
        out = (first + tile) * PAIRS + tl.arange(0, PAIRS)
        tl.store(inner_ptr + out, gate / (1.0 + tl.exp(-gate)) * up, mask=out < N)
        weights = ahead


def launch(
    hidden: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    zero: torch.Tensor,
    inner: torch.Tensor,
    *,
    epsilon: float,
    settings: GemvSettings,
    pdl: bool,
) -> Any:
    """hidden [H], norm [H], weight [2 I, H] gate then up, inner [I]. `settings.rows` is even."""
    assert settings.block is None, settings
    num_rows, columns = weight.shape
    check_matrix(weight, num_rows, columns, "weight")
    check_vector(hidden, columns, "hidden")
    check_vector(norm, columns, "norm")
    check_vector(inner, num_rows // 2, "inner")
    assert settings.rows % 2 == 0, settings
    constants = gemv_constants(settings, weight, pdl)
    return norm_gate_up_kernel[gemv_grid(settings, num_rows)](
        words(hidden),
        words(norm),
        words(weight),
        zero,
        inner,
        epsilon,
        num_rows // 2,
        **constants,
    )


def bytes_moved(weight: torch.Tensor) -> int:
    """Both matrices and the norm's weight, once."""
    return (weight.numel() + weight.shape[1]) * weight.element_size()
