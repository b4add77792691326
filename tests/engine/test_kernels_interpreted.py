"""The kernels against the reference without a GPU, under Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")


def test_kernels_under_the_interpreter() -> None:
    # The interpreter is chosen when a kernel is defined, so it needs a process of its own.
    here = Path(__file__).parent
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "interpreted_cases.py"],
        cwd=here,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:]
