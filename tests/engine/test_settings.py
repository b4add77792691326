"""Launch settings: the table, the heuristic, and what keeps programs that wait for each other
from being more than a device can hold."""

import tomllib
from importlib.resources import files
from typing import Any

import pytest

pytest.importorskip("torch")

from engine_families import shape_of

from decodegap.engine.kernels.settings import (
    AttendSettings,
    GemvSettings,
    heuristic,
    launch_settings,
    matrix_size,
    tuned_rows,
)
from decodegap.engine.program import Program, build_program
from decodegap.predict.model import from_hf

QWEN_7B: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}


def _qwen() -> Program:
    return build_program(from_hf(QWEN_7B, "qwen"))


def test_a_tuned_row_is_taken_on_its_architecture_alone() -> None:
    tuned = launch_settings(_qwen(), "sm_90", num_sms=132)
    assert tuned.attend.num_splits == 32
    assert launch_settings(_qwen(), "sm_80", num_sms=108) == heuristic(_qwen(), 108)


def test_a_tuned_row_from_a_larger_device_does_not_wait_for_absent_programs() -> None:
    assert launch_settings(_qwen(), "sm_90", num_sms=132).attend.together
    assert not launch_settings(_qwen(), "sm_90", num_sms=114).attend.together


@pytest.mark.parametrize("num_sms", [1, 20, 58, 108, 132, 148])
@pytest.mark.parametrize("family", ["llama2", "qwen3", "qwen2"])
def test_the_heuristic_combines_together_only_where_all_programs_fit(
    family: str, num_sms: int
) -> None:
    program = build_program(shape_of(family))
    attend = heuristic(program, num_sms).attend
    programs = attend.num_splits * program.shape.num_kv_heads
    assert attend.num_splits & (attend.num_splits - 1) == 0
    assert not attend.together or programs <= num_sms


def test_matrix_sizes_cover_the_programs_matrices() -> None:
    program = _qwen()
    shapes = {spec.name: spec.shape for spec in program.weights}
    for op in ("norm_qkv", "o_residual", "norm_gate_up", "down_residual"):
        assert matrix_size(program, op) == shapes[f"layer.0.{op}.weight"]
    assert matrix_size(program, "head") == shapes["head.weight"]


def test_rows_written_are_rows_read() -> None:
    settings = launch_settings(_qwen(), "sm_90", num_sms=132)
    table = tomllib.loads(tuned_rows(_qwen(), "sm_90", settings))["sm_90"]
    assert AttendSettings(**table["attend"]["28q4kv128"]) == settings.attend
    assert GemvSettings(**table["head"]["152064x3584"]) == settings.head


def test_every_row_of_the_table_is_settings() -> None:
    text = (files("decodegap.engine.kernels") / "tuned.toml").read_text(encoding="utf-8")
    for architecture in tomllib.loads(text).values():
        for op, rows in architecture.items():
            kind = AttendSettings if op == "attend" else GemvSettings
            for row in rows.values():
                kind(**row)
