"""Other tools' files: what is read of them, held against floors computed by hand."""

import json
from pathlib import Path

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


def qwen_bytes(context: int) -> int:
    return QWEN_AT_2048 + (context - 2048) * QWEN_POSITION


def load(name: str):
    return json.loads((FILES / name).read_text(encoding="utf-8"))


def read(document) -> list[ForeignFigure]:
    return read_foreign(json.dumps(document).encode())


def grade(document, **given) -> Grading:
    return grade_figures(read(document), Given(**given))


def bench_row(**changes) -> dict:
    """The generating test of the made-up llama-bench file, at depth 0."""
    return load("llama_bench.json")[1] | changes


def texts(grading: Grading) -> str:
    return "\n".join(finding.text for finding in grading.findings)


# llama-bench


def test_llama_bench_tests_that_generate_are_read():
    shallow, deep = read(load("llama_bench.json"))
    assert (shallow.name, deep.name) == ("llama-bench tg128", "llama-bench tg128 @ d2048")
    assert shallow.samples == pytest.approx((0.512, 0.4992, 0.5184))
    assert shallow.seconds_per_step == pytest.approx(0.512 / 128)
    assert shallow.model_text == "qwen2 7B F16"
    assert shallow.format == "fp16"
    assert shallow.device_text == "NVIDIA H200"
    assert shallow.version == "1 madeup01"
    assert shallow.batch == 1
    assert not shallow.has_prefill
    assert shallow.unread == ()


def test_llama_bench_against_the_floor_at_the_mean_context():
    shallow, deep = grade(load("llama_bench.json"), model="qwen2.5-7b").grades
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
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    assert read_foreign(lines) == read(rows)
    assert read_foreign(json.dumps(rows[1]).encode()) == read(rows)[:1]


def test_a_prompt_inside_the_time_makes_the_step_a_bound():
    data = (FILES / "llama_bench_quantised.jsonl").read_bytes()
    alone, with_prompt = grade_figures(read_foreign(data), Given(model="qwen2.5-7b")).grades
    assert not alone.step_is_most
    assert with_prompt.step_is_most
    assert with_prompt.r_floor_is_least
    assert with_prompt.step == pytest.approx(1.0368 / 128)
    assert with_prompt.context == 512 + 63


def test_a_format_of_theirs_is_bounded_by_the_files_own_size():
    data = (FILES / "llama_bench_quantised.jsonl").read_bytes()
    alone, _ = grade_figures(read_foreign(data), Given(model="qwen2.5-7b")).grades
    # Size of the file, less an embedding of 152064 × 3584 at no more than 16 bits, plus 63 cached
    # positions read and one written.
    assert alone.bytes == 4_677_120_000 - 2 * 152_064 * 3_584 + 64 * QWEN_POSITION
    assert alone.floor == pytest.approx(alone.bytes / 1.008e12)
    assert alone.r_floor_is_least
    assert alone.format is None


def test_a_format_that_is_given_is_counted():
    row = bench_row(model_type="qwen2 7B Q4_0", model_size=4_000_000_000)
    (counted,) = grade([row], model="qwen2.5-7b", format="int4-g128").grades
    assert counted.bytes_basis == "counted in int4-g128"
    assert not counted.floor_is_least


def test_a_tied_head_is_read_whole():
    # smollm2-135m: 134 515 008 parameters, its embedding is its head; 30 layers × 2 × 192 × 2 B.
    row = bench_row(
        model_type="llama 256M Q8_0", model_size=143_000_000, model_n_params=134_515_008
    )
    (tied,) = grade([row], model="smollm2-135m").grades
    assert tied.bytes == 143_000_000 + 64 * 30 * 2 * 192 * 2


def test_faster_than_memory_is_impossible():
    samples = [320_000_000] * 3  # 2.5 ms a step; the floor is 2.95 ms
    grading = grade([bench_row(samples_ns=samples)], model="qwen2.5-7b")
    assert grading.any_impossible
    assert grading.grades[0].r_floor == pytest.approx(qwen_bytes(63) / H200 / 0.0025)
    assert "impossible: faster than memory: 2.50 ms a step" in texts(grading)
    assert "14.15 GB take 2.95 ms" in texts(grading)


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
    findings = grade(load("llama_bench.json"), model="qwen2.5-7b").findings
    (process,) = [finding for finding in findings if "one process" in finding.text]
    assert process.cells == ("llama-bench tg128", "llama-bench tg128 @ d2048")
    assert all(finding.hint for finding in findings)


