"""Devices are found by exactly what they are called, or refused with the nearest names."""

import pytest

from decodegap.errors import UnknownDevice
from decodegap.predict.device import (
    Device,
    derive_device,
    find_device,
    match_runtime_name,
    with_measured,
)

FAST = Device(
    name="fast-80",
    title="Maker Fast 80GB",
    bandwidth_bytes_per_second=2e12,
    memory_bytes=80_000_000_000,
    source="a datasheet",
    runtime_names=("MAKER Fast-80G-PCIe",),
)
SLOW = Device(
    name="slow-8",
    title="Maker Slow 8GB",
    bandwidth_bytes_per_second=1e11,
    memory_bytes=8_000_000_000,
    source="a datasheet",
)
ROWS = {"fast-80": FAST, "slow-8": SLOW}


@pytest.mark.parametrize("name", ["fast-80", "FAST-80", " maker fast 80gb ", "maker fast-80g-pcie"])
def test_a_device_is_found_whatever_the_case(name):
    assert find_device(name, ROWS) is FAST


def test_unknown_device_names_the_nearest():
    with pytest.raises(UnknownDevice, match=r"unknown device 'slow-9': did you mean slow-8"):
        find_device("slow-9", ROWS)


def test_a_near_driver_name_is_another_device():
    assert match_runtime_name("MAKER Fast-80G-PCIe ", ROWS) is FAST
    assert match_runtime_name("MAKER Fast-80G", ROWS) is None


def test_a_measured_bandwidth_leaves_the_row_as_it_was():
    device = with_measured(FAST, 1.8e12, "this machine")
    assert device.reachable_bytes_per_second == 1.8e12
    assert device.bandwidth_bytes_per_second == 2e12
    assert FAST.reachable_bytes_per_second is None


def test_a_derived_device_is_marked():
    device = derive_device("Some GPU", 3e11, 16 << 30)
    assert device.derived
    assert device.name == "some-gpu"
    assert device.bandwidth_bytes_per_second == 3e11
    assert "derived" in device.source


def test_a_cpu_s_bandwidth_is_not_guessed():
    device = derive_device("Some CPU", None, 16 << 30)
    assert device.bandwidth_bytes_per_second is None
    assert device.reachable_bytes_per_second is None
    assert "derived" not in device.source
