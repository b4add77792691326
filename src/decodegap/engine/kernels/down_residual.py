"""`down_residual`: hidden += W · inner. Reference: `reference.down_residual`.

The kernels of `o_residual`, launched with settings of its own.
"""

from decodegap.engine.kernels.o_residual import bytes_moved, launch

__all__ = ["bytes_moved", "launch"]
