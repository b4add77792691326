"""What a person adds to a foreign file, and what must be known before a figure can be graded.

Names in the file are taken where they are exactly a catalogue row's; nothing is guessed from a
likeness. An option that contradicts the file is refused.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from decodegap.explain.foreign.figure import BadForeignFile, ForeignFigure
from decodegap.predict.catalogue import catalogue_devices, catalogue_models, catalogue_shape
from decodegap.predict.device import Device, find_device, match_runtime_name
from decodegap.predict.formats import Format, get_format
from decodegap.predict.model import ModelShape
from decodegap.predict.resolve import resolve_model
from decodegap.predict.tensors import parameter_tensors
from decodegap.units import format_bandwidth

_LIKE_COUNT = 0.01  # a tool may count rotary tables, or a tied head twice in part


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
    device, fmt = _device(figure, given), _agreed(figure, "--format", figure.format, given.format)
    missing = list(_missing(figure, model, device, fmt))
    if model is None or device is None or missing:
        reasons, options = zip(*missing, strict=True)
        raise BadForeignFile(f"{figure.name}: {', '.join(reasons)}; give {' and '.join(options)}")
    shape = resolve_model(model).shape
    _check_steps(figure)
    _check_parameters(figure, shape)
    return Settled(
        figure=figure,
        shape=shape,
        device=device,
        format=None if fmt is None else get_format(fmt),
    )


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


def _missing(
    figure: ForeignFigure, model: str | None, device: Device | None, fmt: str | None
) -> Iterator[tuple[str, str]]:
    """What is not known, and the option that says it."""
    if model is None:
        yield _no_row("model", figure.model_text), "--model"
    if device is None:
        yield _no_row("device", figure.device_text), "--device (or --bandwidth)"
    if fmt is None and (figure.weight_bytes is None or _has_experts(model)):
        yield _no_row("format", figure.format_text), "--format"
    if figure.num_tokens is None:
        yield "no count of generated tokens", "--tokens"


def _no_row(what: str, text: str | None) -> str:
    return f"no {what} named" if text is None else f"{what} {text!r} is no name of ours"


def _has_experts(model: str | None) -> bool:
    """Of experts a step reads some only: the file's size is no bound then."""
    return model in catalogue_models() and catalogue_shape(model).num_experts > 0


def _check_steps(figure: ForeignFigure) -> None:
    if figure.num_steps < 1:
        raise BadForeignFile(
            f"{figure.name}: {figure.num_tokens} generated token holds no decode step; "
            "generate more"
        )


def _check_parameters(figure: ForeignFigure, shape: ModelShape) -> None:
    """A file that counts its parameters must count those of the model named."""
    if figure.num_parameters is None:
        return
    ours = sum(tensor.num_elements for tensor in parameter_tensors(shape))
    if abs(figure.num_parameters - ours) > _LIKE_COUNT * ours:
        raise BadForeignFile(
            f"{figure.name}: the file's model {figure.model_text!r} has {figure.num_parameters} "
            f"parameters and {shape.name} has {ours}; give its own with --model"
        )
