"""`vllm bench latency --output-json`: whole requests in seconds, and nothing about what they were.

A latency is one call that prefills `--input-len` tokens and generates `--output-len`, the first of
which comes out of the prefill; end-of-text is ignored, so all of them are generated. With
SAVE_TO_PYTORCH_BENCHMARK_FORMAT set, the arguments lie beside it in FILE.pytorch.json. Of these
`dtype` is what the model computed in: what a checkpoint was quantised to before is not among them.
(vllm-project/vllm, vllm/benchmarks/latency.py)
"""

from typing import Any, Literal

import msgspec

from decodegap.explain.foreign.figure import (
    BadForeignFile,
    Count,
    ForeignFigure,
    OneOrMore,
    Positive,
    convert,
    unknown_fields,
)

TOOL = "vllm bench latency"

_DEFAULTS = {"context": 32, "tokens": 128, "batch": 8}
_WIDE_CACHES = {"auto", "bfloat16", "float16", "half", "float", "float32"}

_ASSUMPTIONS = (
    "a latency is a whole request: its prefill, which gives the first token, and a step for each "
    "token after it",
    "every request generates all its tokens, since the tool ignores the end of text",
)


class _Latency(msgspec.Struct, frozen=True, kw_only=True):
    model_id: str | None = None
    avg_latency: Positive
    latencies: tuple[Positive, ...] = ()
    std_latency: float | None = None
    percentiles: dict[str, float] = {}


class _Arguments(msgspec.Struct, frozen=True, kw_only=True):
    input_len: Count
    output_len: Count
    batch_size: OneOrMore
    n: OneOrMore = 1
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    speculative_config: Any = None
    tensor_parallel_size: OneOrMore = 1
    pipeline_parallel_size: OneOrMore = 1


class _Extra(msgspec.Struct, frozen=True, kw_only=True):
    args: _Arguments


class _Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    extra_info: _Extra


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _Metric(msgspec.Struct, frozen=True, kw_only=True):
    name: Literal["latency"]
    benchmark_values: tuple[Positive, ...]


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: _Benchmark
    model: _Model
    metric: _Metric


def is_vllm(document: Any) -> bool:
    return isinstance(document, dict) and "avg_latency" in document


def is_vllm_rows(rows: list[Any]) -> bool:
    keys = {"benchmark", "model", "metric"}
    return bool(rows) and all(isinstance(row, dict) and keys <= set(row) for row in rows)


def read_vllm(document: dict[str, Any]) -> list[ForeignFigure]:
    """The one figure of --output-json. It names no device, format, batch or length, and old
    versions name no model.

    Raises:
        BadForeignFile: a field is of another kind.
    """
    latency = convert(document, _Latency, TOOL)
    figure = ForeignFigure(
        tool=TOOL,
        what="request",
        model_text=latency.model_id,
        first_from_prefill=True,
        has_prefill=True,
        samples=latency.latencies,
        mean=latency.avg_latency,
        spread=latency.std_latency,
        tool_defaults=_DEFAULTS,
        assumptions=_ASSUMPTIONS,
        unread=unknown_fields(document, _Latency.__struct_fields__),
    )
    return [figure]


def read_vllm_rows(rows: list[dict[str, Any]]) -> list[ForeignFigure]:
    """The figures of FILE.pytorch.json, which repeats the arguments of the run.

    Raises:
        BadForeignFile: a field is missing, or the rows are of another of vLLM's benchmarks.
    """
    return [_figure(row) for row in convert(rows, list[_Row], TOOL)]


def _figure(row: _Row) -> ForeignFigure:
    args, values = row.benchmark.extra_info.args, row.metric.benchmark_values
    if not values:
        raise BadForeignFile(f"{TOOL}: metric.benchmark_values is empty; give a whole run's file")
    if args.speculative_config is not None:
        raise BadForeignFile(
            f"{TOOL}: run with --speculative-config, a pass gives several tokens and steps cannot "
            "be counted; run it without"
        )
    narrow = args.kv_cache_dtype not in _WIDE_CACHES
    plain = args.quantization is None and args.dtype != "auto"
    return ForeignFigure(
        tool=TOOL,
        what="request",
        model_text=row.model.name,
        format_text=args.dtype if plain else args.quantization,
        format_is_dtype=plain,
        prompt_length=args.input_len,
        num_tokens=args.output_len,
        first_from_prefill=True,
        has_prefill=True,
        batch=args.batch_size * args.n,
        samples=values,
        mean=sum(values) / len(values),
        num_devices=args.tensor_parallel_size * args.pipeline_parallel_size,
        cache_format=args.kv_cache_dtype if narrow else None,
        assumptions=_ASSUMPTIONS,
    )
