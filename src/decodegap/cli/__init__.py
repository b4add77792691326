"""The command line: parse, call, print; nothing else. One file a verb."""

from decodegap.cli.program import main

__all__ = ["main"]
