"""How each kernel is launched: data, looked up by architecture and shape.

`tuned.toml` holds rows found on a real device; `decodegap engine tune --save` adds a person's own
in a file of theirs, which goes first. A shape without a row takes the heuristic below, which
streams well but is not the best.
"""

import os
import tomllib
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from decodegap.engine.program import Program
from decodegap.errors import BadConfig

WHOLE_ROW_COLUMNS = 8192  # above, a vector does not fit in a program's registers
GEMV_OPS = ("norm_qkv", "o_residual", "norm_gate_up", "down_residual", "head")


@dataclass(frozen=True, kw_only=True, slots=True)
class GemvSettings:
    """One matrix-vector product.

    Without `block`, a program takes `tiles` times `rows` whole rows, one tile after another, the
    vector in registers. With `block`, it takes `rows` rows, that many columns at a time. `early`:
    let the next kernel's programs start before this one's input is there.
    """

    rows: int
    num_warps: int
    tiles: int = 1
    block: int | None = None
    early: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class AttendSettings:
    """Split-KV attention. Each KV head's context is cut into at most `num_splits` parts of whole
    `block`s of positions. `together`: combine the splits in several programs that wait for each
    other; only where all programs fit on the device at once. `early` as above."""

    num_splits: int
    block: int
    num_warps: int
    num_stages: int = 2
    together: bool = False
    early: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchSettings:
    """One entry per kernel of the step.

    `shared_percent`: how much of an SM's L1 all kernels ask as shared memory. Kernels that ask for
    different splits cannot be on one SM at once, so it would run empty between them; and loads in
    flight are held by what is left as L1. None leaves the split to the driver.
    """

    norm_qkv: GemvSettings
    attend: AttendSettings
    o_residual: GemvSettings
    norm_gate_up: GemvSettings
    down_residual: GemvSettings
    head: GemvSettings
    shared_percent: int | None = 0

    def with_op(self, op: str, **changes: Any) -> "LaunchSettings":
        """A copy with fields of one op changed."""
        return replace(self, **{op: replace(getattr(self, op), **changes)})


def launch_settings(program: Program, architecture: str, num_sms: int) -> LaunchSettings:
    """Tuned where there is a row for this architecture and shape, else the heuristic.

    `architecture` is `sm_90` and the like.

    Raises:
        BadConfig: the person's own table cannot be read.
    """
    settings = heuristic(program, num_sms)
    for table in (_shipped_table(), _own_table()):
        for op in (*GEMV_OPS, "attend"):
            row = table.get(architecture, {}).get(op, {}).get(shape_key(program, op))
            if row is not None:
                settings = _with_row(settings, op, row)
    return _where_it_fits(settings, program, num_sms)


def _with_row(settings: LaunchSettings, op: str, row: dict[str, Any]) -> LaunchSettings:
    """What a row does not say is the kind's default, not the heuristic's choice."""
    kind = AttendSettings if op == "attend" else GemvSettings
    try:
        changed: dict[str, Any] = {op: kind(**row)}
        return replace(settings, **changed)
    except TypeError as error:
        raise BadConfig(f"a tuned row for {op} is not one ({error}); see {own_table()}") from None


def _where_it_fits(settings: LaunchSettings, program: Program, num_sms: int) -> LaunchSettings:
    """Programs that wait for each other must all be on the device: one per SM always is. The
    table may come from a larger device of the same architecture."""
    programs = settings.attend.num_splits * program.shape.num_kv_heads
    if settings.attend.together and programs > num_sms:
        return settings.with_op("attend", together=False)
    return settings


def shape_key(program: Program, op: str) -> str:
    """What a tuned row is keyed by: `4608x3584` (outputs × inputs), or heads for attention."""
    if op == "attend":
        shape = program.shape
        return f"{shape.num_heads}q{shape.num_kv_heads}kv{shape.head_dim}"
    rows, columns = matrix_size(program, op)
    return f"{rows}x{columns}"


def matrix_size(program: Program, op: str) -> tuple[int, int]:
    """[outputs, inputs] of the op's matrix."""
    shape = program.shape
    return {
        "norm_qkv": (shape.q_size + 2 * shape.kv_size, shape.hidden_size),
        "o_residual": (shape.hidden_size, shape.q_size),
        "norm_gate_up": (2 * shape.intermediate_size, shape.hidden_size),
        "down_residual": (shape.hidden_size, shape.intermediate_size),
        "head": (shape.vocab_size, shape.hidden_size),
    }[op]


def heuristic(program: Program, num_sms: int) -> LaunchSettings:
    """A sound choice for any shape: whole rows where the vector fits in registers, else blocks of
    columns; several tiles a program where the matrix is tall enough to keep every SM busy."""
    gemv = {op: _gemv_heuristic(*matrix_size(program, op), num_sms) for op in GEMV_OPS}
    return LaunchSettings(
        norm_qkv=gemv["norm_qkv"],
        attend=_attend_heuristic(program, num_sms),
        o_residual=gemv["o_residual"],
        norm_gate_up=gemv["norm_gate_up"],
        down_residual=gemv["down_residual"],
        head=gemv["head"],
    )


def _gemv_heuristic(rows: int, columns: int, num_sms: int) -> GemvSettings:
    if columns > WHOLE_ROW_COLUMNS:
        return GemvSettings(rows=4, block=1024, num_warps=4)
    num_warps = 8 if columns <= 4096 else 16
    few = rows < 64 * num_sms
    return (
        GemvSettings(rows=4, tiles=2, num_warps=4)
        if few
        else GemvSettings(rows=4, num_warps=num_warps)
    )


def _attend_heuristic(program: Program, num_sms: int) -> AttendSettings:
    """As many splits as one program per SM allows, so that they can combine together."""
    splits = 1 << max(0, (num_sms // program.shape.num_kv_heads).bit_length() - 1)
    fits = splits * program.shape.num_kv_heads <= num_sms
    return AttendSettings(num_splits=min(splits, 64), block=128, num_warps=4, together=fits)


@cache
def _shipped_table() -> dict[str, Any]:
    text = (files("decodegap.engine.kernels") / "tuned.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def own_table() -> Path:
    """Where `decodegap engine tune --save` keeps what it found on this machine."""
    root = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(root) / "decodegap" / "tuned.toml"


def merged_table(rows: str) -> str:
    """The person's own table with `rows` put in, as TOML."""
    table = _own_table()
    for architecture, ops in tomllib.loads(rows).items():
        for op, shapes in ops.items():
            table.setdefault(architecture, {}).setdefault(op, {}).update(shapes)
    return "\n".join(
        "\n".join([f'[{architecture}.{op}."{key}"]', *_row_lines(row), ""])
        for architecture, ops in table.items()
        for op, shapes in ops.items()
        for key, row in shapes.items()
    )


def _row_lines(row: dict[str, Any]) -> list[str]:
    return [f"{name} = {str(value).lower()}" for name, value in row.items() if value is not None]


def _own_table() -> dict[str, Any]:
    try:
        return tomllib.loads(own_table().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BadConfig(f"cannot read {own_table()} ({error}); mend or remove it") from None


def tuned_rows(program: Program, architecture: str, settings: LaunchSettings) -> str:
    """`settings` as rows for `tuned.toml`."""
    lines = []
    for op in (*GEMV_OPS, "attend"):
        lines.append(f'[{architecture}.{op}."{shape_key(program, op)}"]')
        lines += [*_row_lines(asdict(getattr(settings, op))), ""]
    return "\n".join(lines)
