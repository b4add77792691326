"""`pip install decodegap` alone: what must work without torch works, and the rest says what to
install. A process that cannot find the packages of the extras stands for such an installation."""

import os

import pytest

from builders import assert_refused, make_record, run_program, write_config
from decodegap.record import Arm
from decodegap.record_files import write_record

HIDING = """
import importlib.machinery
import sys

HIDDEN = {"torch", "transformers", "safetensors", "huggingface_hub", "numpy", "scipy", "triton"}


class OnlyTheCore(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)


sys.meta_path = [
    OnlyTheCore if finder is importlib.machinery.PathFinder else finder for finder in sys.meta_path
]
"""
INSTALL = "pip install 'decodegap[measure]'"


@pytest.fixture
def core(tmp_path):
    """Run the command line where only the core is installed."""
    folder = tmp_path / "hiding"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDING)
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return lambda *arguments: run_program(*arguments, PYTHONPATH=path)


def test_floor(core):
    ended = core("floor", "qwen2.5-7b", "-d", "h100-sxm5")
    assert ended.code == 0, ended.err
    assert "4.26 ms" in ended.out


def test_report(core, tmp_path):
    write_record(make_record(), tmp_path / "hiding" / "..")
    ended = core("report", tmp_path)
    assert ended.code == 0, ended.err
    assert "11.0 ms" in ended.out


def test_plan(core, tmp_path):
    folder = tmp_path / "records"
    folder.mkdir()
    write_record(make_record(format="bf16"), folder)
    config = write_config(tmp_path / "mine")
    ended = core("plan", config, "--rate", 50, "-c", 16, "--records", folder)
    assert ended.code == 0, ended.err
    assert "holds 50 Hz: p99 12.0 ms of the 18.0 ms" in ended.out


def test_doctor_says_what_is_missing(core):
    ended = core("doctor")
    assert ended.code == 2, ended.err
    assert ended.out.count("needs torch, transformers") >= 2
    assert INSTALL in ended.out
    assert "not fit to measure" in ended.out


def test_measure_says_what_to_install(core, tmp_path):
    config = write_config(tmp_path / "mine")
    ended = core("measure", config, "-c", "16", "-d", "cpu", "--out", tmp_path / "out")
    assert_refused(ended, INSTALL)
    assert list((tmp_path / "out").glob("*")) == []


def test_measuring_a_folder_says_what_to_install(core, tmp_path):
    write_config(tmp_path / "mine")
    (tmp_path / "mine" / "model.safetensors").write_bytes(b"")
    ended = core("measure", tmp_path / "mine", "-c", "16", "-d", "cpu", "--out", tmp_path / "out")
    assert_refused(ended, INSTALL)


@pytest.mark.parametrize("verb", ["floor", "measure"])
def test_a_hugging_face_id_says_what_to_install(core, verb):
    assert_refused(core(verb, "someone/some-model"), INSTALL)


def test_generating_says_what_to_install(core, tmp_path):
    """A package that is missing deep inside a verb is one line too, whichever verb it is."""
    write_config(tmp_path / "mine")
    assert_refused(core("generate", tmp_path / "mine", "hello"), INSTALL)


def test_a_report_of_a_comparison_shows_its_arms(core, tmp_path):
    """Six pairs, whose interval needs scipy; the rest of the folder is read all the same."""
    for pair in range(6):
        for name, runtime in (("A", "hf-eager"), ("B", "hf-static")):
            arm = Arm(comparison="c", name=name, pair=pair, margin=0.05)
            step = 0.01 + pair * (1e-4 if name == "A" else 0.0)
            write_record(make_record([step], runtime=runtime, arm=arm), tmp_path)
    write_record(make_record([0.02], run="other"), tmp_path)
    ended = core("report", tmp_path)
    assert ended.code == 0, ended.err
    assert "10.2 ms" in ended.out  # the median of A's six
    assert "20.0 ms" in ended.out
    assert "shown and not compared" in ended.out
    assert INSTALL in " ".join(ended.out.split())  # a long line is wrapped
