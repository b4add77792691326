"""What a person adds to a foreign file, and what must be known before a figure can be graded.

Names in the file are taken where they are exactly a catalogue row's; nothing is guessed from a
likeness. An option that contradicts the file is refused.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from decodegap.explain.foreign.figure import BadForeignFile, ForeignFigure
from decodegap.predict.catalogue import catalogue_devices, catalogue_models
from decodegap.predict.device import Device, find_device, match_runtime_name
from decodegap.predict.formats import Format, get_format
from decodegap.predict.model import ModelShape
from decodegap.predict.resolve import resolve_model
from decodegap.predict.tensors import parameter_tensors
from decodegap.predict.traffic import parameter_bytes
from decodegap.units import format_bandwidth, format_bytes

_LIKE_COUNT = 0.01  # a tool may count rotary tables, or a tied head twice in part
_LIKE_SIZE = 0.01  # norms may be kept in 32 bits beside 16-bit matrices


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `grade`, each None unless given."""

    model: str | None = None
    device: str | None = None
    bandwidth: float | None = None
    format: str | None = None
    context: int | None = None
    tokens: int | None = None
    batch: int | None = None


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A figure with all that grading needs. `format` is None where only the file's size of the
    weights is known."""

    figure: ForeignFigure
    shape: ModelShape
    device: Device
    format: Format | None


def settle(figure: ForeignFigure, given: Given) -> Settled:
    """Put the file and the options together.

    Raises:
        BadForeignFile: something is neither in the file nor given, or is both and differs.
        UnknownModel, UnknownDevice, UnknownFormat: an option names none of ours.
    """
    figure = msgspec.structs.replace(
        figure,
        prompt_length=_agreed(figure, "--context", figure.prompt_length, given.context),
        num_tokens=_agreed(figure, "--tokens", figure.num_tokens, given.tokens),
        batch=_agreed(figure, "--batch", figure.batch, given.batch),
        assumptions=(*figure.assumptions, *_assumed(figure, given)),
    )
    model = _agreed(figure, "--model", _catalogue_model(figure.model_text), _row(given.model))
    shape = None if model is None else resolve_model(model).shape
    if shape is not None:
        _check_parameters(figure, shape)
    device, fmt = _device(figure, given), _format(figure, given, shape)
    missing = list(_missing(figure, shape, device, fmt))
    if shape is None or device is None or missing:
        reasons, options = zip(*missing, strict=True)
        raise BadForeignFile(f"{figure.name}: {', '.join(reasons)}; give {' and '.join(options)}")
    _check_steps(figure)
    return Settled(figure=figure, shape=shape, device=device, format=fmt)


def is_another_model(figure: ForeignFigure, shape: ModelShape) -> bool:
    """Whether the file counts other parameters than the model has."""
    ours = sum(tensor.num_elements for tensor in parameter_tensors(shape))
    theirs = figure.num_parameters
    return theirs is not None and abs(theirs - ours) > _LIKE_COUNT * ours


def is_smaller(figure: ForeignFigure, shape: ModelShape, fmt: Format) -> bool | None:
    """Whether all parameters in the format are smaller than the file's size of them; None where
    they are alike, or the file does not say."""
    if figure.weight_bytes is None:
        return None
    ours, theirs = parameter_bytes(shape, fmt), figure.weight_bytes
    return ours < theirs if abs(ours - theirs) > _LIKE_SIZE * theirs else None


def _assumed(figure: ForeignFigure, given: Given) -> Iterator[str]:
    """What was given, beside what the file says where that is another word."""
    texts = {
        "model": figure.model_text,
        "device": figure.device_text,
        "bandwidth": figure.device_text,
        "format": figure.format_text,
    }
    for name, value in msgspec.structs.asdict(given).items():
        if value is not None:
            text = texts.get(name)
            beside = "" if text in (None, value) else f"; the file says {text!r}"
            shown = format_bandwidth(value) if name == "bandwidth" else value
            yield f"--{name} {shown} is taken as given{beside}"


T = TypeVar("T", int, str)


def _agreed(figure: ForeignFigure, option: str, stated: T | None, given: T | None) -> T | None:
    if stated is not None and given is not None and stated != given:
        raise BadForeignFile(
            f"{figure.name}: the file says {stated}, {option} says {given}; leave {option} out"
        )
    return given if stated is None else stated


def _catalogue_model(text: str | None) -> str | None:
    """The row whose name or Hugging Face id is exactly `text`, whatever the case."""
    for short, row in catalogue_models().items():
        if text is not None and text.lower() in {short, row.hf_id.lower()}:
            return short
    return None


def _row(model: str | None) -> str | None:
    """A catalogue row by its short name, so that two names of one model agree."""
    return _catalogue_model(model) or model


def _device(figure: ForeignFigure, given: Given) -> Device | None:
    stated = match_runtime_name(figure.device_text or "", catalogue_devices())
    if given.bandwidth is not None:
        if stated is not None or given.device is not None:
            raise BadForeignFile("--bandwidth is for a device without a row; leave it out")
        return _unlisted_device(figure.device_text, given.bandwidth)
    if given.device is None:
        return stated
    named = find_device(given.device, catalogue_devices())
    _agreed(figure, "--device", None if stated is None else stated.name, named.name)
    return named


def _unlisted_device(text: str | None, bandwidth: float) -> Device:
    return Device(
        name=text or "a device without a name",
        title=text or "a device without a name",
        bandwidth_bytes_per_second=bandwidth,
        memory_bytes=None,
        source="given with --bandwidth",
    )


def _format(figure: ForeignFigure, given: Given, shape: ModelShape | None) -> Format | None:
    """None where it is none of ours, or what the file calls it is more than the file holds."""
    stated = _stated_format(figure)
    name = _agreed(figure, "--format", stated, given.format)
    fmt = None if name is None else get_format(name)
    quantised = stated is None and figure.format_text is not None and not figure.format_is_dtype
    if fmt is not None and quantised and figure.weight_bytes is None and not fmt.is_quantised:
        raise BadForeignFile(
            f"{figure.name}: the file says the weights are {figure.format_text!r}, --format says "
            f"{fmt.name}; give the format they are quantised to, or the nearest smaller one"
        )
    if fmt is None or shape is None or is_smaller(figure, shape, fmt) is not False:
        return fmt
    if stated is not None:
        return None
    assert figure.weight_bytes is not None
    raise BadForeignFile(
        f"{figure.name}: {shape.name} in {fmt.name} takes "
        f"{format_bytes(parameter_bytes(shape, fmt))} and the file's weights are "
        f"{format_bytes(figure.weight_bytes)} ({figure.format_text!r}); leave --format out"
    )


def _stated_format(figure: ForeignFigure) -> str | None:
    """The file's word. Where that is the type it was loaded in, it is the weights' own only in
    checkpoints that are known to be plain: the catalogue's."""
    known = not figure.format_is_dtype or _catalogue_model(figure.model_text) is not None
    return figure.format if known else None


