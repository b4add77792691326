# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""`head`: logits = W · rms_norm(hidden), and the greedy pick. Reference: `reference.head`.

Each program folds its best logit into one of `NUM_SLOTS` 64-bit keys by an atomic maximum; a last
one-program kernel takes the best of those, writes the token, moves the position on and clears the
keys. A key is the logit's bits in an order that integers share, over the complement of its row, so
equal logits go to the lowest token, as argmax does.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from decodegap.engine.kernels.gemv import load_tile, row_sums, start_rows
from decodegap.engine.kernels.launch import (
    check_matrix,
    check_vector,
    gemv_constants,
    gemv_grid,
    launch_options,
    words,
)
from decodegap.engine.kernels.settings import GemvSettings

# Atomics to one address are served one after another; spread over this many they never queue.
NUM_SLOTS = 128


@triton.jit
def head_kernel(
    hidden_ptr,
    norm_ptr,
    w_ptr,
    zero_ptr,
    logits_ptr,
    best_ptr,
    epsilon,
    N,
    SLOTS: tl.constexpr,
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
    best = tl.full((ROWS,), -0x7FFFFFFFFFFFFFFF, tl.int64)
    for tile in tl.range(0, TILES, num_stages=1):
        ahead = load_tile(w_ptr, first + tile + 1, tile + 1 < TILES, N, 1, K, ROWS, BLOCK)
        total = row_sums(weights, low, high, zero) * factor
        rows = (first + tile) * ROWS + tl.arange(0, ROWS)
        tl.store(logits_ptr + rows, total, mask=rows < N)
        best = tl.where(rows < N, tl.maximum(best, _sort_key(total, rows)), best)
        weights = ahead
    slot = best_ptr + tl.program_id(0) % SLOTS
    tl.atomic_max(slot, tl.max(best, axis=0), sem="relaxed")


@triton.jit
def _sort_key(logit, row):
    """int64 that sorts as (logit, −row). Negative floats sort backwards as integers."""
    bits = logit.to(tl.int32, bitcast=True)
    ordered = tl.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - row).to(tl.int64)


@triton.jit
def pick_kernel(
    best_ptr,
    token_ptr,
    position_ptr,
    SLOTS: tl.constexpr,
    PDL: tl.constexpr,
):
    slots = tl.arange(0, SLOTS)
    if PDL:
        gdc_wait()
    best = tl.max(tl.load(best_ptr + slots), axis=0)
    tl.store(token_ptr, 0x7FFFFFFF - (best & 0x7FFFFFFF))
    tl.store(position_ptr, tl.load(position_ptr) + 1)
    tl.store(best_ptr + slots, tl.full((SLOTS,), -0x7FFFFFFFFFFFFFFF, tl.int64))


def new_best(device: torch.device) -> torch.Tensor:
    """The keys, cleared: int64 [NUM_SLOTS]."""
    return torch.full((NUM_SLOTS,), -0x7FFFFFFFFFFFFFFF, dtype=torch.int64, device=device)


def launch(
    hidden: torch.Tensor,
    norm: torch.Tensor,
    weight: torch.Tensor,
    zero: torch.Tensor,
    logits: torch.Tensor,
    best: torch.Tensor,
    *,
    epsilon: float,
    settings: GemvSettings,
    pdl: bool,
) -> Any:
    """hidden [H], norm [H], weight [V, H], logits fp32 [V], best int64 [NUM_SLOTS]."""
    assert settings.block is None, settings
    num_rows, columns = weight.shape
    check_matrix(weight, num_rows, columns, "weight")
    check_vector(hidden, columns, "hidden")
    check_vector(norm, columns, "norm")
    check_vector(logits, num_rows, "logits")
    check_vector(best, NUM_SLOTS, "best")
    return head_kernel[gemv_grid(settings, num_rows)](
        words(hidden),
        words(norm),
        words(weight),
        zero,
        logits,
        best,
        epsilon,
        num_rows,
        SLOTS=NUM_SLOTS,
        **gemv_constants(settings, weight, pdl),
    )


def launch_pick(
    best: torch.Tensor, token: torch.Tensor, position: torch.Tensor, *, pdl: bool
) -> Any:
    """Take the best key into token [1], add one to position [1], clear best."""
    check_vector(best, NUM_SLOTS, "best")
    return pick_kernel[(1,)](best, token, position, SLOTS=NUM_SLOTS, **launch_options(4, pdl))


def bytes_moved(weight: torch.Tensor) -> int:
    """The matrix and the norm's weight once, and the fp32 logits."""
    return (weight.numel() + weight.shape[1]) * weight.element_size() + weight.shape[0] * 4
