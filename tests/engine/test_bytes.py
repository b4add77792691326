"""Counted twice: the bytes the kernels move, by their own word, against the traffic model."""

import pytest
import torch
from engine_families import FAMILIES, shape_of

from decodegap.engine.buffers import allocate
from decodegap.engine.kernels.step import bytes_moved
from decodegap.engine.program import build_program
from decodegap.engine.weights import synthetic_weights, weight_bytes
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import parameter_bytes, step_traffic

CONTEXT = 20


@pytest.mark.parametrize("family", FAMILIES)
def test_each_op_moves_what_the_traffic_says(family: str) -> None:
    """Equal but for one extra, named: the kernels' logits are fp32, so that the pick and
    argmax(logits) agree, where the traffic counts the weights' own 16 bits."""
    shape = shape_of(family)
    program = build_program(shape, 2 * CONTEXT)
    device = torch.device("cpu")
    weights = synthetic_weights(program, torch.bfloat16, device, seed=0)
    buffers = allocate(program, torch.bfloat16, device)
    moved = bytes_moved(program, weights, buffers, CONTEXT)
    counted = step_traffic(shape, CONTEXT, get_format("bf16")).bytes_by_op()
    counted["head"] += 2 * shape.vocab_size
    assert moved == counted


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_holds_the_parameters_once(family: str) -> None:
    shape = shape_of(family)
    program = build_program(shape, CONTEXT)
    assert weight_bytes(program, torch.bfloat16) == parameter_bytes(shape, get_format("bf16"))
