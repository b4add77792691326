"""Other tools' files: what is read of them, held against floors computed by hand."""

import json
from pathlib import Path
from statistics import median

import msgspec
import pytest

from decodegap.errors import UnknownDevice, UnknownFormat, UnknownModel
from decodegap.explain.foreign.figure import BadForeignFile, ForeignFigure
from decodegap.explain.foreign.given import Given
from decodegap.explain.foreign.grade import Grading, grade_figures
from decodegap.explain.foreign.read import read_foreign
from decodegap.predict.catalogue import catalogue_shape
from decodegap.predict.formats import get_format
from decodegap.predict.tensors import parameter_tensors
from decodegap.predict.traffic import step_traffic

FILES = Path(__file__).parent.parent / "fixtures" / "foreign"

# qwen2.5-7b moves 14 259 047 424 bytes a step in 16 bits at context 2048 (`decodegap floor`), of
# which a cached position is 28 layers × 2 × 512 elements × 2 bytes.
QWEN_AT_2048, QWEN_POSITION = 14_259_047_424, 57_344
H200 = 4.8e12

# smollm2-135m: its embedding is its head; a cached position is 30 layers × 2 × 192 × 2 bytes.
SMOLLM2_PARAMETERS, SMOLLM2_POSITION = 134_515_008, 30 * 2 * 192 * 2
SMOLLM2_HERE = {"model": "smollm2-135m", "bandwidth": 60e9}

ON_A_GPU = {
    "cpu_info": "Made-up CPU",
    "gpu_info": "NVIDIA H200",
    "backends": "CUDA",
    "model_filename": "made-up/qwen2.5-7b-f16.gguf",
    "model_type": "qwen2 7B F16",
    "model_size": 15_237_853_184,
    "model_n_params": 7_615_616_512,
    "n_gen": 128,
    "avg_ns": 509_866_667,
    "samples_ns": [512_000_000, 499_200_000, 518_400_000],
}


def qwen_bytes(context: int) -> int:
    return QWEN_AT_2048 + (context - 2048) * QWEN_POSITION


def load(name: str):
    return json.loads((FILES / name).read_text(encoding="utf-8"))


def read(document) -> list[ForeignFigure]:
    return read_foreign(json.dumps(document).encode())


def grade(document, **given) -> Grading:
    return grade_figures(read(document), Given(**given))


def bench_row(**changes) -> dict:
    """The generating test of a real file, as if a 7B model had run on a GPU."""
    return load("llama_bench.json")[1] | ON_A_GPU | changes


def gpu_rows() -> list[dict]:
    """A prompt alone, and two tests that generate."""
    prompt = bench_row(n_prompt=512, n_gen=0, samples_ns=[20_000_000])
    deep = bench_row(n_depth=2048, samples_ns=[524_800_000, 537_600_000, 531_200_000])
    return [prompt, bench_row(), deep]


def lines(name: str) -> list[dict]:
    return [json.loads(line) for line in (FILES / name).read_text().splitlines()]


def smollm2_cache_and_logits(context: int) -> int:
    """Bytes a step moves beside the weights: `context` positions and the new one, the embedding's
    row, the logits."""
    return (context + 1) * SMOLLM2_POSITION + 2 * 576 + 2 * 49_152


def optimum_on_a_gpu() -> dict:
    """The real file, as if a 7B model had run on the second of two GPUs."""
    document = load("optimum_benchmark.json")
    document["config"]["backend"] |= {
        "model": "mistralai/Mistral-7B-v0.3",
        "device": "cuda",
        "device_ids": "1",
        "torch_dtype": "float16",
    }
    document["config"]["environment"]["gpu"] = ["NVIDIA DGX Display", "NVIDIA A100-SXM4-80GB"]
    return document


def texts(grading: Grading) -> str:
    return "\n".join(finding.text for finding in grading.findings)


# llama-bench


