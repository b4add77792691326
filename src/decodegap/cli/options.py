"""Options that several commands share, their defaults, and exit codes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from decodegap.errors import DecodegapError
from decodegap.record import MOST_SECONDS

DEFAULT_CONTEXT = 2048
DEFAULT_FOLDER = Path("decodegap-results")

EXIT_NO_RESULT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141  # as a shell has it for a program that a closed pipe ended


def _contexts(text: str) -> list[int]:
    """`2048` or `256,1024,4096`."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        wanted = "an integer, or integers between commas"
        raise typer.BadParameter(f"{text!r} is not {wanted}: 256,1024,4096") from None


def _flat(given: list[list[int]] | None) -> list[int] | None:
    """Each context once, in the order given."""
    if not given:
        return None
    return list(dict.fromkeys(context for contexts in given for context in contexts))


ContextOption = Annotated[
    list[int] | None,
    typer.Option(
        *("--context", "-c"),
        parser=_contexts,
        callback=_flat,
        metavar="TOKENS",
        help="Tokens in the KV cache; repeatable, or 256,1024,4096. [default: 2048]",
    ),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Of synthetic weights and of the prompt.")
]
TimeoutOption = Annotated[
    float, typer.Option(min=1, max=MOST_SECONDS, help="Seconds a trial may take.")
]
FormatOption = Annotated[str, typer.Option("--format", "-f", help="How weights are stored.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, base units.")]


def weights_kind(given: str | None) -> Any:
    """`--weights` as a record knows it.

    Raises:
        DecodegapError: it is neither.
    """
    return None if given is None else _one_of("--weights", given, "synthetic", "checkpoint")


def process_per(given: str) -> Any:
    """`--process` as a request knows it.

    Raises:
        DecodegapError: it is neither.
    """
    return _one_of("--process", given, "trial", "round")


def _one_of(option: str, given: str, *choices: str) -> str:
    if given in choices:
        return given
    raise DecodegapError(f"{option} {given!r} is none of: {', '.join(choices)}")
