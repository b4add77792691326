"""A foreign figure: one time that another tool wrote, with what its file says and does not say."""

import re
from collections.abc import Iterable
from statistics import median
from typing import Annotated, Any, TypeVar

import msgspec

from decodegap.errors import DecodegapError

READ = (
    "llama-bench (-o json or jsonl), vllm bench latency (--output-json, or the .pytorch.json "
    "beside it), optimum-benchmark (benchmark.json or benchmark_report.json)"
)

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]
OneOrMore = Annotated[int, msgspec.Meta(ge=1)]

# What other tools call the formats that hold plain floats.
FLOAT_FORMATS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "all F32": "fp32",
}


class BadForeignFile(DecodegapError):
    """A file of another tool that cannot be read or graded; the message says what is missing."""


class ForeignFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One timed quantity of another tool. None where its file does not say.

    samples: seconds of each repetition; empty where the file has only `mean` and `spread`.
    prompt_length: tokens in the cache before the first timed step, or prefilled inside the time.
    num_tokens: tokens generated per stream in one repetition; the first of them comes out of the
        prefill, not of a step, where `first_from_prefill`.
    batch: streams decoded together.
    num_devices: how many of the device the bytes may be spread over.
    on_host: settings that leave some of the model in the host's memory.
    format_is_dtype: the format is the type that was loaded and computed in, which a checkpoint that
        is quantised already does not keep its weights in.
    weight_bytes, num_parameters: of the whole file, as the tool counts them.
    tool_defaults: by option of ours, what the tool takes when it is told nothing.
    unread: fields of the file that its reader does not know.
    """

    tool: str
    version: str | None = None
    what: str
    model_text: str | None = None
    device_text: str | None = None
    format_text: str | None = None
    format_is_dtype: bool = False
    prompt_length: int | None = None
    num_tokens: int | None = None
    first_from_prefill: bool = False
    has_prefill: bool = False
    batch: int | None = None
    samples: tuple[float, ...] = ()
    mean: float
    spread: float | None = None
    num_devices: int = 1
    num_gpu_layers: int | None = None
    on_host: tuple[str, ...] = ()
    weight_bytes: int | None = None
    num_parameters: int | None = None
    cache_format: str | None = None
    tool_defaults: dict[str, int] = {}
    assumptions: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.tool} {self.what}"

    @property
    def format(self) -> str | None:
        """Our name of the format, where the file's own is one of plain floats."""
        return None if self.format_text is None else FLOAT_FORMATS.get(self.format_text)

    def default_of(self, option: str) -> str:
        """What the tool takes for an option that is missing, in brackets; empty where unknown."""
        value = self.tool_defaults.get(option)
        return "" if value is None else f" ({self.tool} takes {value} unless told)"

    @property
    def num_steps(self) -> int:
        """Decode steps in one repetition."""
        assert self.num_tokens is not None
        return self.num_tokens - 1 if self.first_from_prefill else self.num_tokens

    @property
    def seconds_per_step(self) -> float:
        """A repetition's median, or the mean where there are no samples, ÷ its steps: with a
        prefill inside, the most a step can have taken."""
        return (median(self.samples) if self.samples else self.mean) / self.num_steps


T = TypeVar("T")


def convert(document: Any, kind: type[T], tool: str) -> T:
    """A part of a decoded file as the struct its reader knows.

    Raises:
        BadForeignFile: a field that is read is missing or of another kind.
    """
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        reason = re.sub(r" - at `\$(.*)`$", r" (\1)", str(error))
        raise BadForeignFile(
            f"this looks like {tool}'s file, but: {reason}; what is read: {READ}"
        ) from None


def unknown_fields(document: dict[str, Any], known: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(document) - set(known)))
