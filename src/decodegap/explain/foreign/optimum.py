"""optimum-benchmark's benchmark_report.json, and benchmark.json, which has the config with it.

`decode` is read: seconds from the first token to the last, so `max_new_tokens` − 1 steps, prefill
apart. `per_token` is not: its list repeats the tokens of earlier repetitions in each later one,
with the gaps between repetitions among them. Backends without `per_token` have no event at the
first token; their `decode` is each whole generation less the mean prefill.
(huggingface/optimum-benchmark, scenarios/inference and trackers/latency.py)
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

TOOL = "optimum-benchmark"

_DEFAULTS = {"tokens": 100, "batch": 2}
# What a generate_kwargs may say beside the number of tokens and streams without another step.
_KNOWN_ARGUMENTS = ("do_sample", "use_cache", "temperature", "top_k", "top_p", "pad_token_id")


class _Latency(msgspec.Struct, frozen=True, kw_only=True):
    unit: Literal["s"]
    mean: Positive
    values: tuple[Positive, ...] = ()
    stdev: float | None = None


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    latency: _Latency | None = None


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    decode: _Target
    per_token: _Target | None = None


class _Backend(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    device: str | None = None
    device_ids: str | None = None
    torch_dtype: str | None = None
    quantization_scheme: str | None = None
    quantization_config: dict[str, Any] | None = None
    cache_implementation: str | None = None
    device_map: str | None = None
    tp_plan: str | None = None


class _InputShapes(msgspec.Struct, frozen=True, kw_only=True):
    batch_size: Count
    sequence_length: Count | None = None


class _GenerateArguments(msgspec.Struct, frozen=True, kw_only=True):
    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    num_beams: OneOrMore = 1
    num_return_sequences: OneOrMore = 1


class _Scenario(msgspec.Struct, frozen=True, kw_only=True):
    input_shapes: _InputShapes
    generate_kwargs: _GenerateArguments = _GenerateArguments()


class _Environment(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str | None = None
    gpu: tuple[str, ...] = ()
    optimum_benchmark_version: str | None = None


class _Launcher(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    backend: _Backend
    scenario: _Scenario
    launcher: _Launcher
    environment: _Environment


def is_optimum(document: Any) -> bool:
    if not isinstance(document, dict):
        return False
    report = document.get("report", document)
    return isinstance(report, dict) and "load_model" in report


def read_optimum(document: dict[str, Any]) -> list[ForeignFigure]:
    """The decode of one report.

    Raises:
        BadForeignFile: a field is missing, or nothing of a decode was timed.
    """
    whole = "report" in document
    report = convert(document["report"] if whole else document, _Report, TOOL)
    if report.decode.latency is None:
        raise BadForeignFile(
            "this optimum-benchmark report timed no decode; run it with scenario.latency=true"
        )
    figure = _figure(report, report.decode.latency)
    if whole:
        config = convert(document.get("config"), _Config, TOOL)
        figure = _with_config(figure, config, _unread(document))
    return [figure]


def _figure(report: _Report, latency: _Latency) -> ForeignFigure:
    by_events = report.per_token is not None
    begins = "the first token's logits" if by_events else "the mean of the prefills, subtracted"
    return ForeignFigure(
        tool=TOOL,
        what="decode",
        first_from_prefill=True,
        samples=latency.values,
        mean=latency.mean,
        spread=latency.stdev,
        tool_defaults=_DEFAULTS,
        assumptions=(
            f"a decode begins after {begins}, so the first token is no step of it",
            "report.per_token is not read: its list repeats earlier repetitions",
        ),
    )


def _with_config(figure: ForeignFigure, config: _Config, unread: tuple[str, ...]) -> ForeignFigure:
    backend, shapes = config.backend, config.scenario.input_shapes
    arguments = config.scenario.generate_kwargs
    device, num_devices = _devices(config)
    return msgspec.structs.replace(
        figure,
        version=config.environment.optimum_benchmark_version,
        what=f"decode ({backend.name})",
        model_text=backend.model,
        device_text=device,
        format_text=_format_text(backend),
        format_is_dtype=not _quantisation(backend),
        prompt_length=shapes.sequence_length,
        num_tokens=_num_tokens(arguments),
        batch=shapes.batch_size * arguments.num_beams * arguments.num_return_sequences,
        num_devices=num_devices,
        cache_format="quantized" if backend.cache_implementation == "quantized" else None,
        unread=unread,
    )


def _unread(document: dict[str, Any]) -> tuple[str, ...]:
    arguments = document["config"]["scenario"].get("generate_kwargs", {})
    known = (*_GenerateArguments.__struct_fields__, *_KNOWN_ARGUMENTS)
    inside = (f"generate_kwargs.{name}" for name in unknown_fields(arguments, known))
    return (*unknown_fields(document, ("config", "report")), *inside)


def _num_tokens(arguments: _GenerateArguments) -> int | None:
    """None where an end of text may have come first: versions that let the least differ."""
    least, most = arguments.min_new_tokens, arguments.max_new_tokens
    return most if least == most else None


def _devices(config: _Config) -> tuple[str | None, int]:
    """What the environment calls the devices that ran it, and over how many the model may lie."""
    backend, environment = config.backend, config.environment
    if backend.device == "cpu":
        return (environment.cpu or "").strip() or None, 1
    ids = [int(one) for one in (backend.device_ids or "").split(",") if one.strip().isdigit()]
    names = {environment.gpu[one] for one in ids if one < len(environment.gpu)}
    names = names or set(environment.gpu)
    spread = backend.device_map or backend.tp_plan or config.launcher.name == "torchrun"
    return ", ".join(sorted(names)) or None, max(1, len(ids)) if spread else 1


def _format_text(backend: _Backend) -> str | None:
    return _quantisation(backend) or backend.torch_dtype


def _quantisation(backend: _Backend) -> str | None:
    """What the tool quantised to as it loaded."""
    said = backend.quantization_scheme or backend.quantization_config
    return str(said) if said else None
