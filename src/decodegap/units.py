"""Seconds, bytes and bytes per second inside; a person's units only when text is made."""

import re

_LEAST_NANOSECONDS = 0.005  # less is what rounding leaves of a difference of equal numbers


def format_seconds(seconds: float) -> str:
    """`3.73 ms`, `62.4 µs`, `1.20 s`: three significant figures; `0 s` below what a clock tells."""
    magnitude = abs(seconds)
    if magnitude >= 1 or magnitude == 0:
        return f"{_significant(seconds)} s"
    if magnitude >= 1e-3:
        return f"{_significant(seconds * 1e3)} ms"
    if magnitude >= 1e-6:
        return f"{_significant(seconds * 1e6)} µs"
    nanoseconds = seconds * 1e9
    return "0 s" if abs(nanoseconds) < _LEAST_NANOSECONDS else f"{_significant(nanoseconds)} ns"


def format_bytes(num_bytes: float) -> str:
    """`14.26 GB`, decimal prefixes as memory bandwidths are quoted; plain bytes below 1 kB."""
    magnitude = abs(num_bytes)
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if magnitude >= scale:
            return f"{num_bytes / scale:.2f} {unit}"
    return f"{num_bytes:.0f} B"


def format_bandwidth(bytes_per_second: float) -> str:
    """`4.80 TB/s`, `17.4 GB/s`."""
    return f"{format_bytes(bytes_per_second)}/s"


def format_count(number: int, one: str, many: str | None = None) -> str:
    """`1 trial`, `2 trials`, `3 processes`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


_BANDWIDTH = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]+)?)\s*(?:([kMGT]?)B/s)?\s*")
_SCALES = {None: 1.0, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

_LEAST_BANDWIDTH = 1e6


def parse_bandwidth(text: str) -> float:
    """Bytes per second from `68 GB/s`, `4.8TB/s` or `68e9`.

    Raises:
        ValueError: it is none, or less than a megabyte per second: the unit was forgotten.
    """
    match = _BANDWIDTH.fullmatch(text)
    value = float(match[1]) * _SCALES[match[2]] if match else 0.0
    if not _LEAST_BANDWIDTH <= value < 1e15:
        raise ValueError(f"{text!r} is no bandwidth of a memory; write it like 68GB/s or 68e9")
    return value


def format_hertz(seconds: float) -> str:
    """The rate a step of this length allows: `267 Hz`."""
    return f"{_significant(1 / seconds)} Hz"


def _significant(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"
