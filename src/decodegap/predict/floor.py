"""The floor: traffic ÷ bandwidth, in the three forms that must never be confused."""

import msgspec

from decodegap.predict.device import Device
from decodegap.predict.formats import Format
from decodegap.predict.model import ModelShape
from decodegap.predict.traffic import Traffic, published_bytes, step_traffic


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """Least time of one step, seconds; None where the bandwidth is not known.

    published: every parameter and all KV, over the datasheet's bandwidth (the reference study's).
    exact: the traffic, over the datasheet's bandwidth.
    reachable: the traffic, over the bandwidth measured on the device.
    """

    published_bytes: int
    exact_bytes: int
    published: float | None
    exact: float | None
    reachable: float | None


def step_floor(shape: ModelShape, context: int, fmt: Format, device: Device) -> Floor:
    """The floors of one step.

    Raises:
        BadContext: the model cannot decode at this context.
    """
    traffic = step_traffic(shape, context, fmt)
    return floor_of(traffic, published_bytes(shape, context, fmt), device)


def floor_of(traffic: Traffic, published: int, device: Device) -> Floor:
    """The floors of counted traffic on `device`."""
    exact = traffic.bytes
    datasheet = device.bandwidth_bytes_per_second
    return Floor(
        published_bytes=published,
        exact_bytes=exact,
        published=_seconds(published, datasheet),
        exact=_seconds(exact, datasheet),
        reachable=_seconds(exact, device.reachable_bytes_per_second),
    )


def _seconds(num_bytes: int, bytes_per_second: float | None) -> float | None:
    return None if bytes_per_second is None else num_bytes / bytes_per_second
