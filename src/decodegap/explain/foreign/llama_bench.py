"""`llama-bench -o json` and `-o jsonl`: one row a test, times in nanoseconds.

A test prefills `n_depth` tokens outside the clock, then times `n_prompt` tokens of prompt and
`n_gen` decodes of one token each, waiting after each. Nothing is sampled: the next token is drawn
at random. Every option may be given several values, models too: then each test is named by what
tells it from the others. (ggml-org/llama.cpp, tools/llama-bench)
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from decodegap.explain.foreign.figure import (
    FLOAT_FORMATS,
    BadForeignFile,
    Count,
    ForeignFigure,
    Positive,
    convert,
    unknown_fields,
)

TOOL = "llama-bench"

# Fields of one version or another that change nothing of what is graded here.
_PASSED_OVER = (
    *("backends", "n_batch", "n_ubatch", "n_threads", "cpu_mask", "cpu_strict", "poll"),
    *("main_gpu", "flash_attn", "tensor_split"),
    *("use_mmap", "use_direct_io", "load_mode", "lazy_mode"),
    *("embeddings", "no_op_offload", "no_host", "repack", "fit_min_ctx", "test_time"),
    *("avg_ts", "stddev_ts", "samples_ts", "n_gen_warmup"),
    *("cuda", "opencl", "vulkan", "kompute", "metal", "sycl", "rpc", "gpu_blas", "blas"),
    *("f16_kv", "mul_mat_q"),
)

# What a test measures or is, and no setting that tells it from another of the same model.
_OF_EVERY_TEST = (
    *("n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "samples_ns"),
    *("avg_ts", "stddev_ts", "samples_ts", "model_size", "model_n_params"),
)


class _Test(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `n_depth` and `samples_ns` are missing in old versions."""

    model_filename: str
    model_type: str
    model_size: Count
    model_n_params: Count
    cpu_info: str
    gpu_info: str
    n_gpu_layers: int
    type_k: str
    type_v: str
    n_prompt: Count
    n_gen: Count
    n_depth: Count = 0
    avg_ns: Positive
    stddev_ns: float
    samples_ns: tuple[Positive, ...] = ()
    split_mode: str = "layer"
    devices: str = "auto"
    n_cpu_moe: int = 0
    no_kv_offload: bool = False
    tensor_buft_overrides: str = "none"
    fit_target: int = 0
    build_commit: str | None = None
    build_number: int | None = None


def is_llama_bench(rows: list[Any]) -> bool:
    return bool(rows) and all(isinstance(row, dict) and "n_gen" in row for row in rows)


def read_llama_bench(rows: list[dict[str, Any]]) -> list[ForeignFigure]:
    """The tests that generate; those of the prompt alone are no steps and left out.

    Raises:
        BadForeignFile: a field is missing, or no test generates.
    """
    tests = convert(rows, list[_Test], TOOL)
    pairs = [(test, row) for test, row in zip(tests, rows, strict=True) if test.n_gen]
    if not pairs:
        raise BadForeignFile("no test of this llama-bench file generates tokens; run it with -n")
    varied = _varied([row for _, row in pairs])
    return [_figure(test, row, varied) for test, row in pairs]


def _varied(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The settings in which the tests of a file differ."""
    keys = dict.fromkeys(key for row in rows for key in row if key not in _OF_EVERY_TEST)
    varied = [key for key in keys if _num_values(rows, key) > 1]
    if _num_values(rows, "model_type") == _num_values(rows, "model_filename"):
        return [key for key in varied if key != "model_filename"]
    return varied


def _num_values(rows: Sequence[dict[str, Any]], key: str) -> int:
    return len({str(row.get(key)) for row in rows})


def _figure(test: _Test, row: dict[str, Any], varied: Sequence[str]) -> ForeignFigure:
    on_gpu = test.gpu_info != "" and test.n_gpu_layers != 0 and test.devices != "none"
    devices = test.gpu_info.split(", ") if on_gpu else [test.cpu_info]
    caches = sorted({test.type_k, test.type_v} - {"f16", "bf16", "f32"})
    return ForeignFigure(
        tool=TOOL,
        version=_version(test),
        what=_name(test, row, varied),
        model_text=test.model_type,
        device_text=", ".join(sorted(set(devices))),
        format_text=_format_text(test.model_type),
        prompt_length=test.n_depth + test.n_prompt,
        num_tokens=test.n_gen,
        has_prefill=test.n_prompt > 0,
        batch=1,
        samples=tuple(sample * 1e-9 for sample in test.samples_ns),
        mean=test.avg_ns * 1e-9,
        spread=test.stddev_ns * 1e-9,
        num_devices=_num_gpus(test, len(devices)) if on_gpu else 1,
        num_gpu_layers=test.n_gpu_layers if on_gpu and test.n_gpu_layers > 0 else None,
        on_host=tuple(_on_host(test)) if on_gpu else (),
        weight_bytes=test.model_size,
        num_parameters=test.model_n_params,
        cache_format="/".join(caches) or None,
        assumptions=(
            f"a repetition is {test.n_gen} steps of one token each, and waits after each",
            "neither sampling nor tokenising is inside",
        ),
        unread=unknown_fields(row, (*_Test.__struct_fields__, *_PASSED_OVER)),
    )


def _version(test: _Test) -> str | None:
    known = (test.build_number, test.build_commit)
    return " ".join(str(part) for part in known if part is not None) or None


def _num_gpus(test: _Test, num_listed: int) -> int:
    """Over how many the model may be spread: the file lists all there are, and names those that
    were chosen apart by slashes."""
    if test.split_mode == "none":
        return 1
    return num_listed if test.devices == "auto" else len(test.devices.split("/"))


def _on_host(test: _Test) -> Iterator[str]:
    if test.n_cpu_moe > 0:
        yield f"n_cpu_moe {test.n_cpu_moe}"
    if test.no_kv_offload:
        yield "no_kv_offload"
    if test.tensor_buft_overrides != "none":
        yield f"tensor_buft_overrides {test.tensor_buft_overrides}"
    if test.fit_target > 0:
        yield f"fit_target {test.fit_target}"


def _name(test: _Test, row: dict[str, Any], varied: Sequence[str]) -> str:
    """What llama-bench itself calls the test, between what tells it from others of the file."""
    prompt = f"pp{test.n_prompt}+" if test.n_prompt else ""
    depth = f" @ d{test.n_depth}" if test.n_depth else ""
    models = {"model_filename": Path(test.model_filename).name, "model_type": test.model_type}
    before = [text for key, text in models.items() if key in varied]
    after = [f"{key} {row.get(key)}" for key in varied if key not in models]
    return " ".join([*before, f"{prompt}tg{test.n_gen}{depth}", *after])


def _format_text(model_type: str) -> str:
    """The last words of `qwen2 7B Q4_K - Medium`, after architecture and size."""
    for name in FLOAT_FORMATS:
        if model_type.endswith(" " + name):
            return name
    return model_type.split(" ", 2)[-1]