def test_a_real_llama_bench_file():
    rows = load("llama_bench.json")
    figures = read(rows)
    assert len(rows) == 12  # two files × (a prompt, a generation, both) × two depths
    assert [figure.what for figure in figures[:4]] == [
        "llama 256M BF16 tg32",
        "llama 256M BF16 pp64+tg32",
        "llama 256M BF16 tg32 @ d256",
        "llama 256M BF16 pp64+tg32 @ d256",
    ]
    assert [figure.format for figure in figures] == ["bf16"] * 4 + ["fp16"] * 4
    assert {figure.device_text for figure in figures} == {"AMD EPYC"}
    assert {figure.version for figure in figures} == {"1 0c1e570"}
    assert all(figure.unread == () and figure.batch == 1 for figure in figures)
    assert len({figure.what for figure in figures}) == len(figures)


def test_a_real_llama_bench_file_is_graded():
    rows = [row for row in load("llama_bench.json") if row["n_gen"]]
    grading = grade(rows, **SMOLLM2_HERE)
    for row, one in zip(rows, grading.grades, strict=True):
        # Steps see this many tokens before them in the mean: 32 of them, 0 … 31 and more.
        assert one.context == row["n_depth"] + row["n_prompt"] + 15
        assert one.step == pytest.approx(median(row["samples_ns"]) * 1e-9 / 32)
        assert one.bytes == 2 * SMOLLM2_PARAMETERS + smollm2_cache_and_logits(one.context)
        assert one.floor == pytest.approx(one.bytes / 60e9)
        assert one.step_is_most == one.r_floor_is_least == (row["n_prompt"] > 0)
        assert not one.floor_is_least
    assert not grading.any_impossible
    told = [(finding.text.partition(":")[0], len(finding.cells)) for finding in grading.findings]
    assert told == [("one process", 8), ("prefill is inside this figure", 4)]


def test_a_real_quantised_file_is_bounded_by_its_own_size():
    rows = [row for row in lines("llama_bench_quantised.jsonl") if row["n_gen"]]
    data = (FILES / "llama_bench_quantised.jsonl").read_bytes()
    grading = grade_figures(read_foreign(data), Given(**SMOLLM2_HERE))
    assert {one.figure.format_text for one in grading.grades} == {"Q4_0", "Q8_0", "Q4_K - Medium"}
    for row, one in zip(rows, grading.grades, strict=True):
        assert one.format is None
        assert one.bytes == row["model_size"] + (one.context + 1) * SMOLLM2_POSITION
        assert one.floor_is_least
    assert not grading.any_impossible
    assert grading.grades[0].figure.unread == ()


def test_settings_that_differ_are_in_the_name():
    figures = read(load("llama_bench_varied.json"))
    assert [figure.what for figure in figures[:4]] == [
        "llama 256M Q8_0 tg16 @ d512 n_threads 1 type_k f16",
        "llama 256M Q8_0 tg16 @ d512 n_threads 2 type_k f16",
        "llama 256M Q8_0 tg16 @ d512 n_threads 1 type_k q8_0",
        "llama 256M Q8_0 tg16 @ d512 n_threads 2 type_k q8_0",
    ]
    assert [figure.cache_format for figure in figures[:4]] == [None, None, "q8_0", "q8_0"]
    same_type = [bench_row(model_filename=f"/made/up/{name}.gguf") for name in "ab"]
    assert [figure.what for figure in read(same_type)] == ["a.gguf tg128", "b.gguf tg128"]


def test_of_several_models_those_of_the_one_given_are_graded():
    grading = grade(load("llama_bench_varied.json"), **SMOLLM2_HERE)
    assert len(grading.grades) == 4
    (left_out,) = [finding for finding in grading.findings if "left out" in finding.text]
    assert "'llama ?B Q4_0' has 70784064 parameters" in left_out.text
    assert len(left_out.cells) == 4


def test_llama_bench_tests_that_generate_are_read():
    shallow, deep = read(gpu_rows())
    assert (shallow.name, deep.name) == ("llama-bench tg128", "llama-bench tg128 @ d2048")
    assert shallow.samples == pytest.approx((0.512, 0.4992, 0.5184))
    assert shallow.seconds_per_step == pytest.approx(0.512 / 128)
    assert shallow.model_text == "qwen2 7B F16"
    assert shallow.format == "fp16"
    assert shallow.device_text == "NVIDIA H200"
    assert shallow.batch == 1
    assert not shallow.has_prefill
    assert shallow.unread == ()


