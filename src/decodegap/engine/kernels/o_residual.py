# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""`o_residual`: hidden += W · attended. Reference: `reference.o_residual`.

Also `down_residual`'s kernels: the two ops differ in shape alone. Whole rows where the vector fits
in registers, else blocks of columns.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from decodegap.engine.kernels.gemv import load_tile, long_rows, row_sums, start_rows
from decodegap.engine.kernels.launch import (
    check_matrix,
    check_vector,
    gemv_constants,
    gemv_grid,
    words,
)
from decodegap.engine.kernels.settings import GemvSettings


@triton.jit
def rows_residual_kernel(
    x_ptr,
    w_ptr,
    zero_ptr,
    hidden_ptr,
    N,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * TILES
    weights, low, high, _, zero = start_rows(
        x_ptr, x_ptr, w_ptr, zero_ptr, N, 0.0, 1, False,
        K, ROWS, TILES, BLOCK, EARLY, PDL,
    )  # fmt: skip
    for tile in tl.range(0, TILES, num_stages=1):
        ahead = load_tile(w_ptr, first + tile + 1, tile + 1 < TILES, N, 1, K, ROWS, BLOCK)
        # In place: only this program reads or writes these elements.
        rows = (first + tile) * ROWS + tl.arange(0, ROWS)
        residual = tl.load(hidden_ptr + rows, mask=rows < N, other=0.0).to(tl.float32)
        total = row_sums(weights, low, high, zero)
        tl.store(hidden_ptr + rows, residual + total, mask=rows < N)
        weights = ahead


@triton.jit
def long_residual_kernel(
    x_ptr,
    w_ptr,
    zero_ptr,
    hidden_ptr,
    N,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    total = long_rows(x_ptr, w_ptr, hidden_ptr, zero_ptr, N, K, ROWS, BLOCK, EARLY, PDL)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tl.store(hidden_ptr + rows, total, mask=rows < N)


def launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    zero: torch.Tensor,
    hidden: torch.Tensor,
    *,
    settings: GemvSettings,
    pdl: bool,
) -> Any:
    """x [K], weight [H, K], hidden [H], added to in place."""
    num_rows, columns = weight.shape
    check_matrix(weight, num_rows, columns, "weight")
    check_vector(x, columns, "x")
    check_vector(hidden, num_rows, "hidden")
    kernel = rows_residual_kernel if settings.block is None else long_residual_kernel
    return kernel[gemv_grid(settings, num_rows)](
        words(x), words(weight), zero, hidden, num_rows, **gemv_constants(settings, weight, pdl)
    )


def bytes_moved(weight: torch.Tensor) -> int:
    """The matrix, once."""
    return weight.numel() * weight.element_size()
