"""Choose launch settings on the whole step, on the device at hand.

A kernel that is fastest alone need not be fastest in the step: what it leaves to the next one, and
what that one may load meanwhile, count as much. So every candidate is timed as a whole captured
step, one op after another, keeping what helps.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from decodegap.engine.buffers import Buffers, allocate
from decodegap.engine.graph import CapturedStep
from decodegap.engine.kernels.settings import (
    WHOLE_ROW_COLUMNS,
    LaunchSettings,
    launch_settings,
    matrix_size,
)
from decodegap.engine.kernels.step import KernelStep, architecture, num_sms, supports_pdl
from decodegap.engine.program import Program, build_program
from decodegap.engine.weights import Weights, synthetic_weights
from decodegap.predict.model import ModelShape

TUNED_OPS = ("attend", "norm_gate_up", "down_residual", "norm_qkv", "o_residual", "head")
SHARED_PERCENTS = (0, None, 25)
LEAST_GAIN = 0.0008  # smaller differences are noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One candidate, timed. `seconds` is None where it does not compile or does not fit."""

    op: str
    changes: dict[str, Any]
    seconds: float | None
    kept: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TuningBench:
    """A model on a GPU whose steps can be timed with any settings. The cache is random."""

    program: Program
    weights: Weights
    buffers: Buffers
    pdl: bool = True

    @classmethod
    def synthetic(cls, shape: ModelShape, max_context: int, device: torch.device) -> "TuningBench":
        """Random weights and a random cache in bf16.

        Raises:
            BadConfig, BadContext: the engine cannot decode this model or so long a context.
        """
        program = build_program(shape, max_context)
        buffers = allocate(program, torch.bfloat16, device)
        for name in ("keys", "values"):
            buffers[name].normal_()
        return cls(
            program=program,
            weights=synthetic_weights(program, torch.bfloat16, device, seed=0),
            buffers=buffers,
            pdl=supports_pdl(device),
        )

    @property
    def device(self) -> torch.device:
        return self.buffers["hidden"].device

    def settings(self) -> LaunchSettings:
        """What an engine of this program takes on this device."""
        return launch_settings(self.program, architecture(self.device), num_sms(self.device))

    def capture(
        self,
        settings: LaunchSettings,
        without: frozenset[str] = frozenset(),
        pdl: bool | None = None,
    ) -> CapturedStep:
        """A graph of the step, ops in `without` left out."""
        step = KernelStep(
            self.program, self.weights, self.buffers, settings, self.pdl if pdl is None else pdl
        )
        self.place(0)
        captured = CapturedStep(lambda: step.run(without), self.device)
        captured.keep(step)
        return captured

    def place(self, position: int) -> None:
        self.buffers["token"].fill_(1)
        self.buffers["position"].fill_(position)

    def back_to_back_seconds(
        self, captured: CapturedStep, position: int, num_steps: int = 8, num_batches: int = 3
    ) -> float:
        """Median over batches of the mean step, by events around `num_steps` replays. Hides what
        a host adds to each step; says nothing about the wall clock."""
        batches = []
        for _ in range(num_batches):
            self.place(position)
            stream = torch.cuda.current_stream(self.device)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            captured.replay()
            start.record(stream)
            for _ in range(num_steps):
                captured.replay()
            end.record(stream)
            end.synchronize()
            batches.append(start.elapsed_time(end) / 1e3 / num_steps)
        return statistics.median(batches)

    def wall_seconds(
        self, captured: CapturedStep, position: int, num_steps: int = 50
    ) -> list[float]:
        """Each step with a synchronise before and after, as a control loop sees it."""
        samples = []
        self.place(position)
        for _ in range(num_steps):
            torch.cuda.synchronize(self.device)
            start = time.perf_counter()
            captured.replay()
            torch.cuda.synchronize(self.device)
            samples.append(time.perf_counter() - start)
        return samples


def tune(
    bench: TuningBench,
    settings: LaunchSettings,
    positions: tuple[int, ...],
    deadline: float,
    ops: tuple[str, ...] = TUNED_OPS,
) -> tuple[LaunchSettings, list[Attempt]]:
    """Improve `settings` op by op until `deadline` (of `time.monotonic`), by the mean step over
    `positions`. Returns the best found and everything tried."""
    best_seconds = _seconds(bench, settings, positions)
    trials: list[Attempt] = []
    for op, stage in _all_stages(bench.program, ops, num_sms(bench.device)):
        base = settings
        for changes in stage:
            if time.monotonic() > deadline:
                return settings, trials
            candidate = _changed(base, op, changes)
            if candidate == settings:
                continue
            seconds = _try(bench, candidate, positions)
            kept = seconds is not None and seconds < best_seconds * (1 - LEAST_GAIN)
            if kept and seconds is not None:
                settings, best_seconds = candidate, seconds
            trials.append(Attempt(op=op, changes=changes, seconds=seconds, kept=kept))
    return settings, trials


def _all_stages(
    program: Program, ops: tuple[str, ...], sms: int
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    yield "step", [{"shared_percent": percent} for percent in SHARED_PERCENTS]
    for op in ops:
        for stage in _stages(program, op, sms):
            yield op, stage


def _changed(settings: LaunchSettings, op: str, changes: dict[str, Any]) -> LaunchSettings:
    return replace(settings, **changes) if op == "step" else settings.with_op(op, **changes)


def _try(bench: TuningBench, settings: LaunchSettings, positions: tuple[int, ...]) -> float | None:
    from triton.runtime.errors import OutOfResources

    try:
        return _seconds(bench, settings, positions)
    except OutOfResources:
        return None


def _seconds(bench: TuningBench, settings: LaunchSettings, positions: tuple[int, ...]) -> float:
    """Mean step over `positions`."""
    captured = bench.capture(settings)
    return statistics.mean(bench.back_to_back_seconds(captured, p) for p in positions)


def _stages(program: Program, op: str, sms: int) -> Iterator[list[dict[str, Any]]]:
    """Candidates of one op: its tiles, then when it lets the next start. Each stage starts from the
    best of the one before."""
    if op == "attend":
        yield list(_attend_tiles(program, sms))
    else:
        yield list(_gemv_tiles(*matrix_size(program, op)))
    yield [{"early": False}, {"early": True}]


def _gemv_tiles(rows: int, columns: int) -> Iterator[dict[str, Any]]:
    if columns > WHOLE_ROW_COLUMNS:
        for num_rows, block, num_warps in _LONG_TILES:
            yield {"rows": num_rows, "block": block, "num_warps": num_warps, "tiles": 1}
        return
    many = (1, 2, 3, 5) if rows < 10000 else (1, 8)
    for num_rows, num_warps in ((4, 8), (4, 4), (2, 4), (2, 8), (8, 8)):
        for tiles in many:
            yield {"rows": num_rows, "block": None, "num_warps": num_warps, "tiles": tiles}


# Rows, block, warps.
_LONG_TILES = (
    (4, 1024, 4),
    (2, 2048, 4),
    (1, 4096, 4),
    (2, 1024, 4),
    (2, 4096, 8),
    (4, 2048, 8),
    (8, 1024, 8),
)


def _attend_tiles(program: Program, sms: int) -> Iterator[dict[str, Any]]:
    num_kv_heads = program.shape.num_kv_heads
    for num_splits in (8, 16, 32, 64):
        for block, num_warps in ((128, 4), (64, 4), (64, 8)):
            for together in (False, True):
                if together and num_splits * num_kv_heads > sms:
                    continue
                yield {
                    "num_splits": num_splits,
                    "block": block,
                    "num_warps": num_warps,
                    "together": together,
                }
