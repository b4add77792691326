"""A read-only stream in Triton: every byte of a buffer through the SMs once, almost none written.

Each program walks the buffer in tiles a whole grid apart and keeps one sum, written at the end so
that no load can be dropped. Small tiles over a few programs per SM read fastest on the GPUs tried.
"""

import msgspec
import torch
import triton
import triton.language as tl


class StreamKernelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Launch settings of one shape; `tile` is in fp32 elements."""

    tile: int
    programs_per_sm: int
    num_stages: int
    num_warps: int

    @property
    def name(self) -> str:
        kib = self.tile * 4 // 1024
        return (
            f"triton {kib} KiB tiles, {self.programs_per_sm} programs/SM, {self.num_stages} stages"
        )


SHAPES = (
    StreamKernelShape(tile=2048, programs_per_sm=2, num_stages=3, num_warps=4),
    StreamKernelShape(tile=2048, programs_per_sm=4, num_stages=3, num_warps=4),
    StreamKernelShape(tile=4096, programs_per_sm=2, num_stages=4, num_warps=8),
    StreamKernelShape(tile=8192, programs_per_sm=1, num_stages=4, num_warps=8),
)


@triton.jit
def _stream(source, sums, num_tiles, TILE: tl.constexpr, STAGES: tl.constexpr):
    start = tl.program_id(0)
    offsets = tl.arange(0, TILE)
    total = tl.zeros((TILE,), dtype=tl.float32)
    for tile in tl.range(start, num_tiles, tl.num_programs(0), num_stages=STAGES):
        total += tl.load(source + tile.to(tl.int64) * TILE + offsets)
    tl.store(sums + start, tl.sum(total))


def read_all(buffer: torch.Tensor, shape: StreamKernelShape) -> torch.Tensor:
    """Read `buffer`, fp32 and contiguous, once. Returns the programs' partial sums [programs].

    Moves numel × 4 bytes read, programs × 4 bytes written.
    """
    assert buffer.is_contiguous(), "the stream walks memory in order"
    assert buffer.dtype == torch.float32, buffer.dtype
    num_tiles, rest = divmod(buffer.numel(), shape.tile)
    assert rest == 0, (buffer.numel(), shape.tile)
    num_sms = torch.cuda.get_device_properties(buffer.device).multi_processor_count
    programs = num_sms * shape.programs_per_sm
    sums = torch.empty(programs, dtype=torch.float32, device=buffer.device)
    _stream[(programs,)](
        buffer,
        sums,
        num_tiles,
        TILE=shape.tile,
        STAGES=shape.num_stages,
        num_warps=shape.num_warps,
    )
    return sums
