"""What goes into a record beside its samples."""

import hashlib
import re
from importlib import metadata
from pathlib import Path

import msgspec
import pynvml
import pytest

import decodegap
from builders import make_environment, make_host_state, make_record
from decodegap import __version__
from decodegap.explain.summary import UnlikeRecords, refuse_unlike
from decodegap.measure import environment
from decodegap.measure.environment import (
    describe_environment,
    host_state,
    package_versions,
    source_hash,
)


def test_versions_are_those_installed():
    versions = package_versions()
    version, _, local = versions["decodegap"].partition("+")
    assert version == __version__
    assert re.fullmatch(r"src\.[0-9a-f]{8}", local)
    assert versions["torch"] == metadata.version("torch")
    assert versions["transformers"] == metadata.version("transformers")
    assert None not in versions.values()


def test_a_package_that_is_not_here_is_left_out(monkeypatch):
    monkeypatch.setattr(environment, "PACKAGES", ("torch", "no-such-package"))
    assert set(package_versions()) == {"decodegap", "torch"}


# The hash that tells one state of our own source from another


def write_package(folder: Path, **changes: str) -> Path:
    """A package of four sources, two of which make a step."""
    sources = {
        "measure/timers.py": "one",
        "engine/kernels/tuned.toml": "two",
        "explain/summary.py": "three",
        "record.py": "four",
    }
    for name, text in (sources | changes).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def hash_with(tmp_path: Path, **changes: str) -> str:
    """The hash of a package that differs in `changes`, in a folder of its own."""
    return source_hash(write_package(tmp_path / str(len(list(tmp_path.iterdir()))), **changes))


def test_the_hash_is_known_and_the_same_wherever_the_package_lies(tmp_path):
    """sha256 of `engine/kernels/tuned.toml`, 3 bytes, `two`, then `measure/timers.py`, 3, `one`."""
    whole = b"engine/kernels/tuned.toml\x003\x00twomeasure/timers.py\x003\x00one"
    expected = hashlib.sha256(whole).hexdigest()[:8]
    assert hash_with(tmp_path) == hash_with(tmp_path) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"measure/timers.py": "One"},
        {"engine/kernels/tuned.toml": "Two"},
        {"measure/more.py": ""},
        {"measure/timers.py": "", "engine/kernels/tuned.toml": "twoone"},
    ],
    ids=["a runtime", "a setting", "an empty file", "bytes moved to another file"],
)
def test_a_change_of_what_makes_a_step_changes_the_hash(changes, tmp_path):
    assert hash_with(tmp_path, **changes) != hash_with(tmp_path)


@pytest.mark.parametrize(
    "name", ["explain/summary.py", "record.py", "measure/__pycache__/timers.pyc", "engine/notes.md"]
)
def test_a_change_of_anything_else_does_not(name, tmp_path):
    assert hash_with(tmp_path, **{name: "changed"}) == hash_with(tmp_path)


def test_a_file_under_another_name_is_another_source(tmp_path):
    package = write_package(tmp_path / "moved")
    (package / "measure/timers.py").rename(package / "measure/clocks.py")
    assert source_hash(package) != hash_with(tmp_path)


def test_an_editor_s_dangling_link_is_not_source(tmp_path):
    package = write_package(tmp_path / "edited")
    (package / "measure/.#timers.py").symlink_to("someone@somewhere.1234")
    assert source_hash(package) == hash_with(tmp_path)


def test_the_hash_is_of_our_own_source():
    local = package_versions()["decodegap"].partition("+src.")[2]
    assert local == source_hash(Path(decodegap.__file__).parent)


def test_the_source_is_read_once_a_process(monkeypatch):
    first = package_versions()
    monkeypatch.setattr(environment, "source_hash", None)  # would fail if it were called again
    assert package_versions() == first


def test_records_of_two_states_of_our_source_do_not_pool():
    """The version number is the same; what differs is named, with both."""
    before, after = (
        make_record(environment=make_environment(packages={"decodegap": f"0.1.0+src.{state}"}))
        for state in ("1a2b3c4d", "5e6f7a8b")
    )
    words = r"differ in decodegap version \(0\.1\.0\+src\.1a2b3c4d and 0\.1\.0\+src\.5e6f7a8b\)"
    with pytest.raises(UnlikeRecords, match=words):
        refuse_unlike([before, after])


def test_the_host_before_and_after():
    state = host_state("cpu")
    assert state.gpu is None
    assert 0 <= state.busy_share <= 1
    assert state.available_memory_bytes > 0
    assert 1e-5 < state.python_loop_seconds < 1.0


def test_an_environment_on_a_cpu_names_it_as_the_device():
    state = host_state("cpu")
    found = describe_environment("cpu", 3, state, state)
    assert found.device_name == found.host_cpu
    assert found.num_threads == 3
    assert (found.driver, found.derived_bandwidth_bytes_per_second) == (None, None)
    assert found.device_uuid is None
    assert (found.before, found.after) == (state, state)


class FakeNvml:
    """A driver that answers everything, unless told not to."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self, mask: int = 0, silent: bool = False) -> None:
        self.mask, self.silent = mask, silent

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1980, 2: 3201}[which],
            "nvmlDeviceGetMaxClockInfo": lambda handle, which: {1: 2010}[which],
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
    clocks = (state.sm_clock_hz, state.max_sm_clock_hz, state.memory_clock_hz)
    assert clocks == (1.98e9, 2.01e9, 3.201e9)
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


@pytest.mark.parametrize(
    "clock, most, slowed",
    [
        (1.98e9, 1.98e9, False),
        (1.95e9, 1.98e9, False),
        (1.93e9, 1.98e9, True),
        (1.98e9, None, True),
        (None, 1.98e9, True),
    ],
)
def test_a_gpu_at_its_highest_clock_is_not_held_back(clock, most, slowed):
    gpu = make_host_state(throttled=("software power cap",)).gpu
    state = msgspec.structs.replace(gpu, sm_clock_hz=clock, max_sm_clock_hz=most)
    assert state.slowed_by == (("software power cap",) if slowed else ())
    assert msgspec.structs.replace(state, throttle_reasons=None).slowed_by == ()


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
