# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""`attend`: per-head q/k norm, RoPE, append to the cache, attention over it. Reference:
`reference.attend`.

The context of each KV head is cut into splits; one program takes all query heads of the group over
one split, so that keys and values are read once. How many splits are in use follows from the
position on the device, so one launch serves every context: programs beyond it leave at once. Each
program stores its unnormalised output with maximum and sum. They are combined by the last program
of a KV head to arrive, or, `together`, by the first splits of each KV head, one query head each,
which wait for the others: that needs all programs on the chip at once. The first split starts from
the new token's own key and value and stores them in the cache, so no other program reads what this
launch writes.

Before the wait: position, tables, norms, and the first block of cached keys and values. All are
older than the step.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from decodegap.engine.kernels.gemv import wait_for_input
from decodegap.engine.kernels.launch import check_vector, launch_options
from decodegap.engine.kernels.settings import AttendSettings

_LOG2_E = 1.4426950408889634


@triton.jit
def attend_kernel(
    qkv_ptr,
    q_norm_ptr,
    k_norm_ptr,
    position_ptr,
    cos_ptr,
    sin_ptr,
    keys_ptr,
    values_ptr,
    attended_ptr,
    partial_ptr,
    maxima_ptr,
    sums_ptr,
    arrivals_ptr,
    departures_ptr,
    epsilon,
    scale,
    max_context,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    TOGETHER: tl.constexpr,
    QK_NORM: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    HALF: tl.constexpr = D // 2
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    num_kv_heads = tl.num_programs(0)
    position = tl.load(position_ptr).to(tl.int32)
    split_length = tl.maximum(tl.cdiv(tl.cdiv(position, SPLITS), BLOCK), 1) * BLOCK
    num_active = tl.maximum(tl.cdiv(position, split_length), 1)
    start = split * split_length
    end = tl.minimum(start + split_length, position)

    head_keys = keys_ptr + kv_head.to(tl.int64) * max_context * D
    head_values = values_ptr + kv_head.to(tl.int64) * max_context * D
    half = tl.arange(0, HALF)
    low_keys, high_keys = _key_block(head_keys, start, end, D, BLOCK)
    block_values = _value_block(head_values, start, end, D, BLOCK)
    cos = tl.load(cos_ptr + position * HALF + half)
    sin = tl.load(sin_ptr + position * HALF + half)
    if PDL:
        wait_for_input(EARLY)
    if split >= num_active:
        return

    lane = tl.arange(0, GROUP_PAD)
    q_ptr = qkv_ptr + kv_head * GROUP * D
    q_low, q_high = _normed_halves(
        q_ptr + lane[:, None] * D + half[None, :],
        (lane < GROUP)[:, None] & (half >= 0)[None, :],
        q_norm_ptr, epsilon, D, QK_NORM,
    )  # fmt: skip
    q_low, q_high = (
        (q_low * cos[None, :] - q_high * sin[None, :]) * scale,
        (q_high * cos[None, :] + q_low * sin[None, :]) * scale,
    )

    maximum = tl.full((GROUP_PAD,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP_PAD,), tl.float32)
    out = tl.zeros((GROUP_PAD, D), tl.float32)
    storage = keys_ptr.dtype.element_ty
    if split == 0:
        # The new token's own key and value: into the cache, and the first thing attended.
        kv_offset = (num_kv_heads * GROUP + kv_head) * D
        k_low, k_high = _normed_halves(
            qkv_ptr + kv_offset + half[None, :], (half >= 0)[None, :],
            k_norm_ptr, epsilon, D, QK_NORM,
        )  # fmt: skip
        k_low, k_high = (
            (k_low * cos[None, :] - k_high * sin[None, :]).to(storage),
            (k_high * cos[None, :] + k_low * sin[None, :]).to(storage),
        )
        whole = tl.arange(0, D)
        v = tl.load(qkv_ptr + kv_offset + num_kv_heads * D + whole)
        slot = position * D
        tl.store(head_keys + slot + half[None, :], k_low)
        tl.store(head_keys + slot + HALF + half[None, :], k_high)
        tl.store(head_values + slot + whole, v)
        maximum = tl.sum(q_low * k_low.to(tl.float32) + q_high * k_high.to(tl.float32), axis=1)
        total += 1.0
        out += v.to(tl.float32)[None, :]

    q_low = q_low.to(storage)
    q_high = q_high.to(storage)
    maximum, total, out = _attend_block(
        q_low, q_high, low_keys, high_keys, block_values, start, end, maximum, total, out, BLOCK
    )
    for first in tl.range(start + BLOCK, end, BLOCK, num_stages=STAGES):
        low_keys, high_keys = _key_block(head_keys, first, end, D, BLOCK)
        block_values = _value_block(head_values, first, end, D, BLOCK)
        maximum, total, out = _attend_block(
            q_low, q_high, low_keys, high_keys, block_values, first, end, maximum, total, out, BLOCK
        )

    whole = tl.arange(0, D)
    out_ptr = attended_ptr + kv_head * GROUP * D
    if num_active == 1:
        tl.store(
            out_ptr + lane[:, None] * D + whole[None, :],
            out / total[:, None],
            mask=(lane < GROUP)[:, None] & (whole >= 0)[None, :],
        )
    else:
        row = kv_head * SPLITS + split
        tl.store(
            partial_ptr + (row * GROUP + lane)[:, None] * D + whole[None, :],
            out,
            mask=(lane < GROUP)[:, None] & (whole >= 0)[None, :],
        )
        tl.store(maxima_ptr + row * GROUP + lane, maximum, mask=lane < GROUP)
        tl.store(sums_ptr + row * GROUP + lane, total, mask=lane < GROUP)
        # All threads' stores before the one thread's release; then all its loads after.
        tl.debug_barrier()
        if TOGETHER:
            tl.atomic_add(arrivals_ptr + kv_head, 1, sem="release", scope="gpu")
            if split < GROUP:
                while _load_acquire(arrivals_ptr + kv_head) < num_active:
                    pass
                for member in range(split, GROUP, num_active):
                    _combine_head(
                        partial_ptr, maxima_ptr, sums_ptr, out_ptr, kv_head, member, num_active,
                        GROUP, D, SPLITS,
                    )  # fmt: skip
                # The last to have seen the count, and only that one, may clear it.
                left = tl.atomic_add(departures_ptr + kv_head, 1, sem="acq_rel", scope="gpu")
                if left == tl.minimum(num_active, GROUP) - 1:
                    tl.store(arrivals_ptr + kv_head, 0)
                    tl.store(departures_ptr + kv_head, 0)
        else:
            arrived = tl.atomic_add(arrivals_ptr + kv_head, 1, sem="acq_rel", scope="gpu")
            if arrived == num_active - 1:
                for member in range(GROUP):
                    _combine_head(
                        partial_ptr, maxima_ptr, sums_ptr, out_ptr, kv_head, member, num_active,
                        GROUP, D, SPLITS,
                    )  # fmt: skip
                tl.store(arrivals_ptr + kv_head, 0)


@triton.jit
def _key_block(head_keys, first, end, D: tl.constexpr, BLOCK: tl.constexpr):
    """Positions first … first + BLOCK as [BLOCK, D / 2] twice: the two halves RoPE pairs."""
    HALF: tl.constexpr = D // 2
    positions = first + tl.arange(0, BLOCK)
    half = tl.arange(0, HALF)
    pointers = head_keys + positions[:, None] * D + half[None, :]
    mask = (positions < end)[:, None] & (half >= 0)[None, :]
    return tl.load(pointers, mask=mask, other=0.0), tl.load(pointers + HALF, mask=mask, other=0.0)


@triton.jit
def _value_block(head_values, first, end, D: tl.constexpr, BLOCK: tl.constexpr):
    """[BLOCK, D]."""
    positions = first + tl.arange(0, BLOCK)
    whole = tl.arange(0, D)
    mask = (positions < end)[:, None] & (whole >= 0)[None, :]
    return tl.load(head_values + positions[:, None] * D + whole[None, :], mask=mask, other=0.0)


@triton.jit
def _normed_halves(pointers, mask, norm_ptr, epsilon, D: tl.constexpr, QK_NORM: tl.constexpr):
    """fp32 [rows, D / 2] twice, RMS-normed over each head where the model does that."""
    HALF: tl.constexpr = D // 2
    low = tl.load(pointers, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(pointers + HALF, mask=mask, other=0.0).to(tl.float32)
    if QK_NORM:
        half = tl.arange(0, HALF)
        rms = tl.rsqrt((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / D + epsilon)
        low = low * rms[:, None] * tl.load(norm_ptr + half).to(tl.float32)[None, :]
        high = high * rms[:, None] * tl.load(norm_ptr + HALF + half).to(tl.float32)[None, :]
    return low, high


@triton.jit
def _attend_block(
    q_low, q_high, low_keys, high_keys, values, first, end, maximum, total, out,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of positions into the running softmax (base 2)."""
    scores = tl.dot(q_low, tl.trans(low_keys), input_precision="ieee")
    scores = tl.dot(q_high, tl.trans(high_keys), scores, input_precision="ieee")
    positions = first + tl.arange(0, BLOCK)
    scores = tl.where((positions < end)[None, :], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    probabilities = tl.exp2(scores - new_maximum[:, None])
    shrink = tl.exp2(maximum - new_maximum)
    total = total * shrink + tl.sum(probabilities, axis=1)
    out = out * shrink[:, None]
    out = tl.dot(probabilities.to(values.dtype), values, out, input_precision="ieee")
    return new_maximum, total, out


@triton.jit
def _combine_head(
    partial_ptr, maxima_ptr, sums_ptr, out_ptr, kv_head, member, num_active,
    GROUP: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """One query head's splits into its `attended` row. Reads past L1: other SMs wrote them."""
    whole = tl.arange(0, D)
    splits = tl.arange(0, SPLITS)
    used = splits < num_active
    row = (kv_head * SPLITS + splits) * GROUP + member
    partial = tl.load(
        partial_ptr + row[:, None] * D + whole[None, :],
        mask=used[:, None] & (whole >= 0)[None, :],
        other=0.0,
        cache_modifier=".cg",
    )
    maxima = tl.load(maxima_ptr + row, mask=used, other=float("-inf"), cache_modifier=".cg")
    sums = tl.load(sums_ptr + row, mask=used, other=0.0, cache_modifier=".cg")
    weight = tl.exp2(maxima - tl.max(maxima, axis=0))
    out = tl.sum(partial * weight[:, None], axis=0) / tl.sum(sums * weight, axis=0)
    tl.store(out_ptr + member * D + whole, out)


@triton.jit
def _load_acquire(pointer):
    """One int32 that another program releases."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];",
        "=r,l",
        [pointer.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


def new_scratch(
    num_kv_heads: int, group: int, head_dim: int, settings: AttendSettings, device: torch.device
) -> dict[str, torch.Tensor]:
    """Where splits meet: partial outputs, their maxima (base 2) and sums, and arrival counts."""
    rows = (num_kv_heads, settings.num_splits, group)
    return {
        "partial": torch.zeros((*rows, head_dim), dtype=torch.float32, device=device),
        "maxima": torch.zeros(rows, dtype=torch.float32, device=device),
        "sums": torch.zeros(rows, dtype=torch.float32, device=device),
        "arrivals": torch.zeros(num_kv_heads, dtype=torch.int32, device=device),
        "departures": torch.zeros(num_kv_heads, dtype=torch.int32, device=device),
    }


def launch(
    qkv: torch.Tensor,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    position: torch.Tensor,
    rope_cos: torch.Tensor,
    rope_sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    attended: torch.Tensor,
    scratch: dict[str, torch.Tensor],
    *,
    epsilon: float,
    settings: AttendSettings,
    pdl: bool,
) -> Any:
    """qkv [q + 2 kv], norms [D] or None, position [1] int64, tables fp32 [C, D / 2], keys and
    values [kv_heads, C, D] with slot `position` written, attended [q]. C·D stays below 2³¹."""
    num_kv_heads, max_context, head_dim = keys.shape
    group = attended.numel() // (num_kv_heads * head_dim)
    check_vector(qkv, (num_kv_heads * (group + 2)) * head_dim, "qkv")
    check_vector(rope_cos, max_context * head_dim // 2, "rope_cos")
    check_vector(rope_sin, max_context * head_dim // 2, "rope_sin")
    assert keys.is_contiguous(), keys.stride()
    assert values.is_contiguous(), values.stride()
    assert values.shape == keys.shape, (values.shape, keys.shape)
    assert max_context * head_dim < 2**31, max_context
    assert scratch["partial"].shape == (num_kv_heads, settings.num_splits, group, head_dim)
    return attend_kernel[(num_kv_heads, settings.num_splits)](
        qkv,
        qkv if q_norm is None else q_norm,
        qkv if k_norm is None else k_norm,
        position,
        rope_cos,
        rope_sin,
        keys,
        values,
        attended,
        scratch["partial"],
        scratch["maxima"],
        scratch["sums"],
        scratch["arrivals"],
        scratch["departures"],
        epsilon,
        head_dim**-0.5 * _LOG2_E,
        max_context,
        **attend_constants(group, head_dim, q_norm is not None, settings, pdl),
    )


def attend_constants(
    group: int, head_dim: int, qk_norm: bool, settings: AttendSettings, pdl: bool
) -> dict[str, Any]:
    return {
        "GROUP": group,
        "GROUP_PAD": 16,  # the least a tensor-core tile has
        "D": head_dim,
        "SPLITS": settings.num_splits,
        "BLOCK": settings.block,
        "STAGES": settings.num_stages,
        "TOGETHER": settings.together,
        "QK_NORM": qk_norm,
        "EARLY": settings.early,
        **launch_options(settings.num_warps, pdl),
    }


def bytes_moved(keys: torch.Tensor, position: int) -> int:
    """Keys and values of `position` positions read, of one written."""
    num_kv_heads, _, head_dim = keys.shape
    return 2 * num_kv_heads * head_dim * keys.element_size() * (position + 1)
