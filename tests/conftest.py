"""What every test shares: no network, no cache of the person who runs the suite."""

import os
import sys
from collections.abc import Callable, Iterator

import hypothesis
import pytest

from builders import ProgramEnd, write_known_bandwidth

# Read when huggingface_hub is imported, so set before any test can import it.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

# A busy host is no failure: examples have no deadline, and may be slow to make.
hypothesis.settings.register_profile(
    "decodegap", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("decodegap")


@pytest.fixture(scope="session", autouse=True)
def _caches_of_our_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the caches of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("huggingface")))
        yield


@pytest.fixture
def known_bandwidth(tmp_path, monkeypatch) -> float:
    """The CPU's bandwidth as if it had been probed before: 50 GB/s."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_known_bandwidth(50e9)


@pytest.fixture
def program(monkeypatch, capsys) -> Callable[..., ProgramEnd]:
    """Run the command line in this process: `program("floor", "qwen2.5-7b")`."""
    from decodegap import cli

    def run(*arguments: object) -> ProgramEnd:
        monkeypatch.setattr(sys, "argv", ["decodegap", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return ProgramEnd(code, out, err)

    return run
