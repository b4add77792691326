"""What every launcher shares: constants from settings, and the checks on layout."""

import ctypes
from typing import Any

import torch
import triton

from decodegap.engine.kernels.settings import GemvSettings


def gemv_grid(settings: GemvSettings, num_rows: int) -> tuple[int]:
    """Programs that together take all rows."""
    tiles = settings.tiles if settings.block is None else 1
    return (triton.cdiv(num_rows, settings.rows * tiles),)


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as `gemv` takes it: two bf16 in an int32 where the last size is even."""
    if tensor.dtype == torch.bfloat16 and tensor.shape[-1] % 2 == 0:
        return tensor.view(torch.int32)
    return tensor


def gemv_constants(settings: GemvSettings, weight: torch.Tensor, pdl: bool) -> dict[str, Any]:
    """The compile-time arguments of a kernel that runs a matrix-vector product with `weight`."""
    columns = words(weight).shape[1]
    if settings.block is None:
        form = {"TILES": settings.tiles, "BLOCK": triton.next_power_of_2(columns)}
    else:
        form = {"BLOCK": settings.block * columns // weight.shape[1]}
    return {
        "K": columns,
        "ROWS": settings.rows,
        **form,
        "EARLY": settings.early,
        **launch_options(settings.num_warps, pdl),
    }


def launch_options(num_warps: int, pdl: bool) -> dict[str, Any]:
    """Warps, and whether the launch may overlap the kernel before it."""
    options: dict[str, Any] = {"PDL": pdl, "num_warps": num_warps}
    if pdl:
        options["launch_pdl"] = True
    return options


def check_vector(tensor: torch.Tensor, size: int, name: str) -> None:
    assert tensor.is_contiguous(), (name, tensor.stride())
    assert tensor.numel() == size, (name, tensor.shape, size)


def check_matrix(tensor: torch.Tensor, rows: int, columns: int, name: str) -> None:
    assert tensor.is_contiguous(), (name, tensor.stride())
    assert tensor.shape == (rows, columns), (name, tensor.shape, (rows, columns))


_PREFERRED_SHARED_MEMORY_CARVEOUT = 9  # of CUfunction_attribute
_DRIVERS_CHOICE = -1


def set_shared_percent(compiled: Any, percent: int | None) -> None:
    """Have a kernel ask for this much of L1 as shared memory in its next launches.

    `compiled` is what a launch returned; None under the interpreter, where there is nothing to set.
    """
    if compiled is None:
        return
    status = ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(
        ctypes.c_void_p(compiled.function),
        _PREFERRED_SHARED_MEMORY_CARVEOUT,
        ctypes.c_int(_DRIVERS_CHOICE if percent is None else percent),
    )
    assert status == 0, f"cuFuncSetAttribute returned {status}"