def _missing(
    figure: ForeignFigure, shape: ModelShape | None, device: Device | None, fmt: Format | None
) -> Iterator[tuple[str, str]]:
    """What is not known, and the option that says it."""
    if shape is None:
        yield _no_row("model", figure.model_text), "--model"
    if device is None:
        yield _no_row("device", figure.device_text), "--device (or --bandwidth)"
    if fmt is None and (figure.weight_bytes is None or _has_experts(shape)):
        yield _no_format(figure), "--format"
    if figure.num_tokens is None:
        yield f"no count of generated tokens{figure.default_of('tokens')}", "--tokens"


def _no_row(what: str, text: str | None) -> str:
    return f"no {what} named" if text is None else f"{what} {text!r} is no name of ours"


def _no_format(figure: ForeignFigure) -> str:
    if figure.format is not None and figure.format_is_dtype:
        return f"{figure.format_text} was loaded, but whether of a quantised checkpoint is not said"
    return _no_row("format", figure.format_text)


def _has_experts(shape: ModelShape | None) -> bool:
    """Of experts a step reads some only: the file's size is no bound then."""
    return shape is not None and shape.num_experts > 0


def _check_steps(figure: ForeignFigure) -> None:
    if figure.num_steps < 1:
        raise BadForeignFile(
            f"{figure.name}: {figure.num_tokens} generated token holds no decode step; "
            "generate more"
        )


def _check_parameters(figure: ForeignFigure, shape: ModelShape) -> None:
    """A file that counts its parameters must count those of the model named."""
    if is_another_model(figure, shape):
        ours = sum(tensor.num_elements for tensor in parameter_tensors(shape))
        raise BadForeignFile(
            f"{figure.name}: the file's model {figure.model_text!r} has {figure.num_parameters} "
            f"parameters and {shape.name} has {ours}; give its own with --model"
        )
