"""Filling the cache: the engine against transformers, on the same weights, turn by turn.

    python -m benchmarks.prefill [--shape NAME] [--tokens N] [--rounds N]

Both fill a cache with the same prompt and pick its first token; the ratio is of medians.
"""

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

import torch

from decodegap.engine import Engine
from decodegap.measure.runtimes.hf_eager import HfEager
from decodegap.measure.runtimes.hf_model import load_model
from decodegap.measure.trial import Request, plan_trials
from decodegap.measure.worker import make_prompt
from decodegap.predict.catalogue import catalogue_models

_NUM_WARMUP = 3


def main() -> None:
    options = _options()
    request = Request(
        model=options.shape,
        runtimes=("hf-eager",),
        contexts=(options.tokens,),
        num_trials=1,
        num_warmup=0,
        num_steps=1,
        weights="synthetic",
        format="bf16",
        device="cuda:0",
        seed=0,
        timeout_seconds=600,
        probes=False,
    )
    trial = plan_trials(request)[0]
    model = load_model(trial)
    prompt = make_prompt(trial)
    engine = Engine.from_state(
        trial.shape, model.state_dict(), max_context=options.tokens + 64, device=trial.device
    )
    arms: dict[str, Callable[[], object]] = {
        "engine": lambda: engine.prefill(prompt[0]),
        "transformers": lambda: HfEager(model).prefill(prompt),
    }
    with torch.inference_mode():
        samples = take_turns(arms, options.rounds)
    ours, theirs = (statistics.median(samples[name]) for name in ("engine", "transformers"))
    print(f"{options.shape}, {options.tokens} tokens, {options.rounds} rounds, ms (least – most):")
    for name, seconds in samples.items():
        low, high = min(seconds) * 1e3, max(seconds) * 1e3
        print(f"  {name:13} {statistics.median(seconds) * 1e3:7.2f} ({low:.2f} – {high:.2f})")
    print(f"  engine ÷ transformers {ours / theirs:.3f}")


def take_turns(arms: dict[str, Callable[[], object]], num_rounds: int) -> dict[str, list[float]]:
    """Seconds of each arm, A B, B A, A B, …, after a warm-up that is thrown away."""
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for round_index in range(-_NUM_WARMUP, num_rounds):
        for name in list(arms) if round_index % 2 == 0 else reversed(arms):
            torch.cuda.synchronize()
            start = perf_counter()
            arms[name]()
            torch.cuda.synchronize()
            if round_index >= 0:
                samples[name].append(perf_counter() - start)
    return samples


def _options() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="qwen2.5-7b", choices=catalogue_models())
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args()


if __name__ == "__main__":
    main()
