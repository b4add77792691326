"""The runtimes on tiny models of every architecture: they decode what a plain forward decodes, and
hold the bytes that are counted."""

import json
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from builders import make_trial, run_trial, shape_of, tiny, write_config
from decodegap.errors import BadCheckpoint, BadConfig, Unavailable, UnknownRuntime
from decodegap.measure import interventions, worker
from decodegap.measure.machine import list_gpus
from decodegap.measure.positions import PROBE_STEPS
from decodegap.measure.runtimes import hf_eager, hf_graph, hf_static
from decodegap.measure.runtimes.hf_model import DTYPES, build_config, load_model
from decodegap.measure.runtimes.registry import (
    RUNTIMES,
    get_runtime,
    runtime_factory,
    why_unavailable,
)
from decodegap.predict.formats import get_format
from decodegap.predict.traffic import parameter_bytes, step_traffic
from families import FAMILY_CONFIGS

CONTEXT, NUM_STEPS = 16, 6  # past the windows of 12
CPU_RUNTIMES = ("hf-eager", "hf-static")


@pytest.fixture
def strong_weights(monkeypatch):
    """Synthetic weights wide enough that position and context decide the logits."""
    from decodegap.measure.runtimes import hf_model

    monkeypatch.setattr(hf_model, "_SYNTHETIC_STD", 0.3)


def trial_of(name: str, **changes: Any):
    config = FAMILY_CONFIGS[name]
    settings = {"context": CONTEXT, "num_steps": NUM_STEPS} | changes
    return make_trial(config, shape=shape_of(config), **settings)


def prefilled(model: Any, trial: Any) -> Any:
    """The trial's runtime, with the prompt in its cache."""
    runtime = runtime_factory(get_runtime(trial.runtime))(model, trial)
    runtime.prefill(worker.make_prompt(trial))
    return runtime


