"""How weights are stored, and how many bytes a matrix then takes.

A format says what one linear's weight occupies, scales and zero points included. Norms, biases,
the embedding and the KV cache stay in the 16-bit (or 32-bit) type beside it; whether the head is
stored in the format too is the format's own `packs_head`, since most 4-bit loaders leave it out.
"""

from fractions import Fraction
from math import ceil

import msgspec

from decodegap.errors import UnknownFormat, nearest

_PLAIN_BITS = 16


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """Storage of linear weights. Sizes in bytes; `group_size` in weights along the input."""

    name: str
    bits_per_weight: Fraction
    group_size: int | None = None
    bytes_per_group: Fraction = Fraction(0)
    bytes_per_row: int = 0
    packs_head: bool = True
    plain_bytes: int = 2
    note: str

    @property
    def is_quantised(self) -> bool:
        """Whether a weight is narrower than the types that models are published in."""
        return self.bits_per_weight < _PLAIN_BITS

    def linear_bytes(self, out: int, into: int) -> int:
        """Bytes of one [out, into] weight as stored, with its scales and zero points."""
        total = self.bits_per_weight * out * into / 8 + self.bytes_per_row * out
        if self.group_size is not None:
            total += self.bytes_per_group * out * ceil(into / self.group_size)
        return ceil(total)


FORMATS: dict[str, Format] = {
    fmt.name: fmt
    for fmt in (
        Format(name="bf16", bits_per_weight=Fraction(16), note="16-bit brain float"),
        Format(name="fp16", bits_per_weight=Fraction(16), note="16-bit IEEE float"),
        Format(name="fp32", bits_per_weight=Fraction(32), plain_bytes=4, note="32-bit IEEE float"),
        Format(
            name="fp8",
            bits_per_weight=Fraction(8),
            bytes_per_row=4,
            packs_head=False,
            note="8-bit float, one fp32 scale a row, head in bf16",
        ),
        Format(
            name="int8",
            bits_per_weight=Fraction(8),
            bytes_per_row=4,
            packs_head=False,
            note="8-bit integer, one fp32 scale a row, head in bf16",
        ),
        Format(
            name="int4-g128",
            bits_per_weight=Fraction(4),
            group_size=128,
            bytes_per_group=Fraction(2),
            packs_head=False,
            note="4-bit symmetric, one 16-bit scale per 128, head in bf16 (GPTQ)",
        ),
        Format(
            name="int4-g128-zp",
            bits_per_weight=Fraction(4),
            group_size=128,
            bytes_per_group=Fraction(5, 2),
            packs_head=False,
            note="4-bit with zero points, a 16-bit scale and a 4-bit zero per 128 (AWQ)",
        ),
        Format(
            name="nf4",
            bits_per_weight=Fraction(4),
            group_size=64,
            bytes_per_group=Fraction(4),
            packs_head=False,
            note="4-bit normal float, an fp32 absmax per 64, head in bf16 (bitsandbytes)",
        ),
        Format(
            name="lossless12",
            bits_per_weight=Fraction(12),
            bytes_per_row=1,
            note="bf16 with the exponent as a 4-bit offset from its row's maximum",
        ),
    )
}


def get_format(name: str) -> Format:
    """Look a format up by name.

    Raises:
        UnknownFormat: with the nearest names.
    """
    found = FORMATS.get(name)
    if found is None:
        raise UnknownFormat(f"unknown format {name!r}: {nearest(name, FORMATS)}")
    return found
