"""Options that several commands share, their defaults, and exit codes."""

from pathlib import Path
from typing import Annotated, Any

import typer

from decodegap.errors import DecodegapError

DEFAULT_CONTEXT = 2048
DEFAULT_FOLDER = Path("decodegap-results")

EXIT_NO_RESULT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

ContextOption = Annotated[
    list[int] | None,
    typer.Option("--context", "-c", help="Tokens in the KV cache; repeatable. [default: 2048]"),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Of synthetic weights and of the prompt.")
]
FormatOption = Annotated[str, typer.Option("--format", "-f", help="How weights are stored.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, base units.")]


def weights_kind(given: str | None) -> Any:
    """`--weights` as a record knows it.

    Raises:
        DecodegapError: it is neither.
    """
    if given in (None, "synthetic", "checkpoint"):
        return given
    raise DecodegapError(f"--weights {given!r} is none of: synthetic, checkpoint")
