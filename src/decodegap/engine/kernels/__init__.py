"""The step's ops as Triton kernels, one file per op.

Each file holds the kernel, a launcher that asserts its layout and the bytes it moves; its plain
torch reference is the function of the same name in `decodegap.engine.reference`.
"""