def test_llama_bench_against_the_floor_at_the_mean_context():
    shallow, deep = grade(gpu_rows(), model="qwen2.5-7b").grades
    # Steps see 0 … 127 tokens before them, 2048 … 2175 with a depth.
    assert (shallow.context, deep.context) == (63, 2111)
    assert shallow.bytes == qwen_bytes(63)
    assert deep.floor == pytest.approx(qwen_bytes(2111) / H200)
    assert shallow.r_floor == pytest.approx(qwen_bytes(63) / H200 / 0.004)
    assert deep.r_floor == pytest.approx(qwen_bytes(2111) / H200 / 0.00415)
    assert not shallow.r_floor_is_least
    assert not shallow.impossible


def test_the_lines_of_jsonl_are_the_rows_of_json():
    rows = load("llama_bench.json")
    data = "\n".join(json.dumps(row) for row in rows).encode()
    assert read_foreign(data) == read(rows)
    (alone,) = read_foreign(json.dumps(rows[1]).encode())
    assert alone == msgspec.structs.replace(read(rows)[0], what="tg32")


def test_a_format_of_theirs_is_bounded_less_an_untied_embedding():
    row = bench_row(model_type="qwen2 7B Q4_K - Medium", model_size=4_677_120_000)
    (alone,) = grade([row], model="qwen2.5-7b").grades
    # Size of the file, less an embedding of 152064 × 3584 at no more than 16 bits, plus 63 cached
    # positions read and one written.
    assert alone.bytes == 4_677_120_000 - 2 * 152_064 * 3_584 + 64 * QWEN_POSITION
    assert alone.floor == pytest.approx(alone.bytes / H200)
    assert alone.r_floor_is_least
    assert alone.format is None


def test_a_format_that_is_given_is_counted():
    # int4-g128: 6 525 616 128 linear weights of 4.125 bits, and the rest in 16.
    row = bench_row(model_type="qwen2 7B of another kind", model_size=5_550_000_000)
    (counted,) = grade([row], model="qwen2.5-7b", format="int4-g128").grades
    assert counted.bytes_basis == "counted in int4-g128"
    assert not counted.floor_is_least
    (more,) = grade(
        [row | {"model_size": 6_550_000_000}], model="qwen2.5-7b", format="int4-g128"
    ).grades
    assert more.floor_is_least


def test_a_format_that_does_not_fit_into_the_file_is_refused():
    """It made figures of quantised files "impossible"."""
    row = bench_row(model_type="qwen2 7B Q4_0", model_size=4_430_000_000)
    for name in ("bf16", "int4-g128"):
        with pytest.raises(BadForeignFile, match=r"weights are 4\.43 GB .'Q4_0'.; leave --format"):
            grade([row], model="qwen2.5-7b", format=name)
    (bounded,) = grade([bench_row(model_size=8_100_000_000)], model="qwen2.5-7b").grades
    assert (bounded.format, bounded.figure.format) == (None, "fp16")


def test_a_tied_head_is_read_whole():
    row = bench_row(
        model_type="llama 256M Q8_0", model_size=143_000_000, model_n_params=SMOLLM2_PARAMETERS
    )
    (tied,) = grade([row], model="smollm2-135m").grades
    assert tied.bytes == 143_000_000 + 64 * SMOLLM2_POSITION


def test_faster_than_memory_is_impossible():
    samples = [320_000_000] * 3  # 2.5 ms a step; the floor is 2.95 ms
    grading = grade([bench_row(samples_ns=samples)], model="qwen2.5-7b")
    assert grading.any_impossible
    assert grading.grades[0].r_floor == pytest.approx(qwen_bytes(63) / H200 / 0.0025)
    assert "impossible: faster than memory: 2.50 ms a step" in texts(grading)
    assert "14.15 GB take 2.95 ms at 4.80 TB/s" in texts(grading)


def test_exactly_the_floor_is_possible_and_doubted():
    # Bytes at 63 ÷ 4.8 TB/s; the H200 was measured at 4.596 TB/s.
    step = qwen_bytes(63) / H200
    grading = grade([bench_row(samples_ns=[step * 128e9 + 1])], model="qwen2.5-7b")
    assert not grading.any_impossible
    assert "faster than 4.60 TB/s, the most that was measured" in texts(grading)


