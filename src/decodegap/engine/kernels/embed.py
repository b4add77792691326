# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""`embed`: hidden = table[token]. Reference: `decodegap.engine.reference.embed`.

The first kernel of the step: nothing of the step runs before it.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from decodegap.engine.kernels.launch import check_vector, launch_options

_BLOCK = 1024


@triton.jit
def embed_kernel(token_ptr, table_ptr, hidden_ptr, H, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        # The wait comes first, unlike elsewhere: what follows may read `position` before its own
        # wait, and the step before this one must have written it by then.
        gdc_wait()
        gdc_launch_dependents()
    token = tl.load(token_ptr)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(table_ptr + token * H + columns, mask=columns < H)
    tl.store(hidden_ptr + columns, row, mask=columns < H)


def launch(token: torch.Tensor, table: torch.Tensor, hidden: torch.Tensor, *, pdl: bool) -> Any:
    """token [1] int64, table [V, H], hidden [H]."""
    size = table.shape[1]
    check_vector(token, 1, "token")
    check_vector(hidden, size, "hidden")
    assert table.is_contiguous(), table.stride()
    grid = (triton.cdiv(size, _BLOCK),)
    return embed_kernel[grid](token, table, hidden, size, BLOCK=_BLOCK, **launch_options(4, pdl))


def bytes_moved(table: torch.Tensor) -> int:
    """One row."""
    return table.shape[1] * table.element_size()
