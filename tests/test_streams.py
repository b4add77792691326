"""Standard output that goes away, is full, or takes no Unicode: the exit code still means what it
says, and nothing is a traceback."""

import os
import subprocess
import sys

import pytest

from builders import make_record, run_program
from decodegap.record_files import write_record


@pytest.fixture
def folder(tmp_path):
    for context in range(16, 80):
        write_record(make_record(context=context), tmp_path)
    return tmp_path


def piped_to(reader: str, *arguments: object) -> tuple[int, str]:
    """The program's own exit code and error output, with its output read by a shell command."""
    line = '"$@" | ' + reader + '; exit "${PIPESTATUS[0]}"'
    ended = subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, "-m", "decodegap", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, ended.stderr


@pytest.mark.parametrize("verb", [("report",), ("export", "--to", "csv"), ("report", "--json")])
def test_a_reader_that_goes_away_is_no_verdict(folder, verb):
    name, *options = verb
    code, errors = piped_to("true", name, folder, *options)
    assert code in (0, 141), errors  # 0: all was in the pipe before its reader ended
    assert errors == ""
    code, errors = piped_to("head -c 1 >/dev/null; sleep 0.5", name, folder, *options)
    assert code in (0, 141)
    assert errors == ""


def test_a_closed_pipe_has_a_code_of_its_own(folder):
    """More than a pipe holds, to a reader that reads none of it."""
    for number in range(400):
        write_record(make_record(run=f"run{number}"), folder)
    assert piped_to("exec true", "export", folder, "--to", "jsonl") == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("verb", [("report",), ("export", "--to", "csv"), ("report", "--json")])
def test_a_full_disk_behind_standard_output_is_told(folder, verb):
    name, *options = verb
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "decodegap", name, str(folder), *options],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (
        *(2, "decodegap: standard output is full; free space\n"),
    )


def test_a_terminal_without_unicode_shows_what_it_can(folder):
    ended = run_program("report", folder, PYTHONIOENCODING="ascii")
    assert ended.code == 0, ended.err
    assert "11.0 ms" in ended.out
    data = run_program("export", folder, "--to", "markdown", PYTHONIOENCODING="ascii")
    assert data.code == 0, data.err
    assert "–" in data.out  # exports are UTF-8 everywhere