def test_a_mean_alone_is_said():
    row = bench_row(samples_ns=[], avg_ns=640_000_000)
    grading = grade([row], model="qwen2.5-7b")
    assert grading.grades[0].step == pytest.approx(0.005)
    assert "only a mean and a spread" in texts(grading)
    assert "only a mean" not in texts(grade([bench_row()], model="qwen2.5-7b"))


def test_one_process_is_said_once_for_all_figures():
    findings = grade(gpu_rows(), model="qwen2.5-7b").findings
    (process,) = [finding for finding in findings if "one process" in finding.text]
    assert process.cells == ("tg128", "tg128 @ d2048")
    assert all(finding.hint for finding in findings)


def test_several_gpus_share_the_bytes_at_best():
    row = bench_row(gpu_info="NVIDIA H200, NVIDIA H200")
    grading = grade([row], model="qwen2.5-7b")
    (both,) = grading.grades
    assert both.floor == pytest.approx(qwen_bytes(63) / (2 * H200))
    assert both.r_floor_is_least
    assert "up to 2 devices" in texts(grading)
    for changes in ({"split_mode": "none"}, {"devices": "CUDA1"}):
        (one,) = grade([row | changes], model="qwen2.5-7b").grades
        assert one.floor == pytest.approx(qwen_bytes(63) / H200)
    (figure,) = read([row | {"devices": "CUDA0/CUDA1"}])
    assert figure.num_devices == 2


def test_layers_left_on_the_host_are_said():
    some = grade([bench_row(n_gpu_layers=20)], model="qwen2.5-7b")
    assert "20 of 28 layers" in texts(some)
    for whole in (29, 99, -1):
        assert "layers" not in texts(grade([bench_row(n_gpu_layers=whole)], model="qwen2.5-7b"))


@pytest.mark.parametrize(
    "setting",
    [
        {"n_cpu_moe": 4},
        {"no_kv_offload": True},
        {"tensor_buft_overrides": "exps=CPU"},
        {"fit_target": 1024},
    ],
)
def test_weights_left_on_the_host_are_said(setting):
    (name,) = setting
    assert name in texts(grade([bench_row(**setting)], model="qwen2.5-7b"))
    (figure,) = read([bench_row(gpu_info="", **setting)])
    assert figure.on_host == ()


def test_without_gpu_layers_the_device_is_the_host():
    for changes in ({"n_gpu_layers": 0}, {"gpu_info": ""}, {"devices": "none"}):
        (figure,) = read([bench_row(**changes)])
        assert figure.device_text == "Made-up CPU"
        assert figure.num_devices == 1


def test_a_narrow_cache_is_left_out_of_the_floor():
    grading = grade([bench_row(type_k="q8_0", type_v="q8_0", n_depth=2048)], model="qwen2.5-7b")
    (narrow,) = grading.grades
    # 2111 positions read and one written are not counted.
    assert narrow.bytes == qwen_bytes(2111) - 2112 * QWEN_POSITION
    assert narrow.r_floor_is_least
    assert "the cache is q8_0" in texts(grading)


def test_windows_that_fill_on_the_way_are_not_overcounted():
    # gemma-2-2b: every other layer sees 4096 positions; steps at 4000 … 4399 cross that.
    row = bench_row(n_depth=4000, n_gen=400, model_type="gemma2 2B F16")
    shape, fp16 = catalogue_shape("gemma-2-2b"), get_format("fp16")
    row["model_n_params"] = sum(tensor.num_elements for tensor in parameter_tensors(shape))
    (windowed,) = grade([row], model="gemma-2-2b").grades
    every = [step_traffic(shape, context, fp16).bytes for context in range(4000, 4400)]
    assert windowed.context == 4199
    assert step_traffic(shape, 4199, fp16).bytes > sum(every) / 400
    assert 0.999 * sum(every) / 400 < windowed.bytes <= sum(every) / 400


def test_a_field_that_is_not_known_is_named():
    grading = grade([bench_row(moe_cache="auto")], model="qwen2.5-7b")
    assert "fields that are not known here: moe_cache" in texts(grading)


def test_another_model_than_the_files_is_refused():
    with pytest.raises(BadForeignFile, match=r"7615616512 parameters and llama-3.1-8b has"):
        grade([bench_row()], model="llama-3.1-8b")


# vLLM


