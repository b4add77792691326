"""Seconds, bytes and bytes per second inside; a person's units only when text is made."""


def format_seconds(seconds: float) -> str:
    """`3.73 ms`, `62.4 µs`, `1.20 s`: three significant figures."""
    magnitude = abs(seconds)
    if magnitude >= 1 or magnitude == 0:
        return f"{_significant(seconds)} s"
    if magnitude >= 1e-3:
        return f"{_significant(seconds * 1e3)} ms"
    if magnitude >= 1e-6:
        return f"{_significant(seconds * 1e6)} µs"
    return f"{_significant(seconds * 1e9)} ns"


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
