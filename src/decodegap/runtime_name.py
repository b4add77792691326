"""The text that names a runtime in a trial, `NAME` or `NAME?OPTION=VALUE&…`, apart and together.

Its spelling only. Which names, options and values there are is the registry's to say; whoever reads
records needs no registry, and a record may name a runtime that this version no longer has.
"""

import msgspec


class RuntimeName(msgspec.Struct, frozen=True):
    """A runtime's name and the options that follow it, which are those that are not the default."""

    name: str
    options: dict[str, str]

    @property
    def text(self) -> str:
        """The one spelling of it: options in the order of their names."""
        given = "&".join(f"{key}={value}" for key, value in sorted(self.options.items()))
        return f"{self.name}?{given}" if given else self.name


def split_runtime(text: str) -> RuntimeName:
    """Take a runtime's text apart, whatever it names."""
    name, _, query = text.partition("?")
    given = (part.partition("=") for part in query.split("&") if part)
    return RuntimeName(name, {key: value for key, _, value in given})