def test_vllm_latency_is_a_whole_request():
    grading = grade(
        load("vllm_latency.json"),
        device="h200",
        format="bf16",
        tokens=129,
        context=32,
        batch=1,
    )
    (request,) = grading.grades
    assert request.step == pytest.approx(1.28 / 128)  # the first of 129 comes out of the prefill
    assert request.step_is_most
    assert request.context == 32 + 63  # 32 … 159 tokens before each step
    assert request.r_floor == pytest.approx(qwen_bytes(95) / H200 / 0.01)
    assert request.r_floor_is_least
    assert request.model == "qwen2.5-7b"
    assert request.figure.unread == ()
    assert "prefill is inside this figure: a step took at most what is shown" in texts(grading)
    assert "batch" not in texts(grading)
    assert "--tokens 129 is taken as given" in request.figure.assumptions


def test_what_vllm_does_not_state_is_said():
    grading = grade(
        load("vllm_latency.json"), model="qwen2.5-7b", device="h200", format="bf16", tokens=129
    )
    (request,) = grading.grades
    assert request.r_floor is None
    assert request.context == 64  # a prompt of one token at least
    assert request.floor_is_least
    assert "the batch is not stated" in texts(grading)
    assert "context is not stated" in texts(grading)
    hints = [finding.hint for finding in grading.findings]
    assert "--batch (vllm bench latency takes 8 unless told)" in hints
    with pytest.raises(BadForeignFile, match=r"tokens \(vllm bench latency takes 128 unless told"):
        grade(load("vllm_latency.json"), device="h200", format="bf16")


def test_versions_of_vllm_that_write_other_fields():
    """Some write a spread, and some which model it was."""
    old = without(load("vllm_latency.json"), "model_id") | {"std_latency": 0.0117}
    (figure,) = read(old)
    assert (figure.model_text, figure.spread, figure.unread) == (None, 0.0117, ())


def test_a_request_can_be_impossible_whatever_its_prefill():
    latency = {"avg_latency": 0.2, "latencies": [0.2, 0.2]}
    given = {"model": "qwen2.5-7b", "device": "h200", "format": "bf16", "tokens": 129}
    assert grade(latency, **given).any_impossible
    assert not grade({"avg_latency": 0.4}, **given).any_impossible


def test_vllm_with_its_arguments_beside_it():
    (figure,) = read(load("vllm_latency.pytorch.json"))
    assert (figure.prompt_length, figure.num_tokens, figure.batch) == (32, 129, 8)
    assert figure.format == "bf16"
    assert figure.samples == (1.28, 1.27, 1.29, 1.27, 1.30)
    grading = grade(load("vllm_latency.pytorch.json"), device="h200")
    assert grading.grades[0].model == "mistral-7b-v0.3"
    assert grading.grades[0].r_floor is None
    assert "batch is not 1: 8 streams" in texts(grading)


def test_vllm_parallel_over_devices():
    rows = load("vllm_latency.pytorch.json")
    arguments = rows[0]["benchmark"]["extra_info"]["args"]
    arguments |= {"tensor_parallel_size": 4, "batch_size": 1}
    (figure,) = read(rows)
    assert figure.num_devices == 4
    assert figure.batch == 1
    arguments["dtype"] = "auto"
    assert read(rows)[0].format is None


def vllm_rows(model: str = "mistralai/Mistral-7B-v0.3", **arguments) -> list[dict]:
    rows = load("vllm_latency.pytorch.json")
    rows[0]["model"]["name"] = model
    rows[0]["benchmark"]["extra_info"]["args"] |= arguments
    return rows


def test_a_narrow_cache_of_vllm_is_left_out():
    grading = grade(vllm_rows(kv_cache_dtype="fp8"), device="h200")
    assert "the cache is fp8" in texts(grading)
    whole = grade(vllm_rows(), device="h200")
    # 32 + 63 positions and one written, of 32 layers × 2 × 1024 × 2 bytes.
    assert whole.grades[0].bytes - grading.grades[0].bytes == 96 * 32 * 2 * 1024 * 2


def test_speculation_is_refused():
    with pytest.raises(BadForeignFile, match="steps cannot be counted"):
        read(vllm_rows(speculative_config={"method": "ngram", "num_speculative_tokens": 4}))


