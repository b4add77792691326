"""Launch settings: the shipped table, a person's own, and what neither says."""

import pytest

pytest.importorskip("torch")

from decodegap.engine.kernels.settings import (
    heuristic,
    launch_settings,
    merged_table,
    own_table,
    tuned_rows,
)
from decodegap.engine.program import build_program
from decodegap.errors import BadConfig
from decodegap.predict.catalogue import catalogue_shape

NUM_SMS = 132
PROGRAM = build_program(catalogue_shape("qwen2.5-7b"), 4096)
ROW = '[sm_90.head."152064x3584"]\nrows = 2\nnum_warps = 16\n'


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The person's own table, not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    own_table().parent.mkdir(parents=True)
    return own_table()


def test_without_a_row_the_heuristic_decides(own):
    assert launch_settings(PROGRAM, "sm_89", NUM_SMS) == heuristic(PROGRAM, NUM_SMS)


def test_the_shipped_rows_are_taken(own):
    settings = launch_settings(PROGRAM, "sm_90", NUM_SMS)
    assert (settings.head.rows, settings.head.num_warps) == (4, 8)
    assert settings.norm_qkv.early


def test_a_person_s_own_row_goes_first_and_alone(own):
    shipped = launch_settings(PROGRAM, "sm_90", NUM_SMS)
    own.write_text(ROW)
    settings = launch_settings(PROGRAM, "sm_90", NUM_SMS)
    assert (settings.head.rows, settings.head.num_warps) == (2, 16)
    assert settings.norm_gate_up == shipped.norm_gate_up


def test_rows_found_are_read_back_as_the_same_settings(own):
    settings = launch_settings(PROGRAM, "sm_90", NUM_SMS).with_op("o_residual", rows=8, tiles=3)
    own.write_text(tuned_rows(PROGRAM, "sm_90", settings))
    assert launch_settings(PROGRAM, "sm_90", NUM_SMS) == settings


def test_new_rows_replace_their_like_and_leave_the_rest(own):
    own.write_text(ROW + '[sm_89.head."10x20"]\nrows = 1\nnum_warps = 4\n')
    own.write_text(
        merged_table('[sm_90.head."152064x3584"]\nrows = 8\nnum_warps = 8\nearly = true\n')
    )
    text = own.read_text()
    assert text.count('"152064x3584"') == 1
    assert '[sm_89.head."10x20"]' in text
    assert launch_settings(PROGRAM, "sm_90", NUM_SMS).head.early


@pytest.mark.parametrize("text", ["rows = [", '[sm_90.head."152064x3584"]\nlines = 3\n'])
def test_a_table_that_is_none_names_the_file(own, text):
    own.write_text(text)
    with pytest.raises(BadConfig, match=r"tuned\.toml"):
        launch_settings(PROGRAM, "sm_90", NUM_SMS)


def test_programs_that_wait_for_each_other_must_fit_the_device(own):
    assert launch_settings(PROGRAM, "sm_90", NUM_SMS).attend.together
    assert not launch_settings(PROGRAM, "sm_90", 100).attend.together
