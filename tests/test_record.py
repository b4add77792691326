"""Records: whole or not at all, never replaced, read back as written or refused by name."""

import errno
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    GPU_ENVIRONMENT,
    failed_record,
    make_environment,
    make_profile,
    make_record,
    make_trial,
)
from decodegap.errors import BadRecord, OutputFolder
from decodegap.files import prepare_folder, write_once, write_over
from decodegap.record import SCHEMA_VERSION, Record, new_id
from decodegap.record_files import read_folder, read_record, record_paths, write_record


@pytest.fixture(scope="module")
def schema():
    return msgspec.json.schema(Record)


def test_a_record_reads_back_as_written(tmp_path):
    record = make_record(
        probes={"linears": [0.001]},
        profile=make_profile({"gemm": 0.001}, busy=0.002),
        environment=make_environment(**GPU_ENVIRONMENT),
    )
    path = write_record(record, tmp_path)
    assert read_record(path) == record
    assert list(tmp_path.iterdir()) == [path]


@given(samples=st.lists(st.floats(0, 1e6, exclude_min=True), min_size=1))
def test_every_bit_of_a_sample_is_kept(samples):
    data = msgspec.json.encode(make_record(samples))
    assert msgspec.json.decode(data, type=Record).wall_samples == samples


def test_the_name_says_what_and_when(tmp_path):
    path = write_record(make_record(context=17), tmp_path)
    assert path.name.startswith("20261130T120000-tiny-hf-eager-ctx17-")


def test_a_model_s_name_cannot_leave_the_folder(tmp_path):
    trial = make_trial()
    shape = msgspec.structs.replace(trial.shape, name="../../some one/model")
    record = make_record(trial=msgspec.structs.replace(trial, shape=shape))
    path = write_record(record, tmp_path)
    assert path.parent == tmp_path
    assert read_record(path).trial.shape.name == "../../some one/model"


def test_two_records_of_one_second_have_names_of_their_own(tmp_path):
    assert write_record(make_record(), tmp_path) != write_record(make_record(), tmp_path)
    assert len(record_paths(tmp_path)) == 2


def test_only_an_ok_record_has_samples():
    assert make_record([0.1, 0.2]).wall_samples == [0.1, 0.2]
    wrong = msgspec.structs.replace(make_record([0.1, 0.2]), outcome="wrong")
    assert wrong.wall_samples == []
    assert failed_record("oom", "too large").wall_samples == []


def test_records_of_every_outcome_validate_against_the_schema(schema):
    records = [
        make_record(),
        make_record(
            profile=make_profile({"gemm": 0.001}, busy=0.002),
            environment=make_environment(**GPU_ENVIRONMENT),
        ),
        *(failed_record(outcome, "why") for outcome in ("oom", "timeout", "crash", "unavailable")),
    ]
    for record in records:
        jsonschema.validate(json.loads(msgspec.json.encode(record)), schema)