def test_a_loading_type_says_nothing_of_a_checkpoint_that_may_be_quantised():
    """vLLM reads quantised checkpoints without --quantization, and calls them bfloat16."""
    rows = vllm_rows(model="made-up/Mistral-7B-v0.3-AWQ")
    given = {"model": "mistral-7b-v0.3", "device": "h200"}
    with pytest.raises(BadForeignFile, match=r"bfloat16 was loaded, .* give --format"):
        grade(rows, **given)
    assert grade(rows, **given, format="int4-g128-zp").grades[0].format == "int4-g128-zp"
    with pytest.raises(BadForeignFile, match="--format says int8"):
        grade(vllm_rows(), device="h200", format="int8")


def test_a_plain_format_beside_a_quantisation_that_the_file_states_is_refused():
    """Else a possible time of 4-bit weights is faster than memory."""
    rows = vllm_rows(quantization="awq")
    with pytest.raises(BadForeignFile, match=r"'awq', --format says bf16"):
        grade(rows, device="h200", format="bf16")
    assert grade(rows, device="h200", format="int4-g128-zp").grades[0].format == "int4-g128-zp"


@pytest.mark.parametrize("key", ["tensor_parallel_size", "pipeline_parallel_size", "batch_size"])
def test_none_of_what_there_is_one_at_least_is_refused(key):
    with pytest.raises(BadForeignFile):
        read(vllm_rows(**{key: 0}))


# optimum-benchmark


def test_a_real_optimum_file():
    document = load("optimum_benchmark.json")
    grading = grade(document, bandwidth=60e9)
    (decode,) = grading.grades
    values = document["report"]["decode"]["latency"]["values"]
    assert decode.figure.samples == tuple(values)
    assert decode.step == pytest.approx(median(values) / 31)  # 32 tokens, the first of the prefill
    assert (decode.model, decode.format, decode.context) == ("smollm2-135m", "bf16", 64 + 15)
    assert decode.bytes == 2 * SMOLLM2_PARAMETERS + smollm2_cache_and_logits(79)
    assert decode.figure.version == "0.6.0"
    assert decode.figure.device_text == "AMD EPYC"
    assert not decode.r_floor_is_least
    assert [finding.text.partition(":")[0] for finding in grading.findings] == ["one process"]


def test_a_decode_of_optimum_is_what_its_own_throughput_says():
    for name, batch, steps in (("optimum_benchmark", 1, 31), ("optimum_benchmark_defaults", 2, 99)):
        decode = load(f"{name}.json")["report"]["decode"]
        (figure,) = read(load(f"{name}.json"))
        assert figure.mean == decode["latency"]["mean"]
        assert decode["throughput"]["value"] == pytest.approx(batch * steps / figure.mean)


def test_optimums_per_token_holds_earlier_repetitions_again():
    """Why it is not read: three repetitions of 31 gaps are 93."""
    assert load("optimum_benchmark.json")["report"]["per_token"]["latency"]["count"] == 31 + 63 + 95


def test_what_optimum_takes_unless_told_is_not_in_its_file():
    document = load("optimum_benchmark_defaults.json")
    with pytest.raises(BadForeignFile, match=r"tokens \(optimum-benchmark takes 100 unless told\)"):
        grade(document, bandwidth=60e9)
    (decode,) = grade(document, bandwidth=60e9, tokens=100).grades
    assert (decode.figure.batch, decode.format, decode.r_floor) == (2, "fp32", None)
    assert decode.bytes == pytest.approx(4 * SMOLLM2_PARAMETERS, rel=0.01)


def test_optimum_decode_is_apart_from_prefill():
    grading = grade(optimum_on_a_gpu())
    (decode,) = grading.grades
    assert decode.model == "mistral-7b-v0.3"
    assert decode.device.name == "a100-80-sxm"  # the second GPU of the list, device_ids "1"
    assert decode.format == "fp16"
    assert not decode.step_is_most
    assert decode.context == 79
    # mistral-7b-v0.3 at 2048: 14 496 251 904 bytes; a position is 32 layers × 2 × 1024 × 2.
    num_bytes = 14_496_251_904 - (2048 - 79) * 32 * 2 * 1024 * 2
    assert decode.r_floor == pytest.approx(num_bytes / 2.039e12 / decode.step)
    assert "prefill" not in texts(grading)


