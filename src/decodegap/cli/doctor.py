"""`decodegap doctor`."""

import typer

from decodegap.cli.console import print_json, show
from decodegap.cli.options import JsonOption


def doctor(as_json: JsonOption = False) -> None:
    """Is this machine fit to measure? Exit code 0 fit, 1 fit with warnings, 2 not."""
    import msgspec

    from decodegap.doctor import examine
    from decodegap.doctor.view import examination_view

    examination = examine()
    if as_json:
        print_json(msgspec.to_builtins(examination) | {"exit_code": examination.exit_code})
    else:
        show(examination_view(examination))
    raise typer.Exit(examination.exit_code)
