# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""`norm_qkv`: qkv = W · rms_norm(hidden) (+ bias). Reference: `reference.norm_qkv`."""

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
def norm_qkv_kernel(
    hidden_ptr,
    norm_ptr,
    w_ptr,
    zero_ptr,
    bias_ptr,
    qkv_ptr,
    epsilon,
    N,
    BIAS: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * TILES
    weights, low, high, factor, zero = start_rows(
        hidden_ptr, norm_ptr, w_ptr, zero_ptr, N, epsilon, 1, True,
        K, ROWS, TILES, BLOCK, EARLY, PDL,
    )  # fmt: skip
    for tile in tl.range(0, TILES, num_stages=1):
        ahead = load_tile(w_ptr, first + tile + 1, tile + 1 < TILES, N, 1, K, ROWS, BLOCK)
        rows = (first + tile) * ROWS + tl.arange(0, ROWS)
        if BIAS:
            bias = tl.load(bias_ptr + rows, mask=rows < N, other=0.0).to(tl.float32)
        total = row_sums(weights, low, high, zero) * factor
        if BIAS:
            total += bias
        tl.store(qkv_ptr + rows, total, mask=rows < N)
        weights = ahead


def launch(
    hidden: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    zero: torch.Tensor,
    bias: torch.Tensor | None,
    qkv: torch.Tensor,
    *,
    epsilon: float,
    settings: GemvSettings,
    pdl: bool,
) -> Any:
    """hidden [H], norm [H], weight [N, H], bias [N] or None, qkv [N]."""
    assert settings.block is None, settings
    num_rows, columns = weight.shape
    check_matrix(weight, num_rows, columns, "weight")
    check_vector(hidden, columns, "hidden")
    check_vector(norm, columns, "norm")
    check_vector(qkv, num_rows, "qkv")
    if bias is not None:
        check_vector(bias, num_rows, "bias")
    return norm_qkv_kernel[gemv_grid(settings, num_rows)](
        words(hidden),
        words(norm),
        words(weight),
        zero,
        weight if bias is None else bias,
        qkv,
        epsilon,
        num_rows,
        BIAS=bias is not None,
        **gemv_constants(settings, weight, pdl),
    )


def bytes_moved(weight: torch.Tensor, bias: torch.Tensor | None) -> int:
    """The matrix, its bias and the norm's weight, once."""
    rows, columns = weight.shape
    return (rows * columns + columns + (0 if bias is None else rows)) * weight.element_size()
