"""Run by `test_kernels_interpreted.py` in a process of its own, with TRITON_INTERPRET=1 set before
Triton is imported. Not collected by name."""

import pytest
import torch
from engine_families import FAMILIES, shape_of

from decodegap.engine.check import Model, check_ops, run_steps, small_settings

POSITIONS = (0, 1, 31, 127)
# Triton's interpreter takes `int()` of a one-element array, which numpy will refuse one day.
pytestmark = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@pytest.mark.parametrize("family", FAMILIES)
def test_ops_in_fp32(family: str) -> None:
    model = Model.random(shape_of(family), torch.float32, "cpu")
    settings = small_settings(rows=8, tiles=3, block=64, num_splits=4, attend_block=16)
    position = POSITIONS[FAMILIES.index(family) % len(POSITIONS)]
    check_ops(model, settings, pdl=False, position=position)


@pytest.mark.parametrize("position", POSITIONS)
def test_ops_at_every_kind_of_position(position: int) -> None:
    model = Model.random(shape_of("qwen3"), torch.float32, "cpu")
    settings = small_settings(rows=16, tiles=1, block=128, num_splits=2, attend_block=16)
    check_ops(model, settings, pdl=False, position=position)


def test_matrix_ops_in_bf16() -> None:
    # Two bf16 a word: another path than fp32. Attention's tl.dot is wrong here in bf16.
    model = Model.random(shape_of("qwen2"), torch.bfloat16, "cpu")
    settings = small_settings(rows=16, tiles=2, block=64, num_splits=2, attend_block=16)
    check_ops(model, settings, pdl=False, position=5, without=frozenset({"attend"}))


def test_whole_steps_in_fp32() -> None:
    model = Model.random(shape_of("llama_linear"), torch.float32, "cpu")
    settings = small_settings(rows=16, tiles=2, block=16, num_splits=2, attend_block=16)
    error, divergence = run_steps(model, settings, pdl=False, position=30, num_steps=4)
    assert error < 1e-4
    assert divergence < 1e-8
