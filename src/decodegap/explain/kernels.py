"""What kind of work a kernel does, told from its name: for the parts of an account."""

from collections.abc import Iterable

from decodegap.record import KernelUse

KINDS = ("linear", "attention", "cache copies", "norms and elementwise", "sampling")

# First match wins. Names as cuBLAS, cuDNN, FlashAttention, ATen and Triton spell them.
_PATTERNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    # cuDNN's lean reduction puts the splits of its attention together.
    ("attention", ("flash", "fmha", "sdpa", "softmax", "attention", "sdp_", "lean_reduction")),
    ("sampling", ("argmax", "argmin", "arg_max", "topk", "multinomial")),
    (
        "cache copies",
        # The strided copy without a cast is what repeating KV heads and laying out a cache become.
        ("catarray", "index_copy", "nocast<at::native::direct_copy_kernel"),
    ),
    (
        "linear",
        ("gemm", "gemv", "cutlass", "nvjet", "cublas", "splitk", "_mv"),
    ),
)


def kind_of(kernel_name: str) -> str:
    """One of `KINDS`; what no pattern names is elementwise."""
    lowered = kernel_name.lower()
    for kind, patterns in _PATTERNS:
        if any(pattern in lowered for pattern in patterns):
            return kind
    return "norms and elementwise"


def seconds_by_kind(kernels: Iterable[KernelUse]) -> dict[str, float]:
    """Device seconds per step of each kind that occurs, in the order of `KINDS`."""
    totals = dict.fromkeys(KINDS, 0.0)
    for kernel in kernels:
        totals[kind_of(kernel.name)] += kernel.seconds
    return {kind: seconds for kind, seconds in totals.items() if seconds}


def same_kernels(first: Iterable[KernelUse], second: Iterable[KernelUse]) -> bool:
    """Whether two profiles launched the same kernels equally often: only then is a difference in
    time a difference in launching."""
    return _counts(first) == _counts(second)


def num_launches(kernels: Iterable[KernelUse]) -> float:
    return sum(kernel.count for kernel in kernels)


def _counts(kernels: Iterable[KernelUse]) -> dict[str, float]:
    """Without copies and fills, which the profiler names differently inside a graph."""
    return {
        kernel.name: kernel.count
        for kernel in kernels
        if not kernel.name.lower().startswith(("memcpy", "memset"))
    }
