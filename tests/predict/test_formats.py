"""Stored bytes of one matrix, by hand; and what every format must keep to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodegap.errors import UnknownFormat
from decodegap.predict.formats import FORMATS, get_format

NARROWER = [name for name in FORMATS if name not in {"bf16", "fp16", "fp32"}]


@pytest.mark.parametrize(
    "name, num_bytes",
    [
        ("bf16", 3 * 300 * 2),
        ("fp16", 3 * 300 * 2),
        ("fp32", 3 * 300 * 4),
        ("fp8", 3 * 300 + 3 * 4),
        ("int8", 3 * 300 + 3 * 4),
        ("int4-g128", 450 + 3 * 3 * 2),  # 300 columns are three groups, the last one short
        ("int4-g128-zp", 473),  # 450 + 9 × 2.5 = 472.5, and no half bytes
        ("nf4", 450 + 3 * 5 * 4),
        ("lossless12", 3 * 300 * 3 // 2 + 3),
    ],
)
def test_bytes_of_a_matrix_of_3_by_300(name, num_bytes):
    assert get_format(name).linear_bytes(3, 300) == num_bytes


def test_every_format_has_a_known_answer_above():
    (mark,) = test_bytes_of_a_matrix_of_3_by_300.pytestmark
    assert {row[0] for row in mark.args[1]} == set(FORMATS)


def test_the_catalogue_keys_are_the_names():
    assert all(name == fmt.name for name, fmt in FORMATS.items())


@given(
    st.sampled_from(NARROWER),
    st.integers(1, 10_000),
    st.integers(64, 30_000),  # narrower than a group, scales can outweigh what they save
)
def test_no_narrow_format_takes_more_than_bf16(name, out, into):
    assert get_format(name).linear_bytes(out, into) < 2 * out * into


@given(st.sampled_from(list(FORMATS)), st.integers(1, 500), st.integers(1, 500))
def test_a_larger_matrix_never_takes_less(name, out, into):
    fmt = get_format(name)
    assert fmt.linear_bytes(out + 1, into) > fmt.linear_bytes(out, into)
    assert fmt.linear_bytes(out, into + 1) >= fmt.linear_bytes(out, into)


def test_unknown_format_names_the_nearest():
    with pytest.raises(UnknownFormat, match="did you mean bf16"):
        get_format("bf15")


def test_a_name_near_to_none_lists_them_all():
    with pytest.raises(UnknownFormat, match=r"known: bf16, .*nf4"):
        get_format("zzzzzz")
