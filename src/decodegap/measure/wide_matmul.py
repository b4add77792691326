"""Prefill and verdict in bearable time on a CPU that has no instructions for 16-bit matrices.

Torch multiplies such matrices there without the library that it multiplies others with: a prompt of
2,048 tokens takes six times as long as in fp32 and more. What is timed, the step, has one row; it
is left as the runtime makes it. For what comes before and after it, products are made in fp32 and
rounded to 16 bits, as the slow ones are.
"""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_16_BITS = (torch.bfloat16, torch.float16)
_X86 = {"x86_64", "AMD64"}
_LEAST_CAPABILITIES = {"DEFAULT", "NO AVX", "AVX2"}  # torch's names for a CPU before AVX-512
_CHUNK_ELEMENTS = 1 << 26  # of a matrix that is widened at a time: 256 MB
NOTE = "prefill and verdict multiplied matrices in fp32: this CPU has no instructions for 16 bits"


def lacks_instructions(dtype: torch.dtype, device: str) -> bool:
    """Whether torch multiplies matrices of `dtype` slowly on `device`."""
    if device != "cpu" or dtype not in _16_BITS or platform.machine() not in _X86:
        return False
    return torch.backends.cpu.get_cpu_capability() in _LEAST_CAPABILITIES


@contextmanager
def wide_where_slow(dtype: torch.dtype, device: str) -> Iterator[None]:
    """Inside, where they would be slow, matrices of 16-bit numbers are multiplied in fp32."""
    if not lacks_instructions(dtype, device):
        yield
        return
    with _WideProducts():
        yield


class _WideProducts(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        wide = _WIDE.get(func)
        # Whoever names arguments (`out=`) is given what was asked for.
        if wide is None or kwargs or args[0].dtype not in _16_BITS:
            return func(*args, **(kwargs or {}))
        return wide(*args)


def _wide_linear(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """[…, in] by [out, in], some rows of the weight at a time: its whole copy may not fit."""
    rows = max(1, _CHUNK_ELEMENTS // weight.shape[1])
    biases = [None] * -(-weight.shape[0] // rows) if bias is None else bias.split(rows)
    wide = input.float()
    return torch.cat(
        [
            F.linear(wide, part.float(), None if some is None else some.float()).to(input.dtype)
            for part, some in zip(weight.split(rows), biases, strict=True)
        ],
        dim=-1,
    )


def _wide_matmul(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return torch.matmul(input.float(), other.float()).to(input.dtype)


_WIDE: dict[Callable[..., Any], Callable[..., torch.Tensor]] = {
    F.linear: _wide_linear,
    torch.matmul: _wide_matmul,
    torch.bmm: _wide_matmul,
    torch.Tensor.matmul: _wide_matmul,
    torch.Tensor.__matmul__: _wide_matmul,
}
