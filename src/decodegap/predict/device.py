"""`Device`: what of a device decides a floor. Facts come from `facts/devices.toml`."""

from datetime import date

import msgspec

from decodegap.errors import UnknownDevice, nearest


class MeasuredBandwidth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read-only streaming bandwidth really reached on such a device, and where that is shown."""

    bytes_per_second: float
    source: str


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device. `runtime_names` are what its driver calls it; None means not known."""

    name: str
    title: str
    bandwidth_bytes_per_second: float | None
    memory_bytes: int | None
    source: str
    checked: date | None = None
    runtime_names: tuple[str, ...] = ()
    compute_capability: str | None = None
    shared_memory: bool = False
    derived: bool = False
    measured: MeasuredBandwidth | None = None

    @property
    def reachable_bytes_per_second(self) -> float | None:
        return None if self.measured is None else self.measured.bytes_per_second


def with_measured(device: Device, bytes_per_second: float, source: str) -> Device:
    """The same device with a bandwidth measured on this very one."""
    measured = MeasuredBandwidth(bytes_per_second=bytes_per_second, source=source)
    return msgspec.structs.replace(device, measured=measured)


def find_device(name: str, devices: dict[str, Device]) -> Device:
    """By row name, title or the name a driver reports, whatever the case.

    Raises:
        UnknownDevice: with the nearest names.
    """
    wanted = name.strip().lower()
    for device in devices.values():
        if wanted in {device.name.lower(), device.title.lower()}:
            return device
    by_driver = match_runtime_name(name, devices)
    if by_driver is not None:
        return by_driver
    raise UnknownDevice(f"unknown device {name!r}: {nearest(name, devices)}")


def match_runtime_name(reported: str, devices: dict[str, Device]) -> Device | None:
    """The row whose driver name is exactly `reported`, else None: a near name is another device."""
    wanted = reported.strip().lower()
    for device in devices.values():
        if wanted in {name.lower() for name in device.runtime_names}:
            return device
    return None


def derive_device(reported: str, bandwidth: float | None, memory_bytes: int | None) -> Device:
    """A row for a device that is not in the catalogue, from what its driver says.

    Bandwidth derived as memory clock × 2 × bus width is marked; a CPU has None until measured.
    """
    return Device(
        name=reported.lower().replace(" ", "-"),
        title=reported,
        bandwidth_bytes_per_second=bandwidth,
        memory_bytes=memory_bytes,
        source="derived from the driver's memory clock and bus width" if bandwidth else "unknown",
        runtime_names=(reported,),
        derived=True,
    )
