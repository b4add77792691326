"""What goes into a record beside its samples."""

from importlib import metadata

import pynvml
import pytest

from decodegap import __version__
from decodegap.measure import environment
from decodegap.measure.environment import describe_environment, host_state, package_versions


def test_versions_are_those_installed():
    versions = package_versions()
    assert versions["decodegap"] == __version__
    assert versions["torch"] == metadata.version("torch")
    assert versions["transformers"] == metadata.version("transformers")
    assert None not in versions.values()


def test_a_package_that_is_not_here_is_left_out(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("torch", "no-such-package"))
    assert set(package_versions()) == {"decodegap", "torch"}


def test_the_host_before_and_after():
    state = host_state("cpu")
    assert state.gpu is None
    assert 0 <= state.busy_share <= 1
    assert state.available_memory_bytes > 0


def test_an_environment_on_a_cpu_names_it_as_the_device():
    state = host_state("cpu")
    found = describe_environment("cpu", 3, state, state)
    assert found.device_name == found.host_cpu
    assert found.num_threads == 3
    assert (found.driver, found.derived_bandwidth_bytes_per_second) == (None, None)
    assert (found.before, found.after) == (state, state)


class FakeNvml:
    """A driver that answers everything, unless told not to."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, mask: int = 0, silent: bool = False) -> None:
        self.mask, self.silent = mask, silent

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1980, 2: 3201}[which],
            "nvmlDeviceGetPowerUsage": lambda handle: 123_456,
            "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 5_000,
            "nvmlDeviceGetTemperature": lambda handle, which: 41,
            "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: self.mask,
        }
        if self.silent:
            return self._refuse
        return answers[name]

    @staticmethod
    def _refuse(*arguments):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_a_gpu_s_state_is_in_base_units():
    state = environment._read(FakeNvml(), None)
    assert (state.sm_clock_hz, state.memory_clock_hz) == (1.98e9, 3.201e9)
    assert state.power_watts == pytest.approx(123.456)
    assert state.energy_joules == 5.0
    assert state.temperature_celsius == 41


def test_what_a_gpu_does_not_say_is_not_known():
    state = environment._read(FakeNvml(silent=True), None)
    assert {getattr(state, field) for field in state.__struct_fields__} == {None}


@pytest.mark.parametrize(
    "mask, reasons",
    [
        (0x0, ()),
        (0x1 | 0x2, ()),  # idle, application clocks: not throttling
        (0x4, ("software power cap",)),
        (0x8 | 0x40, ("hardware slowdown", "hardware thermal slowdown")),
        (0x80, ("hardware power brake",)),
    ],
)
def test_throttling_is_told_from_resting(mask, reasons):
    assert environment._read(FakeNvml(mask), None).throttle_reasons == reasons


def test_the_bits_are_nvml_s():
    names = {
        "nvmlClocksThrottleReasonSwPowerCap": "software power cap",
        "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
        "nvmlClocksThrottleReasonSyncBoost": "sync boost",
        "nvmlClocksThrottleReasonSwThermalSlowdown": "software thermal slowdown",
        "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
        "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "hardware power brake",
    }
    bits = {getattr(pynvml, name): words for name, words in names.items()}
    assert bits == environment._THROTTLE_BITS
