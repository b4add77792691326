"""`decodegap study`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from decodegap.cli.console import show, watch
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
    from decodegap.study.file import read_study
    from decodegap.study.folder import claim, held, look, read_stored
    from decodegap.study.matrix import plan_study
    from decodegap.study.place import devices_at, run_at
    from decodegap.study.run import refuse_other_versions, work_left

    asked = read_study(file)
    plan = plan_study(asked, torch_device_name(None))
    devices = devices_at(ray, plan)
    out = out or DEFAULT_FOLDER / asked.name
    check = refuse_other_versions if ray is None else lambda records: None
    if dry_run:
        stored = look(out)
        check(stored.records)
        work = work_left(plan, stored.records, devices, retry)
        _show_plan(words.plan_words(plan, work, stored), as_json)
        return
    with held(out) as folder:
        claim(folder, asked, file.read_text(encoding="utf-8"))
        stored = read_stored(folder)
        check(stored.records)
        work = work_left(plan, stored.records, devices, retry)
        _show_plan(words.plan_words(plan, work, stored), as_json)
        fresh = run_at(ray, work, stored.records, folder, devices)
        ran = watch(fresh, lambda done: words.progress(work.here, stored.records, done))
        records = [*stored.records, *ran]
    show_runs(read_runs(records), folder, as_json)
    if not any(record.wall_samples for record in records):
        raise typer.Exit(EXIT_NO_RESULT)


def _show_plan(words: str, as_json: bool) -> None:
    if as_json:
        print(words, file=sys.stderr)
    else:
        show(words, "")
