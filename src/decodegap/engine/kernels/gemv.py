# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""The matrix-vector product under five of the ops, and what it may do before its input exists.

With programmatic dependent launch a kernel's programs start while the kernel before is still
running. Until `gdc_wait` returns they may touch only what no op of the step writes: weights, norms
and tables. So a program's first weights are loaded into registers before the wait, and memory idles
less while the input is being finished.

Two forms. `start_rows` and `next_tile`: the vector stays in registers and the program walks over
`TILES` tiles of whole rows, the next tile's loads in flight while this one is summed. `long_rows`:
the vector is too long for that, so the program walks over columns instead. Sums run in fp32.

Matrix and vectors come as words: two bf16 in an int32, or one element of another type. `K` and
`BLOCK` count words.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def start_rows(
    x_ptr,
    norm_ptr,
    w_ptr,
    zero_ptr,
    part_rows,
    epsilon,
    PARTS: tl.constexpr,
    NORM: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """The first tile [ROWS, BLOCK], the vector's low and high elements fp32 [BLOCK], the factor for
    finished sums, and the zero that `row_sums` wants.

    The matrix is `PARTS` matrices of `part_rows` rows, stacked; a tile holds the same ROWS / PARTS
    rows of each, and its row i is of part i % PARTS. RMSNorm is folded in: columns are scaled by
    the norm's weight here, and the reciprocal rms multiplies the sums.
    """
    program = tl.program_id(0)
    weights = load_tile(w_ptr, program * TILES, True, part_rows, PARTS, K, ROWS, BLOCK)
    if NORM:
        norm = _vector(norm_ptr, 0, K, BLOCK)
    if PDL:
        wait_for_input(EARLY)
    zero = tl.load(zero_ptr)
    low, high = _widen(_vector(x_ptr, 0, K, BLOCK), 0)
    factor = 1.0
    if NORM:
        # The high elements are zeros where a word is one element.
        PER_WORD: tl.constexpr = 2 if w_ptr.dtype.element_ty == tl.int32 else 1
        squares = tl.sum(low * low + high * high, axis=0)
        factor = tl.rsqrt(squares / (K * PER_WORD) + epsilon)
        norm_low, norm_high = _widen(norm, 0)
        low = low * norm_low
        high = high * norm_high
    return weights, low, high, factor, zero


@triton.jit
def load_tile(
    w_ptr,
    tile,
    wanted,
    part_rows,
    PARTS: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """[ROWS, BLOCK] words of the matrix's tile number `tile`, or zeros where it is not `wanted`."""
    lane = tl.arange(0, ROWS)
    row = tile * (ROWS // PARTS) + lane // PARTS
    columns = tl.arange(0, BLOCK)
    pointers = w_ptr + (row + (lane % PARTS) * part_rows).to(tl.int64)[:, None] * K
    mask = ((row < part_rows) & wanted)[:, None] & (columns < K)[None, :]
    # Each weight is used once: its line may leave first.
    return tl.load(pointers + columns[None, :], mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def row_sums(weights, low, high, zero):
    """fp32 [ROWS]: each row of a tile times the vector."""
    return tl.sum(_products(weights, low, high, zero), axis=1)


@triton.jit
def _products(weights, low, high, zero):
    """fp32 [ROWS, BLOCK]: each word's products with the vector's, added."""
    weights_low, weights_high = _widen(weights, zero)
    products = weights_low * low[None, :]
    if weights.dtype == tl.int32:
        products += weights_high * high[None, :]
    return products


@triton.jit
def _widen(words, zero):
    """The low and the high bf16 of each word as fp32; of words that are one element, that one and
    zeros.

    `zero` is a zero read from memory after the wait. Without it compilers widen weights as soon as
    they arrive and wait with them in twice the registers, which halves what the chip can hold of
    the matrix meanwhile. Adding it costs nothing: shift and add are one instruction.
    """
    if words.dtype == tl.int32:
        low = ((words << 16) + zero).to(tl.float32, bitcast=True)
        high = ((words & -65536) | zero).to(tl.float32, bitcast=True)
    else:
        low = words.to(tl.float32)
        high = tl.zeros(words.shape, tl.float32)
    return low, high


@triton.jit
def long_rows(
    x_ptr,
    w_ptr,
    residual_ptr,
    zero_ptr,
    num_rows,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """fp32 [ROWS]: the residual plus this program's rows times x, `BLOCK` words at a time, the
    next block's loads in flight while one is summed."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_ok = row < num_rows
    base = w_ptr + row.to(tl.int64)[:, None] * K
    weights = _columns(base, row_ok, 0, K, BLOCK)
    if PDL:
        wait_for_input(EARLY)
    zero = tl.load(zero_ptr)
    x = _vector(x_ptr, 0, K, BLOCK)
    residual = tl.load(residual_ptr + row, mask=row_ok, other=0.0)
    sums = tl.zeros((ROWS, BLOCK), tl.float32)
    for start in tl.range(BLOCK, K + BLOCK, BLOCK, num_stages=1):
        next_weights = _columns(base, row_ok, start, K, BLOCK)
        next_x = _vector(x_ptr, start, K, BLOCK)
        low, high = _widen(x, 0)
        sums += _products(weights, low, high, zero)
        weights = next_weights
        x = next_x
    return residual.to(tl.float32) + tl.sum(sums, axis=1)


@triton.jit
def wait_for_input(EARLY: tl.constexpr):
    """Wait for the kernel before, and let the one after start: after the wait, or before it."""
    if EARLY:
        gdc_launch_dependents()
    gdc_wait()
    if not EARLY:
        gdc_launch_dependents()


@triton.jit
def _columns(base, row_ok, start, K: tl.constexpr, BLOCK: tl.constexpr):
    """[ROWS, BLOCK] words of the rows at `base`."""
    columns = start + tl.arange(0, BLOCK)
    mask = row_ok[:, None] & (columns < K)[None, :]
    return tl.load(base + columns[None, :], mask=mask, other=0, eviction_policy="evict_first")


@triton.jit
def _vector(pointer, start, K: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK] words of a vector every program reads."""
    columns = start + tl.arange(0, BLOCK)
    return tl.load(pointer + columns, mask=columns < K, other=0)
