"""`decodegap study`."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from decodegap.cli.console import print_json, show, tell, watch
from decodegap.cli.options import DEFAULT_FOLDER, EXIT_NO_RESULT, JsonOption
from decodegap.cli.report import show_runs


def study(
    file: Annotated[Path, typer.Argument(help="A study file, e.g. studies/smoke.toml.")],
    out: Annotated[
        Path | None, typer.Option(help="Its folder. [default: decodegap-results/NAME]")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run again what crashed or ran out of time.")
    ] = False,
    ray: Annotated[
        str | None, typer.Option(help="Run on the Ray cluster at this address, e.g. auto.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """The whole matrix, resumable. Exit code 1 if no trial of it has a time yet."""
    from decodegap.explain.runs import read_runs
    from decodegap.measure.machine import torch_device_name
    from decodegap.study import words
    from decodegap.study.file import parse_study, study_text
    from decodegap.study.folder import claim, held, look, read_stored, refuse_other_study
    from decodegap.study.matrix import plan_study
    from decodegap.study.place import devices_at, run_at
    from decodegap.study.run import refuse_others, work_left

    text = study_text(file)
    asked = parse_study(text, str(file))
    plan = plan_study(asked, torch_device_name(None))
    devices = devices_at(ray, plan)
    out = out or DEFAULT_FOLDER / asked.name
    check = partial(refuse_others, plan, with_versions=ray is None)
    if dry_run:
        refuse_other_study(out, asked)
        stored = look(out)
        check(stored.records)
        work = work_left(plan, stored.records, devices, retry)
        if as_json:
            print_json(words.plan_document(plan, work, stored))
        else:
            show(words.plan_words(plan, work, stored))
        return
    with held(out) as folder:
        claim(folder, asked, text)
        stored = read_stored(folder)
        check(stored.records)
        work = work_left(plan, stored.records, devices, retry)
        _show_plan(words.plan_words(plan, work, stored), as_json)
        fresh = run_at(ray, work, stored.records, folder, devices)
        ran = watch(fresh, lambda done: words.progress(work.here, stored.records, done))
        records = [*stored.records, *ran]
    found = read_runs(records)
    show_runs(found.read, folder, as_json)
    tell(found.errors)
    if not any(record.wall_samples for record in records):
        raise typer.Exit(EXIT_NO_RESULT)


def _show_plan(words: str, as_json: bool) -> None:
    if as_json:
        print(words, file=sys.stderr)
    else:
        show(words, "")