def test_several_gpus_share_the_bytes_at_best():
    row = bench_row(gpu_info="NVIDIA H200, NVIDIA H200")
    grading = grade([row], model="qwen2.5-7b")
    (both,) = grading.grades
    assert both.floor == pytest.approx(qwen_bytes(63) / (2 * H200))
    assert both.r_floor_is_least
    assert "up to 2 devices" in texts(grading)
    (one,) = grade([row | {"split_mode": "none"}], model="qwen2.5-7b").grades
    assert one.floor == pytest.approx(qwen_bytes(63) / H200)


def test_layers_left_on_the_host_are_said():
    some = grade([bench_row(n_gpu_layers=20)], model="qwen2.5-7b")
    assert "20 of 28 layers" in texts(some)
    for whole in (29, 99, -1):
        assert "layers" not in texts(grade([bench_row(n_gpu_layers=whole)], model="qwen2.5-7b"))


def test_without_gpu_layers_the_device_is_the_host():
    (figure,) = read([bench_row(n_gpu_layers=0)])
    assert figure.device_text == "Made-up CPU"
    (figure,) = read([bench_row(gpu_info="")])
    assert figure.device_text == "Made-up CPU"


def test_a_narrow_cache_is_left_out_of_the_floor():
    grading = grade([bench_row(type_k="q8_0", type_v="q8_0", n_depth=2048)], model="qwen2.5-7b")
    (narrow,) = grading.grades
    # 2111 positions read and one written are not counted.
    assert narrow.bytes == qwen_bytes(2111) - 2112 * QWEN_POSITION
    assert narrow.r_floor_is_least
    assert "the cache is kept in q8_0" in texts(grading)


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
        model="qwen2.5-7b",
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
    assert "prefill is inside this figure: a step took at most 10.0 ms" in texts(grading)
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


# optimum-benchmark


def test_optimum_decode_is_apart_from_prefill():
    grading = grade(load("optimum_benchmark.json"))
    (decode,) = grading.grades
    assert decode.model == "mistral-7b-v0.3"
    assert decode.device.name == "a100-80-sxm"  # the second GPU of the list, device_ids "1"
    assert decode.format == "fp16"
    assert decode.step == pytest.approx(0.6426 / 63)  # the median of three decodes of 64 tokens
    assert not decode.step_is_most
    assert decode.context == 256 + 31
    # mistral-7b-v0.3 at 2048: 14 496 251 904 bytes; a position is 32 layers × 2 × 1024 × 2.
    num_bytes = 14_496_251_904 - (2048 - 287) * 32 * 2 * 1024 * 2
    assert decode.r_floor == pytest.approx(num_bytes / 2.039e12 / 0.0102)
    assert "prefill" not in texts(grading)


def test_an_optimum_report_alone_names_nothing():
    report = load("optimum_benchmark_report.json")
    with pytest.raises(BadForeignFile, match=r"--model and --device .* and --format and --tokens"):
        grade(report)
    (decode,) = grade(
        report, model="mistral-7b-v0.3", device="a100-80-sxm", format="fp16", tokens=64, context=256
    ).grades
    (whole,) = grade(load("optimum_benchmark.json")).grades
    assert (decode.step, decode.bytes, decode.floor) == (whole.step, whole.bytes, whole.floor)
    assert decode.r_floor is None  # the report does not state the batch


def test_optimum_beams_are_streams():
    document = load("optimum_benchmark.json")
    document["config"]["scenario"]["generate_kwargs"] |= {"num_beams": 4}
    assert read(document)[0].batch == 4


def test_optimum_without_events_subtracts_the_mean_prefill():
    document = load("optimum_benchmark.json")
    del document["report"]["per_token"]
    (figure,) = read(document)
    assert "the mean of the prefills, subtracted" in figure.assumptions[0]


def test_optimum_quantised_has_no_format_of_ours():
    document = load("optimum_benchmark.json")
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
