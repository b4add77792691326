"""Figures as people read them: three significant digits, decimal prefixes."""

import pytest

from decodegap.units import (
    format_bandwidth,
    format_bytes,
    format_hertz,
    format_seconds,
    parse_bandwidth,
)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.00373, "3.73 ms"),
        (62.4e-6, "62.4 µs"),
        (1.2, "1.20 s"),
        (0.0, "0.00 s"),
        (123.4, "123 s"),
        (0.1234, "123 ms"),
        (1e-3, "1.00 ms"),
        (99.94e-3, "99.9 ms"),
        (99.96e-3, "100 ms"),
        (9.996e-3, "10.0 ms"),
        (5e-9, "5.00 ns"),
        (-0.00373, "-3.73 ms"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "num_bytes, text",
    [
        (14_256_000_000, "14.26 GB"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (2_500_000, "2.50 MB"),
        (4.8e12, "4.80 TB"),
        (0, "0 B"),
        (-2000, "-2.00 kB"),
    ],
)
def test_bytes(num_bytes, text):
    assert format_bytes(num_bytes) == text


def test_bandwidth_and_rate():
    assert format_bandwidth(4.8e12) == "4.80 TB/s"
    assert format_bandwidth(17.4e9) == "17.40 GB/s"
    assert format_hertz(0.00373) == "268 Hz"
    assert format_hertz(0.5) == "2.00 Hz"


@pytest.mark.parametrize(
    "text, value",
    [
        ("68GB/s", 68e9),
        (" 4.8 TB/s ", 4.8e12),
        ("68e9", 68e9),
        ("204.8 GB/s", 204.8e9),
        ("500 MB/s", 5e8),
    ],
)
def test_a_bandwidth_as_people_write_it(text, value):
    assert parse_bandwidth(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "68",
        "68 B/s",
        "999 kB/s",
        "68 Gb/s",
        "68 GiB/s",
        "-3 GB/s",
        "0",
        "1e20",
        "1.2.3",
        "nan",
    ],
)
def test_what_is_no_bandwidth_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="write it like 68GB/s"):
        parse_bandwidth(text)