def greedy_without_a_cache(
    model: Any, prompt: torch.Tensor, num_tokens: int
) -> tuple[list[int], torch.Tensor]:
    """The slowest way there is, the whole sequence anew for every token: (tokens, last logits)."""
    sequence = prompt
    for _ in range(num_tokens):
        logits = model(sequence, use_cache=False).logits[0, -1]
        sequence = torch.cat((sequence, logits.argmax().reshape(1, 1)), 1)
    return sequence[0, prompt.shape[1] :].tolist(), logits


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_runtimes_decode_what_a_plain_forward_decodes(name, strong_weights):
    trial = trial_of(name)
    with torch.inference_mode():
        model = load_model(trial)
        prompt = worker.make_prompt(trial)
        expected, logits = greedy_without_a_cache(model, prompt, NUM_STEPS + 1)
        for runtime_name in CPU_RUNTIMES:
            runtime = prefilled(model, msgspec.structs.replace(trial, runtime=runtime_name))
            decoded = [int(runtime.token)]
            for _ in range(NUM_STEPS):
                runtime.step()
                decoded.append(int(runtime.token))
            assert decoded == expected, runtime_name
            torch.testing.assert_close(runtime.logits(), logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_held_bytes_are_the_counted_bytes(name):
    """The growing cache after the prompt is exactly what a step at this context reads; the static
    one is allocated for all positions, or for a window."""
    trial = trial_of(name, format="bf16")
    counted = step_traffic(trial.shape, CONTEXT, get_format("bf16"))
    read = sum(flow.bytes for flow in counted.flows if flow.reason.startswith("keys and values of"))
    weights = parameter_bytes(trial.shape, get_format("bf16"))
    with torch.inference_mode():
        model = load_model(trial)
        eager = prefilled(model, trial).held_bytes()
        static_trial = msgspec.structs.replace(trial, runtime="hf-static")
        static = prefilled(model, static_trial).held_bytes()
    assert eager == {"parameters": weights, "kv_cache": read}
    length = hf_static.num_positions(static_trial)
    windows = trial.shape.attention_windows or (None,) * trial.shape.num_layers
    positions = sum(length if window is None else min(window, length) for window in windows)
    per_position = 2 * trial.shape.num_kv_heads * trial.shape.head_dim * 2
    assert static == {"parameters": weights, "kv_cache": positions * per_position}


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp32"])
def test_a_whole_trial_of_every_format(runtime, fmt):
    trial = make_trial(runtime=runtime, format=fmt)
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    measurement = report.measurement
    assert measurement.held_bytes["parameters"] == parameter_bytes(trial.shape, get_format(fmt))
    assert (len(measurement.timings["warmup"]), len(measurement.timings["wall"])) == (1, 3)
    assert min(measurement.timings["wall"]) > 0
    assert measurement.probes == {}
    assert "aten::mm" in {kernel.name for kernel in measurement.profile.kernels} or fmt == "fp16"
    assert len(measurement.verdict.decoded_tokens) == 1 + 3 + 1


def test_a_trial_that_times_nothing_needs_no_warm_up_either():
    """As the last round's, of a study without warm-up steps: it lists the kernels."""
    trial = make_trial(num_warmup=0, num_steps=0, probes=False)
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    assert report.measurement.profile.kernels
    assert report.measurement.timings["wall"] == []


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_logits_that_are_no_numbers_are_wrong_and_no_damaged_answer(runtime, monkeypatch):
    from decodegap.measure.runtimes import hf_model

    load = hf_model.load_model

    def load_damaged(trial):
        model = load(trial)
        model.get_output_embeddings().weight.data.fill_(float("nan"))
        return model

    monkeypatch.setattr(hf_model, "load_model", load_damaged)
    report = worker.report_on(make_trial(runtime=runtime), worker.LoadedModel())
    assert report.outcome == "wrong"
    assert "not finite" in report.reason


@pytest.mark.parametrize("name", ["gemma2", "phi3-window", "mixtral", "qwen3", "smollm3"])
def test_interventions_of_unusual_architectures(name):
    report = worker.report_on(trial_of(name, num_steps=3, probes=True), worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    probes = report.measurement.probes
    assert set(probes) == {"twin", "twin_linears", "linears", "no_attention"}
    assert all(sample > 0 for samples in probes.values() for sample in samples)


def bench_on(model, trial) -> interventions.Bench:
    return interventions.Bench(
        runtime=prefilled(model, trial),
        model=model,
        trial=trial,
        prompt=worker.make_prompt(trial),
        synchronize=lambda: None,
    )


def test_lengths_are_seen_again_from_a_cache_of_their_own(monkeypatch):
    """Ten steps over lengths that were timed, 16 + 1 to 16 + 20, in turn with ten over new ones."""
    trial = make_trial(num_warmup=5, num_steps=15)
    caches = []
    load = interventions.runtime_factory

    def note_cache(entry):
        def make(model, trial):
            caches.append(load(entry)(model, trial))
            return caches[-1]

        return make

    monkeypatch.setattr(interventions, "runtime_factory", note_cache)
    model = load_model(trial)
    bench = bench_on(model, trial)
    length = bench.runtime.cache.get_seq_length()
    samples = interventions.in_turn(bench)
    assert {name: len(steps) for name, steps in samples.items()} == {
        "lengths_new": PROBE_STEPS,
        "lengths_seen": PROBE_STEPS,
        "static_cache": PROBE_STEPS,
    }
    again, static = caches
    assert again.cache.get_seq_length() == trial.context + 2 + PROBE_STEPS
    assert isinstance(static, hf_static.HfStatic)
    # One more, by which it is known whether its attention runs at all.
    assert static.cache.get_seq_length() == trial.context + 1 + 2 + PROBE_STEPS
    assert bench.runtime.cache.get_seq_length() == length + 2 + PROBE_STEPS


@pytest.mark.parametrize("where", ["prefill", "step"])
def test_a_static_cache_that_the_attention_cannot_have_takes_no_turn(monkeypatch, where):
    def refuse(*arguments):
        raise Unavailable("takes no mask")

    monkeypatch.setattr(hf_static.HfStatic, where, refuse)
    trial = make_trial(num_warmup=5, num_steps=15)
    assert set(interventions.in_turn(bench_on(load_model(trial), trial))) == {
        "lengths_new",
        "lengths_seen",
    }


def test_the_static_cache_in_turn_runs_the_trial_s_attention_kernel(monkeypatch):
    asked = []
    load = interventions.runtime_factory

    def note(entry):
        def make(model, trial):
            asked.append(trial.runtime)
            return load(entry)(model, trial)

        return make

    monkeypatch.setattr(interventions, "runtime_factory", note)
    trial = make_trial(num_warmup=5, num_steps=15, runtime="hf-eager?sdpa=math")
    interventions.in_turn(bench_on(load_model(trial), trial))
    assert asked == ["hf-eager?sdpa=math", "hf-static?sdpa=math"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nSee the docs."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_no_memory_for_an_intervention_costs_no_time_that_was_measured(monkeypatch, error):
    def fail(bench):
        raise error

    left = interventions._INTERVENTIONS | {"twin": (("cpu",), fail)}
    monkeypatch.setattr(interventions, "_INTERVENTIONS", left)
    trial = make_trial(num_steps=3, probes=True)
    report = worker.report_on(trial, worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)
    assert set(report.measurement.probes) == {"linears", "no_attention"}
    (note,) = report.measurement.notes
    assert note == f"no intervention twin: {str(error).splitlines()[0]}"


def test_an_intervention_that_fails_otherwise_is_no_small_matter(monkeypatch):
    def fail(bench):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    left = interventions._INTERVENTIONS | {"twin": (("cpu",), fail)}
    monkeypatch.setattr(interventions, "_INTERVENTIONS", left)
    with pytest.raises(RuntimeError, match="illegal"):
        worker.report_on(make_trial(num_steps=3, probes=True), worker.LoadedModel())


@pytest.mark.parametrize("fmt", DTYPES)
def test_the_twin_is_of_the_trial_s_own_type(monkeypatch, fmt):
    twins = []
    make = interventions.synthetic_model

    def note(*arguments):
        twins.append(make(*arguments))
        return twins[-1]

    monkeypatch.setattr(interventions, "synthetic_model", note)
    trial = make_trial(format=fmt, num_steps=3)
    samples = interventions.host_twin(bench_on(load_model(trial), trial))
    (twin,) = twins
    assert {parameter.dtype for parameter in twin.parameters()} == {DTYPES[fmt]}
    assert set(samples) == {"twin", "twin_linears"}


def test_no_more_lengths_are_seen_again_than_were_timed():
    trial = make_trial(num_warmup=1, num_steps=4)
    samples = interventions.in_turn(bench_on(load_model(trial), trial))
    assert len(samples["lengths_seen"]) == 3  # the first two steps are its own warm-up


# hf-graph, with a graph of ours in place of CUDA's: what it captures it runs again when replayed


class EagerGraph:
    """Replays by calling the step again that it stands for."""

    step = None

    def replay(self):
        self.step()


@pytest.fixture
def graphs(monkeypatch):
    """`graphs(model, trial)`: a loaded hf-graph whose capture is a call like any other."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in (
        ("Stream", lambda: stream),
        ("current_stream", lambda: stream),
        ("stream", lambda stream: nullcontext()),
        ("graph", lambda graph: nullcontext()),
        ("CUDAGraph", EagerGraph),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)

    def load(model, trial):
        runtime = hf_graph.load(model, trial)
        runtime.graph.step = runtime._inner.step
        return runtime

    return load


def addresses(runtime: Any) -> list[int]:
    """Where everything lies that a replay reads or writes."""
    kept = [t for layer in runtime.cache.layers for t in (layer.keys, layer.cumulative_length)]
    tensors = (*kept, runtime.token, runtime.logits(), runtime._inner.position)
    return [tensor.data_ptr() for tensor in tensors]


def test_a_graph_is_captured_while_it_is_loaded_and_its_steps_are_those_of_the_static_cache(
    graphs, strong_weights
):
    trial = trial_of("llama", runtime="hf-static")
    model, prompt = load_model(trial), worker.make_prompt(trial)
    graph = graphs(model, trial)
    captured = addresses(graph)
    static = hf_static.load(model, trial)
    for runtime in (graph, static):
        with torch.inference_mode():
            runtime.prefill(prompt)
            runtime.tokens = [int(runtime.token)]
            for _ in range(NUM_STEPS):
                runtime.step()
                runtime.tokens.append(int(runtime.token))
    assert graph.tokens == static.tokens
    assert torch.equal(graph.logits(), static.logits())
    assert addresses(graph) == captured
    assert graph.cache.layers[0].cumulative_length == CONTEXT + NUM_STEPS


def test_a_prompt_shorter_than_the_warm_up_steps_meets_nothing_of_them(graphs, strong_weights):
    trial = trial_of("llama", context=1)
    model, prompt = load_model(trial), worker.make_prompt(trial)
    graph = graphs(model, trial)
    with torch.inference_mode():
        expected, logits = greedy_without_a_cache(model, prompt, 2)
        graph.prefill(prompt)
        graph.step()
    assert int(graph.token) == expected[1]
    torch.testing.assert_close(graph.logits(), logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("window", [12, 4096])
def test_a_graph_does_not_replay_a_window_however_wide(window):
    """What is left on the host is captured as a constant, the layer's mask with it."""
    config = FAMILY_CONFIGS["phi3-window"] | {"sliding_window": window}
    trial = make_trial(config, shape=shape_of(config))
    with pytest.raises(Unavailable, match=f"has one of {window}: .* use hf-static"):
        hf_graph.load(None, trial)


@pytest.mark.gpu
@pytest.mark.skipif(not list_gpus(), reason="no CUDA GPU")
def test_a_graph_decodes_right_and_its_capture_is_not_in_the_prefill():
    """A twin, which is captured as well; and capturing takes longer than so short a prompt."""
    trial = make_trial(runtime="hf-graph", format="bf16", device="cuda:0", probes=True)
    record = run_trial(trial)
    assert record.outcome == "ok", record.reason
    assert "twin" in record.measurement.probes
    assert record.measurement.prefill_seconds < record.measurement.prepare_seconds


def test_switching_attention_off_leaves_the_runtime_as_it_was(strong_weights):
    trial = make_trial()
    with torch.inference_mode():
        model = load_model(trial)
        before = model(worker.make_prompt(trial), use_cache=False).logits
        interventions.without_attention(bench_on(model, trial))
        after = model(worker.make_prompt(trial), use_cache=False).logits
    assert torch.equal(before, after)


def test_the_prompt_is_the_same_for_every_runtime_and_another_for_another_seed():
    first, second, other = (
        worker.make_prompt(make_trial(runtime=runtime, seed=seed))
        for runtime, seed in (("hf-eager", 0), ("hf-static", 0), ("hf-eager", 1))
    )
    assert first.shape == (1, 16)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


# Synthetic weights


def test_synthetic_weights_are_those_of_their_seed():
    def weights(seed):
        return load_model(make_trial(seed=seed)).state_dict()

    first, again, other = weights(0), weights(0), weights(1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


@pytest.mark.parametrize("name", ["llama", "gemma", "qwen2"])
def test_synthetic_weights_make_a_model_that_computes(name):
    """Matrices normal about zero; norms multiply by about one, in gemma as 1 + weight."""
    state = load_model(trial_of(name)).state_dict()
    matrix = state["model.layers.0.mlp.gate_proj.weight"]
    assert matrix.std() == pytest.approx(0.02, rel=0.1)
    assert abs(matrix.mean()) < 1e-3
    norm = state["model.norm.weight"].mean()
    assert norm == pytest.approx(0.0 if name == "gemma" else 1.0, abs=0.02)


def test_the_head_of_a_tied_model_is_its_embedding():
    model = load_model(trial_of("llama-tied"))
    assert model.lm_head.weight is model.model.embed_tokens.weight


# What transformers would build is what was counted


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_every_tiny_config_is_built_as_counted(name):
    build_config(trial_of(name))


@pytest.mark.parametrize(
    "field, value", [("intermediate_size", 100), ("tied_head", True), ("head_dim", 8)]
)
def test_a_count_of_another_model_is_refused(field, value):
    trial = make_trial()
    shape = msgspec.structs.replace(trial.shape, **{field: value})
    with pytest.raises(BadConfig, match=f"transformers reads `{field}` as"):
        build_config(msgspec.structs.replace(trial, shape=shape))


def test_a_config_is_not_changed_by_building_from_it():
    trial = make_trial()
    before = json.dumps(trial.config, sort_keys=True)
    load_model(trial)
    assert json.dumps(trial.config, sort_keys=True) == before


# Checkpoints


@pytest.fixture
def saved(tmp_path, strong_weights):
    """A checkpoint folder of the tiny model, as transformers saves one."""
    folder = tmp_path / "saved"
    load_model(make_trial()).save_pretrained(folder)
    return folder


def checkpoint_trial(folder, **changes: Any):
    config = json.loads((folder / "config.json").read_text())
    settings = {"weights": "checkpoint", "folder": str(folder)} | changes
    return make_trial(config, shape=shape_of(config), **settings)


def test_a_checkpoint_s_weights_are_the_ones_that_run(saved, strong_weights):
    original = load_model(make_trial()).state_dict()
    loaded = load_model(checkpoint_trial(saved, seed=9)).state_dict()
    assert set(original) == set(loaded)
    assert all(torch.equal(original[name], loaded[name]) for name in original)


@pytest.mark.parametrize("runtime", CPU_RUNTIMES)
def test_a_checkpoint_is_measured(saved, runtime):
    report = worker.report_on(checkpoint_trial(saved, runtime=runtime), worker.LoadedModel())
    assert (report.outcome, report.reason) == ("ok", None)


def test_a_checkpoint_with_a_tensor_missing(saved):
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadCheckpoint, match=r"lacks 1 tensors.*layers\.1\.mlp\.up_proj"):
        load_model(checkpoint_trial(saved))


def test_a_checkpoint_cut_short(saved):
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    report = worker.report_on(checkpoint_trial(saved), worker.LoadedModel())
    assert report.outcome == "crash"
    assert "cannot load" in report.reason
    assert "\n" not in report.reason


def test_a_checkpoint_of_another_shape(saved):
    write_config(saved, tiny(intermediate_size=112))
    with pytest.raises(BadCheckpoint):
        load_model(checkpoint_trial(saved))


# The registry


def test_every_runtime_s_module_has_its_loader():
    from importlib.util import find_spec

    for entry in RUNTIMES.values():
        assert find_spec(entry.module) is not None, entry.name
    for name in CPU_RUNTIMES:
        assert runtime_factory(get_runtime(name)) in (hf_eager.load, hf_static.load)


def test_unknown_runtime_names_the_nearest():
    with pytest.raises(UnknownRuntime, match="did you mean hf-static"):
        get_runtime("hf-statik")


def test_a_graph_needs_a_gpu_and_eager_does_not():
    assert why_unavailable(get_runtime("hf-eager"), "cpu") is None
    assert "needs a CUDA GPU" in why_unavailable(get_runtime("hf-graph"), "cpu")
    assert why_unavailable(get_runtime("hf-graph"), "cuda:0") is None


def test_a_missing_package_is_named(monkeypatch):
    from decodegap.measure.runtimes import registry

    monkeypatch.setattr(registry, "find_spec", lambda name: None if name == "torch" else object())
    reason = why_unavailable(get_runtime("hf-eager"), "cpu")
    assert reason == "needs torch: pip install 'decodegap[measure]'"
