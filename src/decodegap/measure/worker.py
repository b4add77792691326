"""The worker: the trials of one process in turn, one report each, exit.

Run by the parent as `python -m decodegap.measure.worker FD FD`: where to answer, where the job is.
"""

import gc
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from decodegap.errors import DecodegapError, DoesNotFit, Unavailable, first_line
from decodegap.measure.machine import is_out_of_memory
from decodegap.measure.parent import ENDS_PROCESS, WorkerReport, read_job, send_report
from decodegap.measure.positions import LEAST_TIMER_STEPS, MOST_TIMER_STEPS, NUM_PROFILED
from decodegap.measure.runtimes.registry import get_runtime, runtime_factory
from decodegap.record import Measurement, Outcome, Trial, Verdict

_OTHER_SECONDS = 0.5  # that each of the other timers takes, within the bounds of its steps


def main() -> None:
    trials = msgspec.json.decode(read_job(), type=list[Trial])
    model = LoadedModel()
    for trial in trials:
        report = report_on(trial, model)
        send_report(msgspec.json.encode(report))
        if report.outcome in ENDS_PROCESS:
            return
        if trial is not trials[-1]:
            clear_away(trial.device)


class LoadedModel:
    """The model of this process's trials, which differ in neither model nor weights; loaded by the
    first of them."""

    def __init__(self) -> None:
        self._model: Any = None

    def get(self, trial: Trial) -> Any:
        from decodegap.measure.runtimes.hf_model import load_model

        if self._model is None:
            self._model = load_model(trial)
            gc.freeze()  # the garbage collector need not look through all that again for each trial
        return self._model

    @property
    def is_there(self) -> bool:
        return self._model is not None


def clear_away(device: str) -> None:
    """Free what the last trial's runtime held and forget what was compiled for it. What libraries
    keep for themselves stays: plans, workspaces, loaded kernels."""
    import torch

    torch.compiler.reset()
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def report_on(trial: Trial, model: LoadedModel) -> WorkerReport:
    """Run the trial; a failure that has a name comes back as its outcome. What has none is left
    to end the process: the parent records the crash with what was printed."""
    from decodegap.measure.verdict import NotFinite

    try:
        return measure(trial, model)
    except DoesNotFit as error:
        return WorkerReport(outcome="oom", reason=str(error))
    except NotFinite as error:
        return WorkerReport(outcome="wrong", reason=str(error))
    except Unavailable as error:
        return WorkerReport(outcome="unavailable", reason=str(error))
    except DecodegapError as error:
        return WorkerReport(outcome="crash", reason=str(error))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return WorkerReport(outcome="oom", reason=first_line(error))


def measure(trial: Trial, loaded: LoadedModel) -> WorkerReport:
    """Load, prefill, warm up, time, judge, intervene, look at what ran."""
    import torch

    from decodegap.measure.environment import describe_environment, host_state
    from decodegap.measure.interventions import Bench, intervene
    from decodegap.measure.runtimes.hf_model import notes_on
    from decodegap.measure.wide_matmul import NOTE, lacks_instructions, wide_where_slow

    synchronize = synchronizer(trial.device)
    is_loaded = loaded.is_there
    loading = _Stopwatch(synchronize)
    model = loaded.get(trial)
    load_seconds = 0.0 if is_loaded else loading.lap()
    runtime = runtime_factory(get_runtime(trial.runtime))(model, trial)
    prepare_seconds = loading.lap()
    prompt = make_prompt(trial)
    with torch.inference_mode():
        with wide_where_slow(model.dtype, trial.device):
            runtime.prefill(prompt)
        prefill_seconds = loading.lap()
        before = host_state(trial.device)
        timings, decoded = time_steps(runtime, trial, synchronize)
        after = host_state(trial.device)
        last_logits = runtime.logits().clone()
        if trial.num_steps:
            timings |= other_timers(runtime, trial, synchronize, median(timings["wall"]))
    with wide_where_slow(model.dtype, trial.device):
        verdict = verdict_on(model, prompt, decoded, last_logits, trial)
    bench = Bench(runtime=runtime, model=model, trial=trial, prompt=prompt, synchronize=synchronize)
    probes, left_out = intervene(bench) if trial.probes else ({}, ())
    # Last: what a profiler hooks into stays, and slows whatever this process times after it.
    profile = profile_of(runtime, trial) if trial.profile else None
    outcome, reason = outcome_of(verdict, timings["wall"], trial)
    wide = (NOTE,) if lacks_instructions(model.dtype, trial.device) else ()
    return WorkerReport(
        outcome=outcome,
        reason=reason,
        measurement=Measurement(
            load_seconds=load_seconds,
            prepare_seconds=prepare_seconds,
            prefill_seconds=prefill_seconds,
            timings=timings,
            probes=probes,
            verdict=verdict,
            profile=profile,
            held_bytes=runtime.held_bytes(),
            notes=(*notes_on(model), *wide, *left_out),
        ),
        environment=describe_environment(trial.device, torch.get_num_threads(), before, after),
    )