def test_an_optimum_report_alone_names_nothing():
    report = load("optimum_benchmark_report.json")
    with pytest.raises(BadForeignFile, match=r"--model and --device .* and --format and --tokens"):
        grade(report)
    given = {"model": "smollm2-135m", "format": "bf16", "tokens": 32, "context": 64}
    (decode,) = grade(report, bandwidth=60e9, **given).grades
    (whole,) = grade(load("optimum_benchmark.json"), bandwidth=60e9).grades
    assert (decode.step, decode.bytes, decode.floor) == (whole.step, whole.bytes, whole.floor)
    assert decode.r_floor is None  # the report does not state the batch


def test_an_end_of_text_may_have_come_first():
    """In versions that let the least number of tokens differ from the most."""
    document = optimum_on_a_gpu()
    document["config"]["scenario"]["generate_kwargs"] = {"max_new_tokens": 64}
    with pytest.raises(BadForeignFile, match="give --tokens"):
        grade(document)


def test_arguments_of_generation_that_are_not_known_are_named():
    document = optimum_on_a_gpu()
    document["config"]["scenario"]["generate_kwargs"] |= {"prompt_lookup_num_tokens": 3}
    assert "not known here: generate_kwargs.prompt_lookup_num_tokens" in texts(grade(document))


def test_a_quantised_cache_of_optimum_is_left_out():
    document = optimum_on_a_gpu()
    document["config"]["backend"]["cache_implementation"] = "quantized"
    assert "the cache is quantized" in texts(grade(document))


def test_a_local_folder_of_optimum_may_hold_a_quantised_checkpoint():
    document = optimum_on_a_gpu()
    document["config"]["backend"]["model"] = "made-up/folder"
    with pytest.raises(BadForeignFile, match="float16 was loaded"):
        grade(document, model="mistral-7b-v0.3")


def test_optimum_beams_are_streams():
    document = optimum_on_a_gpu()
    document["config"]["scenario"]["generate_kwargs"] |= {"num_beams": 4}
    assert read(document)[0].batch == 4


def test_optimum_without_events_subtracts_the_mean_prefill():
    document = load("optimum_benchmark.json")
    del document["report"]["per_token"]
    (figure,) = read(document)
    assert "the mean of the prefills, subtracted" in figure.assumptions[0]


def test_optimum_quantised_has_no_format_of_ours():
    document = optimum_on_a_gpu()
    document["config"]["backend"]["quantization_config"] = {"bits": 4, "quant_method": "awq"}
    with pytest.raises(BadForeignFile, match="give --format"):
        grade(document)
    assert grade(document, format="int4-g128-zp").grades[0].format == "int4-g128-zp"


def test_optimum_without_a_timed_decode_is_refused():
    report = load("optimum_benchmark_report.json")
    report["decode"]["latency"] = None
    with pytest.raises(BadForeignFile, match=r"scenario\.latency=true"):
        read(report)


# What the options may say


def test_an_option_that_contradicts_the_file_is_refused():
    rows = [bench_row()]
    for option, value in (
        ("tokens", 64),
        ("context", 7),
        ("batch", 8),
        ("format", "bf16"),
        ("device", "h100-sxm5"),
    ):
        with pytest.raises(BadForeignFile, match=f"--{option} says"):
            grade(rows, model="qwen2.5-7b", **{option: value})


def test_an_option_that_agrees_with_the_file_is_taken():
    given = {"model": "Qwen/Qwen2.5-7B", "device": "h200", "tokens": 128, "context": 0, "batch": 1}
    assert grade([bench_row()], **given).grades[0].model == "qwen2.5-7b"


def test_a_device_without_a_row_has_the_bandwidth_given():
    rows = [bench_row(gpu_info="Some Board")]
    with pytest.raises(BadForeignFile, match="'Some Board' is no name of ours; give --device"):
        grade(rows, model="qwen2.5-7b")
    (grade_,) = grade(rows, model="qwen2.5-7b", bandwidth=4e12).grades
    assert grade_.device.name == "Some Board"
    assert grade_.r_floor == pytest.approx(qwen_bytes(63) / 4e12 / 0.004)
    with pytest.raises(BadForeignFile, match="--bandwidth"):
        grade([bench_row()], model="qwen2.5-7b", bandwidth=4e12)