def test_the_schema_refuses_what_is_no_record(schema):
    document = json.loads(msgspec.json.encode(make_record()))
    for broken in (
        document | {"outcome": "fine"},
        document | {"more": 1},
        {key: value for key, value in document.items() if key != "trial"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)


# Writing


def test_an_existing_file_is_never_replaced(tmp_path):
    path = tmp_path / "a.json"
    write_once(b"first", path)
    with pytest.raises(OutputFolder, match=r"cannot write .*a\.json"):
        write_once(b"second", path)
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputFolder, match=r"No space left on device.*free space") as refused:
        write_record(make_record(), tmp_path)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_write_cut_short_by_the_system_leaves_nothing(tmp_path):
    """The kernel itself refuses the bytes past a file size limit."""
    code = f"""
import resource, signal
from pathlib import Path
from decodegap.errors import OutputFolder
from decodegap.files import write_once
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_once(b"x" * 100_000, Path({str(tmp_path)!r}) / "a.json")
except OutputFolder as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot write" in ended.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_full_is_left_without_the_file_that_tried_it(tmp_path, monkeypatch):
    def full(path, data):
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputFolder, match=r"No space left on device.*--out"):
        prepare_folder(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["m" * 195, "模" * 80, "a b/c\n"])
def test_a_record_s_file_has_a_name_that_every_disk_takes(tmp_path, name):
    record = make_record()
    shape = msgspec.structs.replace(record.trial.shape, name=name)
    trial = msgspec.structs.replace(record.trial, shape=shape)
    path = write_record(msgspec.structs.replace(record, trial=trial), tmp_path)
    assert len(path.name.encode()) < 200  # room for what a half-written one is called
    assert path.name.isascii()
    assert read_record(path).trial.shape.name == name


def test_what_stood_in_the_way_of_writing_is_told_and_not_what_stood_in_the_way_of_tidying(
    tmp_path,
):
    (tmp_path / "a file").write_bytes(b"")
    with pytest.raises(OutputFolder, match="Not a directory"):
        write_once(b"x", tmp_path / "a file" / "a.json")


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_record(make_record(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_things_is_told_in_one_line(tmp_path):
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    with pytest.raises(BadRecord, match="none of the 4 JSON files"):
        read_folder(tmp_path)


def test_a_copy_is_told_and_counts_once(tmp_path):
    path = write_record(make_record(), tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / path.name).write_bytes(path.read_bytes())
    records, problems = read_folder(tmp_path)
    assert len(records) == 1
    (problem,) = map(str, problems)
    assert "is a copy of" in problem
    assert "remove one" in problem


@pytest.mark.parametrize("wall", [[0.0, 0.0], [0.01, -1.0]])
def test_steps_that_took_no_time_were_not_measured(tmp_path, wall):
    path = write_record(make_record(wall), tmp_path)
    with pytest.raises(BadRecord, match="took no time"):
        read_record(path)


def test_a_folder_that_went_away(tmp_path):
    with pytest.raises(OutputFolder, match="cannot write"):
        write_record(make_record(), tmp_path / "gone")


def test_a_folder_is_made_with_its_parents(tmp_path):
    folder = prepare_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_a_folder_below_a_file_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFolder, match="give another with --out"):
        prepare_folder(tmp_path / "file" / "folder")


def test_a_folder_nobody_can_write_to():
    with pytest.raises(OutputFolder, match="cannot write to /proc"):
        prepare_folder(Path("/proc/decodegap"))


# Reading


@pytest.fixture
def stored(tmp_path):
    return write_record(make_record(), tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_record(stored, share):
    data = stored.read_bytes().rstrip()
    stored.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BadRecord, match="truncated or not JSON") as refused:
        read_record(stored)
    assert str(stored) in str(refused.value)


@pytest.mark.parametrize("text", ["{}", "[]", "3", '"text"', '{"name": "x"}', "null"])
def test_a_foreign_file(tmp_path, text):
    path = tmp_path / "foreign.json"
    path.write_text(text)
    with pytest.raises(BadRecord, match="not a decodegap record; remove it"):
        read_record(path)


@pytest.mark.parametrize("data", [b"\x00\x01\x02", b"\xff\xfe{", b"hello", b'{"a": "\xff"}'])
def test_bytes_that_are_no_json(tmp_path, data):
    path = tmp_path / "foreign.json"
    path.write_bytes(data)
    with pytest.raises(BadRecord) as refused:
        read_record(path)
    assert str(path) in str(refused.value)


def changed(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_a_newer_schema_names_the_upgrade(stored):
    changed(stored, schema_version=SCHEMA_VERSION + 1, unheard_of=True)
    with pytest.raises(BadRecord, match=f"schema {SCHEMA_VERSION + 1}.*upgrade decodegap"):
        read_record(stored)


@pytest.mark.parametrize("version", ["1", None, 1.5, -1, 0])
def test_a_schema_version_that_is_none(stored, version):
    changed(stored, schema_version=version)
    with pytest.raises(BadRecord):
        read_record(stored)


@pytest.mark.parametrize(
    "changes",
    [
        {"unheard_of": 1},
        {"outcome": "fine"},
        {"trial": {}},
        {"started_at": "yesterday"},
        {"seconds": "long"},
        {"measurement": {"timings": {}}},
    ],
)
def test_a_record_with_a_wrong_part(stored, changes):
    changed(stored, **changes)
    with pytest.raises(BadRecord, match="is not a valid record"):
        read_record(stored)


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(BadRecord, match="cannot read"):
        read_record(tmp_path / "folder.json")


def test_a_folder_s_records_come_in_the_order_they_were_started(tmp_path):
    for minute, name in ((2, "."), (0, "below"), (1, ".")):
        write_record(make_record(minute=minute), prepare_folder(tmp_path / name))
    records, unreadable = read_folder(tmp_path)
    assert [record.started_at.minute for record in records] == [0, 1, 2]
    assert unreadable == []


def test_one_bad_file_does_not_hide_the_others(tmp_path, stored):
    (tmp_path / "broken.json").write_text("{")
    records, unreadable = read_folder(tmp_path)
    assert len(records) == 1
    assert [type(error) for error in unreadable] == [BadRecord]


def test_a_bandwidth_probe_and_unfinished_files_are_passed_over(tmp_path, stored):
    (tmp_path / "bandwidth.json").write_text("{}")
    (tmp_path / ".a.json.partial").write_text("{")
    (tmp_path / ".hidden.json").write_text("{")
    (tmp_path / "notes.txt").write_text("a note")
    records, unreadable = read_folder(tmp_path)
    assert len(records) == 1
    assert unreadable == []


def test_an_empty_or_missing_folder_says_what_writes_one(tmp_path):
    with pytest.raises(BadRecord, match=r"no records in .*decodegap measure"):
        read_folder(tmp_path)
    with pytest.raises(BadRecord, match=r"no folder .*decodegap measure"):
        read_folder(tmp_path / "none")


def test_ids_do_not_repeat():
    assert len({new_id() for _ in range(1000)}) == 1000


def test_times_carry_their_zone(stored):
    assert read_record(stored).started_at == datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_records_that_ship_can_be_read():
    """Old schemas stay readable: results are only ever added to."""
    results = Path(__file__).parent.parent / "results"
    records, unreadable = read_folder(results)
    assert records
    assert unreadable == []


def test_a_file_that_may_be_replaced_is_replaced_whole(tmp_path):
    path = tmp_path / "new folder" / "kept.json"
    assert write_over(b"first", path) == path
    write_over(b"second", path)
    assert path.read_bytes() == b"second"
    assert [found.name for found in path.parent.iterdir()] == ["kept.json"]


def test_a_file_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "taken").write_text("no folder")
    with pytest.raises(OutputFolder, match="make its folder writable"):
        write_over(b"data", tmp_path / "taken" / "kept.json")