class _Stopwatch:
    """Seconds since the last lap, with the device idle at both ends."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._start = perf_counter()

    def lap(self) -> float:
        self._synchronize()
        now = perf_counter()
        seconds, self._start = now - self._start, now
        return seconds


def synchronizer(device: str) -> Callable[[], None]:
    """What waits for `device`: nothing to wait for on a CPU."""
    import torch

    if device == "cpu":
        return lambda: None
    torch.cuda.set_device(device)
    return torch.cuda.synchronize


def make_prompt(trial: Trial) -> Any:
    """Seeded random token ids, int64 [1, context]: the same for every runtime of a run."""
    import torch

    generator = torch.Generator().manual_seed(trial.seed)
    ids = torch.randint(trial.shape.vocab_size, (1, trial.context), generator=generator)
    return ids.to(trial.device)


def time_steps(
    runtime: Any, trial: Trial, synchronize: Callable[[], None]
) -> tuple[dict[str, list[float]], list[int]]:
    """Warm-up and timed steps under `wall`, and every token decoded, read back between steps
    while no clock runs. Garbage is collected before, not during."""
    from decodegap.measure.timers import wall

    decoded = [int(runtime.token)]

    def note_token() -> None:
        decoded.append(int(runtime.token))

    gc.collect()
    gc.disable()
    try:
        warmup = wall(runtime.step, trial.num_warmup, synchronize, note_token)
        timed = wall(runtime.step, trial.num_steps, synchronize, note_token)
    finally:
        gc.enable()
    return {"warmup": warmup, "wall": timed}, decoded


def other_timers(
    runtime: Any, trial: Trial, synchronize: Callable[[], None], step_seconds: float
) -> dict[str, list[float]]:
    from decodegap.measure import timers

    if trial.device == "cpu":
        return {}
    num_steps = round(_OTHER_SECONDS / step_seconds)
    num_steps = max(LEAST_TIMER_STEPS, min(MOST_TIMER_STEPS, num_steps))
    return {
        "back_to_back": timers.back_to_back(runtime.step, num_steps, synchronize),
        "events": timers.events(runtime.step, num_steps, trial.device),
    }


def profile_of(runtime: Any, trial: Trial) -> Any:
    import torch

    from decodegap.measure.profile import profile_steps

    with torch.inference_mode():
        return profile_steps(runtime.step, NUM_PROFILED, on_gpu=trial.device != "cpu")


def verdict_on(
    model: Any, prompt: Any, decoded: list[int], last_logits: Any, trial: Trial
) -> Verdict:
    from decodegap.measure.verdict import judge

    return judge(model, prompt, decoded, last_logits, trial.format)


def outcome_of(
    verdict: Verdict, wall_samples: list[float], trial: Trial
) -> tuple[Outcome, str | None]:
    """A time counts if the logits are right and the bytes could have been moved in it."""
    if not verdict.passed:
        return "wrong", (
            f"logits differ from the reference: KL {verdict.kl_divergence:.2g} nats "
            f"(at most {verdict.max_kl_divergence:g}), worst pick {verdict.worst_gap:.2g} σ below "
            f"(at most {verdict.max_gap:g})"
        )
    floor = reachable_floor(trial)
    fastest = min(wall_samples, default=None)
    if floor is not None and fastest is not None and fastest < floor:
        return "impossible", (
            f"a step of {fastest:.3e} s beats the reachable floor of {floor:.3e} s: the bandwidth "
            "probe, the byte count or the clock is wrong; run `decodegap measure --probe-again`"
        )
    return "ok", None


def reachable_floor(trial: Trial) -> float | None:
    """Seconds below which no step of this trial is believed."""
    from decodegap.predict.formats import get_format
    from decodegap.predict.traffic import step_traffic

    if trial.reachable_bytes_per_second is None:
        return None
    traffic = step_traffic(trial.shape, trial.context, get_format(trial.format))
    return traffic.bytes / trial.reachable_bytes_per_second


if __name__ == "__main__":
    main()
