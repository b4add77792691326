"""`decodegap generate`: stream text from a checkpoint through the engine, and say how fast it was.

The engine yields tokens; here they become text as it forms, stop strings are watched for, and the
time of each step is kept for the line at the end.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import msgspec

from decodegap.errors import BadCheckpoint, BadConfig, UnknownModel, first_line
from decodegap.predict.device import Device
from decodegap.predict.floor import step_floor
from decodegap.predict.formats import get_format
from decodegap.predict.model import ModelShape
from decodegap.units import format_seconds


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a person may set; the engine checks the sampling values."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if "" in self.stop:
            raise BadConfig("an empty --stop would end every answer at once; leave it out")


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How the steps of one answer went. Seconds from one token in hand to the next: the step, the
    choice, the read back, the text."""

    num_prompt_tokens: int
    first_token: float
    steps: tuple[float, ...]

    @property
    def p50(self) -> float:
        return median(self.steps)

    @property
    def p99(self) -> float:
        from decodegap.explain.summary import percentile

        return percentile(sorted(self.steps), 0.99)


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's own tokenizer.

    Raises:
        BadCheckpoint: the folder has none.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = first_line(error)
        raise BadCheckpoint(
            f"{folder} has no usable tokenizer ({reason}); download its tokenizer.json too"
        ) from None


def encode_prompt(tokenizer: Any, prompt: str, chat: bool) -> list[int]:
    """Token ids of a plain prompt, or of one turn in the checkpoint's chat template.

    Raises:
        UnknownModel: `chat` with a checkpoint that has no chat template.
        BadCheckpoint: the template does not take the prompt.
        BadConfig: the prompt is no text.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise BadConfig("the prompt is not UTF-8 text; check the terminal's encoding") from None
    if not chat:
        return list(tokenizer(prompt).input_ids)
    if tokenizer.chat_template is None:
        raise UnknownModel("this checkpoint has no chat template; leave --chat out")
    turn = [{"role": "user", "content": prompt}]
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise BadCheckpoint(
            f"the chat template does not take this prompt ({first_line(error)}); leave --chat out"
        ) from None
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def text_pieces(tokenizer: Any, tokens: Iterable[int]) -> Iterator[str]:
    """Text as it forms: a piece is yielded once no later token can change it."""
    from tokenizers.decoders import DecodeStream

    stream = DecodeStream(skip_special_tokens=True)
    for token in tokens:
        piece = stream.step(tokenizer.backend_tokenizer, token)
        yield piece or ""


def until_stop(pieces: Iterable[str], stop: Sequence[str]) -> Iterator[str]:
    """Pass text on up to the first stop string, which is left out. Text that may be the start of
    one is held back until it is known not to be."""
    held = ""
    for piece in pieces:
        held += piece
        ends = [held.index(text) for text in stop if text in held]
        if ends:
            yield held[: min(ends)]
            return
        keep = max((_overlap(held, text) for text in stop), default=0)
        safe = len(held) - keep
        yield held[:safe]
        held = held[safe:]
    yield held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` starts with."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


def stream_answer(
    engine: Any,
    tokenizer: Any,
    prompt_ids: Sequence[int],
    options: Options,
    show: Callable[[str], Any],
) -> Speed:
    """Generate, show text as it forms, and return how fast it was. Ctrl-C ends the answer, not the
    account of it."""
    clock = _TokenClock()
    tokens = engine.generate(
        prompt_ids,
        max_new_tokens=options.max_new_tokens,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
        stop_tokens=options.stop_tokens,
    )
    try:
        for text in until_stop(text_pieces(tokenizer, clock.watch(tokens)), options.stop):
            show(text)
    except KeyboardInterrupt:
        show("\n[interrupted]")
    return clock.speed(len(prompt_ids))


class _TokenClock:
    """Notes when each token of an iterator is in hand."""

    def __init__(self) -> None:
        self._start = perf_counter()
        self._moments: list[float] = []

    def watch(self, tokens: Iterable[int]) -> Iterator[int]:
        for token in tokens:
            self._moments.append(perf_counter())
            yield token

    def speed(self, num_prompt_tokens: int) -> Speed:
        gaps = [after - before for before, after in pairwise(self._moments)]
        first = (self._moments or [perf_counter()])[0] - self._start
        return Speed(num_prompt_tokens=num_prompt_tokens, first_token=first, steps=tuple(gaps))


def stop_tokens(tokenizer: Any, folder: Path) -> frozenset[int]:
    """The checkpoint's own ends of text: the tokenizer's, and those of its generation_config.json,
    which chat models have more of."""
    path = folder / "generation_config.json"
    try:
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise BadCheckpoint(
            f"cannot read {path} ({first_line(error)}); download it again"
        ) from None
    listed = settings.get("eos_token_id") if isinstance(settings, dict) else None
    given = listed if isinstance(listed, list) else [listed]
    return frozenset(one for one in (*given, tokenizer.eos_token_id) if isinstance(one, int))


def full_cache_words(speed: Speed, engine: Any, options: Options) -> str | None:
    """Why an answer is shorter than it might be; None where the cache is not the reason."""
    num_tokens = len(speed.steps) + 1
    if num_tokens >= options.max_new_tokens or engine.position < engine.program.max_context:
        return None
    return (
        f"the answer ended at the cache's {engine.program.max_context} positions; give a larger "
        "--max-context"
    )


def speed_words(speed: Speed, shape: ModelShape, device: Device) -> str:
    """`212 tokens/s, step p50 4.7 ms, p99 4.9 ms, R_floor 0.63 …`, on one line."""
    first = f"first token after {format_seconds(speed.first_token)}"
    if not speed.steps:
        return f"{speed.num_prompt_tokens} prompt tokens, {first}; too short an answer to time"
    context = speed.num_prompt_tokens + len(speed.steps) // 2
    floor = step_floor(
        shape, max(1, min(context, shape.max_context - 1)), get_format("bf16"), device
    )
    known = {"R_floor": floor.exact, "R_reachable": floor.reachable}
    ratios = [f"{name} {f / speed.p50:.3f}" for name, f in known.items() if f is not None]
    return ", ".join(
        [
            f"{len(speed.steps) / sum(speed.steps):.1f} tokens/s",
            f"step p50 {format_seconds(speed.p50)}",
            f"p99 {format_seconds(speed.p99)}",
            *ratios,
            f"{speed.num_prompt_tokens} prompt tokens, {first}",
        ]
    )