def test_what_is_given_stands_beside_what_the_file_says():
    row = bench_row(gpu_info="Some Board")
    (given,) = grade([row], model="qwen2.5-7b", bandwidth=4e12, batch=1).grades
    assert given.figure.assumptions[-3:] == (
        "--model qwen2.5-7b is taken as given; the file says 'qwen2 7B F16'",
        "--bandwidth 4.00 TB/s is taken as given; the file says 'Some Board'",
        "--batch 1 is taken as given",
    )


def test_names_are_matched_whole_not_nearly():
    with pytest.raises(BadForeignFile, match="--device"):
        grade([bench_row(gpu_info="NVIDIA H200 NVL")], model="qwen2.5-7b")
    rows = load("vllm_latency.pytorch.json")
    rows[0]["model"]["name"] = "mistralai/Mistral-7B-Instruct-v0.3"
    with pytest.raises(BadForeignFile, match="give --model"):
        grade(rows, device="h200")


@pytest.mark.parametrize(
    "option, value, error",
    [
        ("model", "qwen2.5-7", UnknownModel),
        ("device", "h20", UnknownDevice),
        ("format", "int3", UnknownFormat),
    ],
)
def test_an_option_that_names_nothing(option, value, error):
    given = {"model": "qwen2.5-7b", "device": "h200", "format": "bf16", "tokens": 129}
    with pytest.raises(error):
        grade(load("vllm_latency.json"), **given | {option: value})


def test_one_token_holds_no_step():
    given = {"model": "qwen2.5-7b", "device": "h200", "format": "bf16", "tokens": 1}
    with pytest.raises(BadForeignFile, match="no decode step"):
        grade(load("vllm_latency.json"), **given)


# Files that are not read


def without(row: dict, key: str) -> dict:
    return {name: value for name, value in row.items() if name != key}


BAD = {
    "not JSON": (b"tokens per second: 12", "not JSON"),
    "cut short": ((FILES / "llama_bench.json").read_bytes()[:900], "not JSON, or cut short"),
    "not text": (b"\xff\xfe\x00\x01", "not JSON"),
    "empty": (b"", "no tool that is read"),
    "no rows": (b"[]", "no tool that is read"),
    "another tool": (b'{"mean_tpot_ms": 1.0}', "llama-bench .* vllm bench latency .* optimum"),
    "a number": (b"12", "no tool that is read"),
    "a record of ours": (b'{"schema_version": 2}', "decodegap report"),
    "prompts only": (json.dumps(load("llama_bench.json")[:1]).encode(), "run it with -n"),
    "no size": (json.dumps([without(bench_row(), "model_size")]).encode(), "`model_size`"),
    "a time of words": (json.dumps([bench_row(avg_ns="fast")]).encode(), "avg_ns"),
    "no time at all": (json.dumps([bench_row(samples_ns=[0])]).encode(), "samples_ns"),
    "negative latency": (b'{"avg_latency": -1.0}', "avg_latency"),
    "too deep": (b"[" * 100_000, "not JSON"),
    "not a number": (b'{"avg_latency": NaN}', "not JSON"),
    "milliseconds": (
        json.dumps({"load_model": {}, "decode": {"latency": {"unit": "ms", "mean": 1}}}).encode(),
        "'ms'",
    ),
    "a config of words": (
        json.dumps(load("optimum_benchmark.json") | {"config": {"scenario": "short"}}).encode(),
        "this looks like optimum-benchmark's file",
    ),
    "a report without its config": (
        json.dumps(without(load("optimum_benchmark.json"), "config")).encode(),
        "this looks like optimum-benchmark's file",
    ),
}


@pytest.mark.parametrize("data, words", BAD.values(), ids=BAD)
def test_a_file_that_is_not_read_says_what_is(data, words):
    with pytest.raises(BadForeignFile, match=words) as caught:
        read_foreign(data)
    assert "\n" not in str(caught.value)


def test_a_figure_is_frozen():
    (figure,) = read([bench_row()])
    with pytest.raises(AttributeError):
        figure.mean = 1.0
    assert msgspec.structs.replace(figure, mean=1.0).mean == 1.0
