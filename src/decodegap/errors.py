"""What a person can get wrong, and what the machine can refuse.

Every message is one line and names the remedy. The command line prints it and exits with
`exit_code`; no traceback, nothing half-written.

    DecodegapError
    ├── UnknownModel      no such catalogue name, folder or Hugging Face id
    ├── UnknownDevice     no such device row
    ├── UnknownFormat     no such weight format
    ├── UnknownRuntime    no such runtime
    ├── BadConfig         a config.json that cannot be a model we count
    ├── BadContext        a context the model or the command cannot take
    ├── BadCheckpoint     missing or damaged weights
    ├── BadRecord         a file that is not a record of ours, or not a whole one
    ├── DoesNotFit        more memory needed than there is
    ├── OutputFolder      a folder that cannot be written
    └── Unavailable       a package, device or network that is not there
"""

from collections.abc import Iterable
from difflib import get_close_matches


class DecodegapError(Exception):
    """Base of every error a user can cause or mend."""

    exit_code = 2

    def __str__(self) -> str:
        return printable(super().__str__())


class UnknownModel(DecodegapError):
    pass


class UnknownDevice(DecodegapError):
    pass


class UnknownFormat(DecodegapError):
    pass


class UnknownRuntime(DecodegapError):
    pass


class BadConfig(DecodegapError):
    pass


class BadContext(DecodegapError):
    pass


class BadCheckpoint(DecodegapError):
    pass


class BadRecord(DecodegapError):
    pass


class DoesNotFit(DecodegapError):
    pass


class OutputFolder(DecodegapError):
    pass


class Unavailable(DecodegapError):
    pass


def printable(text: str) -> str:
    """One line that leaves a terminal as it is, whatever a file or a name brings: what is not
    printable is shown as Python would write it."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def first_line(error: BaseException) -> str:
    """What another library's error says first; its class where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean …` for an unknown name, or the list of what there is."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in names}
    close = get_close_matches(name.lower(), list(lowered), n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(lowered[match] for match in close) + "?"
    return "known: " + ", ".join(names)
