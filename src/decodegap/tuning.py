"""`decodegap engine tune`: launch settings for one model on one GPU, as rows to keep.

The search itself is the engine's (`engine/tune.py`); here it gets a model and a time, and what it
found becomes words and a table.
"""

from pathlib import Path
from time import monotonic

import msgspec

from decodegap.errors import BadContext, Unavailable
from decodegap.files import write_over
from decodegap.measure.environment import package_versions
from decodegap.measure.machine import gpu_of
from decodegap.predict.model import ModelShape
from decodegap.predict.traffic import check_context
from decodegap.units import format_seconds


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """`rows` is TOML for a table of launch settings; `words` says what the search did."""

    words: str
    rows: str


_CONTEXTS = (2048, 16384)
# Of the cache behind a context: for the replays that are timed there, and as long as it usually is.
_LEAST_SPARE, _SPARE = 64, 512


def contexts_for(shape: ModelShape, asked: tuple[int, ...] | None) -> tuple[int, ...]:
    """The contexts asked for; with none, a short and a long one, as far as the model has them.

    Raises:
        BadContext: one leaves no room for the steps that are timed.
    """
    most = shape.max_context - _LEAST_SPARE
    if not asked:
        return tuple(context for context in _CONTEXTS if context <= most) or (max(1, most),)
    for context in asked:
        check_context(shape, context)
        if context > most:
            raise BadContext(
                f"context {context} leaves no room for the steps timed there in the "
                f"{shape.max_context} positions of {shape.name}; at most {most}"
            )
    return asked


def require_gpu(torch_device: str) -> None:
    """Raises Unavailable on a CPU, where no kernel is launched."""
    if torch_device == "cpu":
        raise Unavailable("launch settings are a GPU's; run this on a machine with a CUDA GPU")


def tune_model(
    shape: ModelShape, contexts: tuple[int, ...], torch_device: str, seconds: float
) -> Tuned:
    """Search for `seconds`, on synthetic weights, by the mean step over `contexts`, which are those
    of `contexts_for`.

    Raises:
        BadConfig, BadContext: the engine cannot decode this model or so long a context.
    """
    import torch

    from decodegap.engine.kernels.settings import tuned_rows
    from decodegap.engine.kernels.step import architecture
    from decodegap.engine.tune import TuningBench, tune

    device = torch.device(torch_device)
    with torch.cuda.device(device):
        bench = TuningBench.synthetic(shape, min(shape.max_context, max(contexts) + _SPARE), device)
        before = bench.settings()
        after, trials = tune(bench, before, contexts, monotonic() + seconds)
        steps = [
            bench.back_to_back_seconds(bench.capture(settings), context)
            for settings in (before, after)
            for context in contexts
        ]
        rows = tuned_rows(bench.program, architecture(device), after)
    kept = sum(trial.kept for trial in trials)
    words = [f"{shape.name} on {gpu_of(torch_device).name}: {len(trials)} tried, {kept} kept"]
    for context, old, new in zip(contexts, steps, steps[len(contexts) :], strict=False):
        change = f"{format_seconds(old)} → {format_seconds(new)}"
        words.append(f"context {context}: {change} a step, back to back")
    return Tuned(words="\n".join(words), rows=f"{_origin(shape, torch_device)}\n{rows}")


def _origin(shape: ModelShape, torch_device: str) -> str:
    """A comment that says where rows come from; they hold for this GPU and these versions."""
    gpu, versions = gpu_of(torch_device), package_versions()
    stack = ", ".join(f"{name} {versions.get(name, '?')}" for name in ("torch", "triton"))
    return f"# {shape.name}. {gpu.name}, driver {gpu.driver}, {stack}.\n"


def save_rows(rows: str) -> Path:
    """Put rows into the person's own table; one of the same architecture, op and shape replaces
    what was there.

    Raises:
        BadConfig: the table that is there cannot be read.
        OutputFolder: it cannot be written.
    """
    from decodegap.engine.kernels.settings import merged_table, own_table

    path = own_table()
    data = merged_table(rows).encode()
    return write_over(data, path)
