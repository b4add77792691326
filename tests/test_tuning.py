"""Contexts that settings are tuned at: the model has them, with room for the steps timed there."""

import msgspec
import pytest

from builders import shape_of, tiny
from decodegap.errors import BadContext
from decodegap.tuning import contexts_for


def shape(max_context: int):
    return msgspec.structs.replace(shape_of(tiny()), max_context=max_context)


@pytest.mark.parametrize(
    "max_context, contexts",
    [(32768, (2048, 16384)), (16384 + 64, (2048, 16384)), (8192, (2048,)), (256, (192,))],
)
def test_by_default_as_many_as_the_model_has(max_context, contexts):
    assert contexts_for(shape(max_context), None) == contexts


def test_one_that_leaves_no_room_is_refused_with_the_most():
    assert contexts_for(shape(8192), (8128, 1)) == (8128, 1)
    with pytest.raises(BadContext, match=r"context 8129 leaves no room .* at most 8128"):
        contexts_for(shape(8192), (2048, 8129))
    with pytest.raises(BadContext, match="at least 1"):
        contexts_for(shape(8192), (0,))
