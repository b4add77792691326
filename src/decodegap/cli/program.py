"""The program: the verbs, and what becomes of an error."""

import errno
import os
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from decodegap.cli.compare import compare
from decodegap.cli.doctor import doctor
from decodegap.cli.engine import engine
from decodegap.cli.export import export
from decodegap.cli.floor import floor
from decodegap.cli.generate import generate
from decodegap.cli.grade import grade
from decodegap.cli.measure import measure
from decodegap.cli.options import EXIT_BAD_INPUT, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED
from decodegap.cli.plan import plan
from decodegap.cli.report import report
from decodegap.cli.study import study
from decodegap.errors import DecodegapError

app = typer.Typer(
    help="How fast could a step be, how fast is it, and where does the time go?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for verb in (floor, measure, compare, study, report, plan, export, grade, generate, doctor):
    app.command()(verb)
app.add_typer(engine, name="engine")


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from decodegap import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """The program. An error a person can mend is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # no terminal's encoding ends a measurement
    try:
        # Outside standalone mode `typer.Exit` is not raised here: its code is what the app returns.
        code = app(standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        code = _reader_went_away()
    except BrokenPipeError:
        code = _reader_went_away()
    except DecodegapError as error:
        print(f"decodegap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except ModuleNotFoundError as error:
        sys.exit(_missing_package(error))
    except Exception as error:
        sys.exit(_usage_error(error))
    if code == EXIT_INTERRUPTED:  # some versions of typer turn Ctrl-C into this code themselves
        print("decodegap: interrupted; finished records are kept", file=sys.stderr)
    if code:
        sys.exit(code)


def _reader_went_away() -> int:
    """As after `| head`: no verdict's exit code, and nothing more to say to a closed pipe."""
    _give_up_output()
    return EXIT_BROKEN_PIPE


def _give_up_output() -> None:
    """What is still buffered goes nowhere, or Python complains of it on its way out."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# The extra each optional package comes with.
_EXTRAS = {
    **dict.fromkeys(("huggingface_hub", "numpy", "safetensors", "scipy"), "measure"),
    **dict.fromkeys(("tokenizers", "torch", "transformers"), "measure"),
    "triton": "engine",
    "ray": "cluster",
    **dict.fromkeys(("altair", "pyarrow", "vl_convert"), "report"),
}


def _missing_package(error: ModuleNotFoundError) -> int:
    """One line for a package of an extra that is not installed; a module of ours is our fault."""
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        raise error
    print(f"decodegap: this needs {package}: pip install 'decodegap[{extra}]'", file=sys.stderr)
    return EXIT_BAD_INPUT


def _usage_error(error: Exception) -> int:
    """What the argument parser refuses, in our form; anything else is a fault of ours and shows
    itself whole."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        print("decodegap: standard output is full; free space", file=sys.stderr)
        _give_up_output()
        return EXIT_BAD_INPUT
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    print(f"decodegap: {message()}", file=sys.stderr)
    return EXIT_BAD_INPUT
