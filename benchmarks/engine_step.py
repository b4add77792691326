"""The engine's step on a GPU: checked against the reference, then timed, then tuned.

    python -m benchmarks.engine_step [--tune SECONDS] [--shape NAME] [--skip-checks] [--out FOLDER]

Prints a short table last. With `--out`, writes every sample as JSON there, and the rows found after
a tuning run.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch

from decodegap.engine.check import Model, check_ops, run_steps
from decodegap.engine.kernels.settings import (
    GEMV_OPS,
    LaunchSettings,
    heuristic,
    launch_settings,
    tuned_rows,
)
from decodegap.engine.kernels.step import architecture, bytes_moved, num_sms
from decodegap.engine.tune import TuningBench, tune
from decodegap.predict.catalogue import catalogue_devices, catalogue_models, catalogue_shape
from decodegap.predict.device import match_runtime_name
from decodegap.predict.model import ModelShape

CONTEXTS = (2048, 16384)
ALL_OPS = ("embed", *GEMV_OPS[:-1], "attend", "head")


def main() -> None:
    options = _options()
    shape = catalogue_shape(options.shape)
    result: dict[str, Any] = {"shape": options.shape, "device": torch.cuda.get_device_name()}
    if not options.skip_checks:
        result["checks"] = check(shape)
    bench = TuningBench.synthetic(shape, CONTEXTS[-1] + 512, _device())
    settings = heuristic(bench.program, num_sms(_device()))
    if not options.heuristic:
        settings = bench.settings()
    result["before"] = measure(bench, settings)
    if options.tune:
        tuned, trials = tune(bench, settings, CONTEXTS, time.monotonic() + options.tune)
        result["trials"] = [asdict(trial) for trial in trials]
        result["after"] = measure(bench, tuned)
        result["after"]["ops"] = by_op(bench, tuned, CONTEXTS[0])
        result["tuned"] = tuned_rows(bench.program, architecture(_device()), tuned)
        settings = tuned
    else:
        result["before"]["ops"] = by_op(bench, settings, CONTEXTS[0])
    if options.out is not None:
        write(result, options.out)
    print(report(result))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen2.5-7b", choices=catalogue_models())
    parser.add_argument("--tune", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--skip-checks", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--heuristic", action="store_true", help="ignore the tuned table")
    return parser.parse_args()


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def check(shape: ModelShape) -> dict[str, Any]:
    """The shape with two layers: every op at each context, then whole steps, PDL on and off."""
    small = msgspec.structs.replace(shape, num_layers=2)
    model = Model.random(small, torch.bfloat16, "cuda", max_context=CONTEXTS[-1])
    settings = launch_settings(model.program, architecture(_device()), num_sms(_device()))
    found: dict[str, Any] = {}
    for position in (0, 1, 31, 2048, 16383):
        found[f"ops at {position}"] = check_ops(model, settings, pdl=True, position=position)
    for pdl in (False, True):
        error, divergence = run_steps(model, settings, pdl=pdl, position=2048, num_steps=4)
        found[f"4 steps, pdl {pdl}"] = {"logit_error": error, "kl": divergence}
        assert error < 0.03, error
    return found


def measure(bench: TuningBench, settings: LaunchSettings) -> dict[str, Any]:
    """Whole steps at each context: wall, back to back, and without dependent launch."""
    captured = bench.capture(settings)
    plain = bench.capture(settings, pdl=False)
    rows: dict[str, Any] = {"settings": asdict(settings)}
    for context in CONTEXTS:
        wall = bench.wall_seconds(captured, context)
        rows[str(context)] = {
            "wall_seconds": wall,
            "wall_median": statistics.median(wall),
            "back_to_back": bench.back_to_back_seconds(captured, context),
            "without_pdl": bench.back_to_back_seconds(plain, context),
            "bytes": step_bytes(bench, context),
        }
    return rows


def step_bytes(bench: TuningBench, context: int) -> int:
    return sum(bytes_moved(bench.program, bench.weights, bench.buffers, context).values())


def by_op(
    bench: TuningBench, settings: LaunchSettings, context: int
) -> dict[str, dict[str, float]]:
    """Each op switched off, and each op alone over all layers (its weights cold: they are many
    times L2)."""
    whole = bench.back_to_back_seconds(bench.capture(settings), context)
    moved = bytes_moved(bench.program, bench.weights, bench.buffers, context)
    rows = {}
    for op in ALL_OPS:
        others = frozenset(ALL_OPS) - {op}
        without = bench.back_to_back_seconds(bench.capture(settings, frozenset({op})), context)
        alone = bench.back_to_back_seconds(bench.capture(settings, others), context)
        rows[op] = {"cost": whole - without, "alone": alone, "bytes": moved[op]}
    return rows


def write(result: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"engine_step_{result['shape']}"
    (folder / f"{name}.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    if "tuned" in result:
        (folder / f"{name}_tuned.toml").write_text(result["tuned"], encoding="utf-8")


def report(result: dict[str, Any]) -> str:
    row = match_runtime_name(result["device"], catalogue_devices())
    bandwidth = None if row is None else row.bandwidth_bytes_per_second
    lines = [f"{result['shape']} on {result['device']}"]
    for check_name, values in result.get("checks", {}).items():
        lines.append(f"  {check_name}: " + ", ".join(f"{k} {v:.2g}" for k, v in values.items()))
    for trial in (t for t in result.get("trials", []) if t["kept"]):
        seconds = "no fit" if trial["seconds"] is None else f"{trial['seconds'] * 1e3:.4f} ms"
        changes = " ".join(f"{k}={v}" for k, v in trial["changes"].items())
        lines.append(f"  {trial['op']} {seconds} {changes}")
    for phase in ("before", "after"):
        lines += _phase_lines(phase, result.get(phase), bandwidth)
    if "tuned" in result:
        lines.append(result["tuned"])
    return "\n".join(lines)


def _phase_lines(phase: str, rows: dict[str, Any] | None, bandwidth: float | None) -> list[str]:
    if rows is None:
        return []
    lines = []
    for context in map(str, CONTEXTS):
        row = rows[context]
        floor = f" R {row['bytes'] / bandwidth / row['wall_median']:.3f}" if bandwidth else ""
        lines.append(
            f"{phase} ctx {context}: wall {row['wall_median'] * 1e3:.3f} ms{floor}, back to back "
            f"{row['back_to_back'] * 1e3:.3f}, pdl off {row['without_pdl'] * 1e3:.3f}"
        )
    for op, row in rows.get("ops", {}).items():
        lines.append(
            f"  {op}: costs {row['cost'] * 1e6:.0f} us, alone {row['alone'] * 1e6:.0f} us = "
            f"{row['bytes'] / row['alone'] / 1e12:.2f} TB/s"
        )
    return lines


if __name__ == "__main__":
    sys.exit(main())
