"""What decodegap itself costs: `make bench`.

Four figures, each from raw samples taken here and now: time of `decodegap floor` from start to
exit, time to import the core, what the parent adds to a trial, and how far five identical CPU
trials differ. Figures of one run compare with each other only; machines are noisy.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from decodegap.explain.summary import coefficient_of_variation
from decodegap.measure.parent import run_worker
from decodegap.measure.session import run_trials
from decodegap.measure.trial import Request, plan_trials

_NUM_STARTS = 15
_NUM_WORKERS = 5


def main() -> None:
    figures = {
        "floor, start to exit": starts([sys.executable, "-m", "decodegap", "floor", "qwen2.5-7b"]),
        "import decodegap.cli": starts([sys.executable, "-c", "import decodegap.cli"]),
        "bare interpreter": starts([sys.executable, "-c", "pass"]),
        "worker that only answers": workers(),
    }
    for name, samples in figures.items():
        print(f"{name:28} {median(samples) * 1e3:8.1f} ms   (min {min(samples) * 1e3:.1f})")
    parent = median(figures["worker that only answers"]) - median(figures["bare interpreter"])
    print(f"{'parent, per trial':28} {parent * 1e3:8.1f} ms   (the two lines above)")
    medians = identical_trials()
    cv = coefficient_of_variation(medians)
    print(f"{'CV of five identical trials':28} {cv:8.1%}      medians {_milliseconds(medians)}")
    print(json.dumps({**figures, "identical trials": medians}))


def _milliseconds(seconds: Sequence[float]) -> str:
    return ", ".join(f"{value * 1e3:.2f}" for value in seconds) + " ms"


def starts(command: list[str]) -> list[float]:
    """Seconds from start to exit; the first start, which fills the file cache, is thrown away."""
    samples = []
    for _ in range(_NUM_STARTS + 1):
        start = perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        samples.append(perf_counter() - start)
    return samples[1:]


def workers() -> list[float]:
    """Seconds of a worker that does nothing but take its job and answer."""
    ended = [run_worker("benchmarks.echo_worker", b"job", 60.0) for _ in range(_NUM_WORKERS)]
    assert all(exit_.message == b"job" for exit_ in ended), ended
    return [exit_.seconds for exit_ in ended]


def identical_trials() -> list[float]:
    """Median steps of five equal trials of SmolLM2-135M's shape on the CPU."""
    request = Request(
        model="smollm2-135m",
        runtimes=("hf-static",),
        contexts=(512,),
        num_trials=5,
        num_warmup=5,
        num_steps=30,
        weights="synthetic",
        format="bf16",
        device="cpu",
        seed=0,
        timeout_seconds=300.0,
        probes=False,
    )
    with TemporaryDirectory() as folder:
        stored = list(run_trials(plan_trials(request), Path(folder)))
    failed = [s.record.reason for s in stored if s.record.outcome != "ok"]
    assert not failed, failed
    return [median(s.record.wall_samples) for s in stored]


if __name__ == "__main__":
    main()
