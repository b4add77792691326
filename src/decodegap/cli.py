"""The command line: parse, call, print; nothing else."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType

from decodegap.errors import DecodegapError

app = typer.Typer(
    help="How fast could a step be, how fast is it, and where does the time go?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_PIPE_WIDTH = 150
_DEFAULT_CONTEXT = 2048
_DEFAULT_FOLDER = Path("decodegap-results")

_EXIT_BAD_INPUT = 2
_EXIT_NO_RESULT = 1
_EXIT_INTERRUPTED = 130


def main() -> None:
    """The program. An error a person can mend is one line on standard error and exit code 2."""
    try:
        # Outside standalone mode `typer.Exit` is not raised here: its code is what the app returns.
        code = app(standalone_mode=False)
    except DecodegapError as error:
        print(f"decodegap: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        code = _EXIT_INTERRUPTED
    except Exception as error:
        sys.exit(_usage_error(error))
    if code == _EXIT_INTERRUPTED:  # some versions of typer turn Ctrl-C into this code themselves
        print("decodegap: interrupted; finished records are kept", file=sys.stderr)
    if code:
        sys.exit(code)


def _usage_error(error: Exception) -> int:
    """What the argument parser refuses, in our form; anything else is a fault of ours and shows
    itself whole."""
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    print(f"decodegap: {message()}", file=sys.stderr)
    return _EXIT_BAD_INPUT


def _console(to_error: bool = False) -> Console:
    stream = sys.stderr if to_error else sys.stdout
    # Names are shown as they are: no square bracket or colon of theirs is styling.
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(stderr=to_error, width=width, highlight=False, markup=False, emoji=False)


def _show(*parts: RenderableType) -> None:
    console = _console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))


def _print_json(document: Any) -> None:
    print(json.dumps(document))


ContextOption = Annotated[
    list[int] | None,
    typer.Option("--context", "-c", help="Tokens in the KV cache; repeatable. [default: 2048]"),
]
SeedOption = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Of synthetic weights and of the prompt.")
]
FormatOption = Annotated[str, typer.Option("--format", "-f", help="How weights are stored.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document, base units.")]


@app.command()
def floor(
    model: Annotated[
        str, typer.Argument(help="Catalogue name, Hugging Face id, folder or config.json.")
    ],
    device: Annotated[
        list[str] | None,
        typer.Option("--device", "-d", help="Device name; repeatable. [default: all]"),
    ] = None,
    context: ContextOption = None,
    format: FormatOption = "bf16",
    flows: Annotated[bool, typer.Option("--flows", help="Every tensor's bytes, and why.")] = False,
    as_json: JsonOption = False,
) -> None:
    """How fast could it be, on which device?"""
    from decodegap.predict.floor import floor_of
    from decodegap.predict.formats import get_format
    from decodegap.predict.resolve import resolve_model
    from decodegap.predict.traffic import held_bytes, published_bytes, step_traffic
    from decodegap.report import text
    from decodegap.report.machine import floor_document

    shape, fmt = resolve_model(model).shape, get_format(format)
    devices = _floor_devices(device)
    traffics = [step_traffic(shape, tokens, fmt) for tokens in context or [_DEFAULT_CONTEXT]]
    documents: list[dict[str, Any]] = []
    for traffic in traffics:
        published = published_bytes(shape, traffic.context, fmt)
        rows = [(row, floor_of(traffic, published, row)) for row in devices]
        documents += [floor_document(row, result, traffic) for row, result in rows]
        if not as_json:
            held = held_bytes(shape, traffic.context, fmt)
            _show(text.floor_view(rows, traffic, held), "")
        if flows and not as_json:
            _show(text.flows_table(traffic), "")
    if as_json:
        _print_json(documents[0] if len(documents) == 1 else documents)


def _floor_devices(names: list[str] | None) -> list[Any]:
    """The devices asked for, else the whole catalogue; a bandwidth measured here replaces the
    catalogue's."""
    from decodegap.measure.bandwidth import with_local_bandwidth
    from decodegap.predict.catalogue import catalogue_devices
    from decodegap.predict.device import find_device

    rows = catalogue_devices()
    wanted = [find_device(name, rows) for name in names] if names else list(rows.values())
    return [with_local_bandwidth(row) for row in wanted]


@app.command()
def measure(
    model: Annotated[
        str | None,
        typer.Argument(help="As for floor. [default: the largest known that fits this device]"),
    ] = None,
    runtime: Annotated[
        list[str] | None,
        typer.Option("--runtime", "-r", help="Way of running a step; repeatable. [default: all]"),
    ] = None,
    context: ContextOption = None,
    trials: Annotated[int, typer.Option(min=1, help="Fresh processes per cell.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per trial.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Discarded steps before them.")] = 5,
    weights: Annotated[
        str | None,
        typer.Option(help="synthetic or checkpoint. [default: checkpoint for a folder or an id]"),
    ] = None,
    format: FormatOption = "bf16",
    device: Annotated[
        str | None, typer.Option("--device", "-d", help="cpu, cuda or cuda:N. [default: a GPU]")
    ] = None,
    seed: SeedOption = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a trial may take.")] = 900,
    probes: Annotated[
        bool, typer.Option(help="Also time the interventions the account is made of.")
    ] = True,
    probe_again: Annotated[
        bool, typer.Option("--probe-again", help="Measure the bandwidth even if it is known.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = _DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """How fast is it here, and where does the time go?"""
    from decodegap.explain.result import read_result
    from decodegap.measure.bandwidth import reachable_bandwidth
    from decodegap.measure.machine import local_device, torch_device_name
    from decodegap.measure.trial import Request, plan_trials
    from decodegap.predict.device import with_measured
    from decodegap.record import prepare_folder
    from decodegap.report import text
    from decodegap.report.machine import result_document

    torch_device = torch_device_name(device)
    request = Request(
        model=model,
        runtimes=tuple(runtime or ()),
        contexts=tuple(context or [_DEFAULT_CONTEXT]),
        num_trials=trials,
        num_warmup=warmup,
        num_steps=steps,
        weights=_weights(weights),
        format=format,
        device=torch_device,
        seed=seed,
        timeout_seconds=timeout,
        probes=probes,
    )
    plan_trials(request, None)  # every refusal comes before the bandwidth probe
    folder = prepare_folder(out)
    bandwidth = reachable_bandwidth(torch_device, again=probe_again)
    planned = plan_trials(request, bandwidth.bytes_per_second)
    if not as_json:
        here = with_measured(local_device(torch_device), *bandwidth.figure_and_source)
        _show(text.plan_view(planned, here), "")
    result = read_result(_run_with_progress(planned, folder))
    if as_json:
        _print_json(result_document(result, str(folder)))
    else:
        _show(text.result_view(result), f"records: {folder}")
    if not result.cells:
        raise typer.Exit(_EXIT_NO_RESULT)


def _weights(given: str | None) -> Any:
    if given in (None, "synthetic", "checkpoint"):
        return given
    raise DecodegapError(f"--weights {given!r} is none of: synthetic, checkpoint")


def _run_with_progress(trials: Sequence[Any], folder: Path) -> list[Any]:
    """Run the trials of one run and store their records."""
    from decodegap.measure.session import run_trials

    return _watch(run_trials(trials, folder), len(trials), lambda done: _doing(trials, done))


def _watch(stored: Iterable[Any], total: int, doing: Callable[[int], str]) -> list[Any]:
    """Collect records behind a bar that moves between trials only: while a worker is timed, this
    process sleeps. `doing` names the trial that comes after so many."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    records = []
    with Progress(*columns, console=_console(to_error=True), auto_refresh=False) as progress:
        task = progress.add_task("", total=total)
        progress.update(task, description=doing(0), refresh=True)
        for one in stored:
            records.append(one.record)
            total = max(total, len(records))
            description = doing(len(records))
            progress.update(task, advance=1, total=total, description=description, refresh=True)
    return records


def _trials_done(done: int) -> str:
    return f"{done} trials done"


def _doing(trials: Sequence[Any], done: int) -> str:
    if done == len(trials):
        return "done"
    return f"{trials[done].runtime}, context {trials[done].context}"


@app.command()
def compare(
    model: Annotated[str, typer.Argument(help="As for floor.")],
    a: Annotated[str, typer.Argument(metavar="A", help="A runtime, e.g. hf-eager.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another, e.g. hf-eager?sdpa=flash.")],
    trials: Annotated[
        int, typer.Option("--trials", "-n", min=1, help="Fresh processes per arm.")
    ] = 10,
    max_trials: Annotated[int, typer.Option(min=1, help="The most --until-ci may take.")] = 50,
    until_ci: Annotated[
        str | None, typer.Option("--until-ci", help="Add pairs until the interval is so narrow: 1%")
    ] = None,
    margin: Annotated[str, typer.Option(help="The difference that does not matter.")] = "5%",
    predict: Annotated[
        str | None, typer.Option(help="Said beforehand: 'ratio > 1.2', 'no difference within 5 %'")
    ] = None,
    context: Annotated[int, typer.Option("--context", "-c")] = _DEFAULT_CONTEXT,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps per trial.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Discarded steps before them.")] = 5,
    weights: Annotated[str | None, typer.Option(help="synthetic or checkpoint.")] = None,
    format: FormatOption = "bf16",
    device: Annotated[str | None, typer.Option("--device", "-d", help="As for measure.")] = None,
    seed: SeedOption = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds a trial may take.")] = 900,
    out: Annotated[Path, typer.Option(help="Folder for the records.")] = _DEFAULT_FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Does B really beat A? Exit code 0 faster, 1 slower, 3 no difference, 4 inconclusive."""
    from decodegap.explain.compare import compare as compare_records
    from decodegap.explain.prediction import parse_share
    from decodegap.measure.bandwidth import reachable_bandwidth
    from decodegap.measure.machine import torch_device_name
    from decodegap.measure.session import run_trials
    from decodegap.measure.trial import Request
    from decodegap.record import prepare_folder
    from decodegap.report import comparison as page
    from decodegap.study.pairs import register, run_pairs
    from decodegap.study.request import PairRequest, comparison_words, plan_comparison

    torch_device = torch_device_name(device)
    request = PairRequest(
        base=Request(
            model=model,
            runtimes=(a, b),
            contexts=(context,),
            num_trials=1,
            num_warmup=warmup,
            num_steps=steps,
            weights=_weights(weights),
            format=format,
            device=torch_device,
            seed=seed,
            timeout_seconds=timeout,
            probes=False,
        ),
        num_pairs=trials,
        max_pairs=max(trials, max_trials) if until_ci else trials,
        margin=parse_share(margin),
        predict=predict,
        until_width=None if until_ci is None else parse_share(until_ci),
    )
    plan_comparison(request, None)  # every refusal comes before the bandwidth probe
    folder = prepare_folder(out)
    bandwidth = reachable_bandwidth(torch_device)
    plan = plan_comparison(request, bandwidth.bytes_per_second)
    if not as_json:
        _show(comparison_words(plan), "")
    register(plan, folder)
    stored = run_pairs(plan, lambda batch: run_trials(batch, folder))
    records = _watch(stored, 2 * trials, _trials_done)
    comparison = compare_records(records)
    if as_json:
        _print_json(page.comparison_document(comparison) | {"records": str(folder)})
    else:
        _show(page.comparison_view(comparison), f"records: {folder}")
    raise typer.Exit(comparison.exit_code)


@app.command()
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
    from decodegap.study.run import work_left

    asked = read_study(file)
    plan = plan_study(asked, torch_device_name(None))
    devices = devices_at(ray, plan)
    out = out or _DEFAULT_FOLDER / asked.name
    if dry_run:
        stored = look(out)
        work = work_left(plan, stored.records, devices, retry)
        _show_plan(words.plan_words(plan, work, stored), as_json)
        return
    with held(out) as folder:
        claim(folder, asked, file.read_text(encoding="utf-8"))
        stored = read_stored(folder)
        work = work_left(plan, stored.records, devices, retry)
        _show_plan(words.plan_words(plan, work, stored), as_json)
        fresh = run_at(ray, work, stored.records, folder, devices)
        doing = _trials_done if ray else lambda done: words.doing(work.here, done)
        records = [*stored.records, *_watch(fresh, len(work.here), doing)]
    _show_runs(read_runs(records), folder, as_json)
    if not any(record.wall_samples for record in records):
        raise typer.Exit(_EXIT_NO_RESULT)


def _show_plan(words: str, as_json: bool) -> None:
    if as_json:
        print(words, file=sys.stderr)
    else:
        _show(words, "")


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of records.")],
    against: Annotated[
        str | None, typer.Option(help="reference: beside the reference study's figures.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show me what was measured."""
    from decodegap.explain.runs import read_runs
    from decodegap.record import read_folder

    if against not in (None, "reference"):
        raise DecodegapError(f"--against {against!r} is none of: reference")
    records, unreadable = read_folder(folder)
    runs = read_runs(records)
    for error in unreadable:
        print(f"decodegap: {error}", file=sys.stderr)
    if against is None:
        _show_runs(runs, folder, as_json)
    else:
        _show_against(runs, as_json)
    if unreadable:
        raise typer.Exit(_EXIT_BAD_INPUT)


def _show_against(runs: Sequence[Any], as_json: bool) -> None:
    from decodegap.explain.published import against_reference
    from decodegap.report.against import against_document, against_view

    rows = against_reference(runs)
    if as_json:
        _print_json(against_document(rows))
    else:
        _show(against_view(rows))


def _show_runs(runs: Sequence[Any], folder: Path, as_json: bool) -> None:
    from decodegap.report.runs import run_document, run_view

    if as_json:
        _print_json([run_document(run, str(folder)) for run in runs])
    else:
        for run in runs:
            _show(run_view(run), "")


@app.command()
def generate(
    model: Annotated[str, typer.Argument(help="Checkpoint folder or Hugging Face id.")],
    prompt: Annotated[str, typer.Argument(help="What to continue, or to answer with --chat.")],
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1)] = 256,
    max_context: Annotated[
        int | None, typer.Option(min=1, help="Cache length. [default: prompt and answer]")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Use the chat template.")] = False,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 leaves all tokens in.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 leaves all tokens in.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the sampling.")] = 0,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the answer; repeatable.")
    ] = None,
    device: Annotated[str | None, typer.Option("--device", "-d")] = None,
) -> None:
    """Run it fast: stream text through the engine."""
    from decodegap import generate as generation
    from decodegap.engine import Engine
    from decodegap.measure.bandwidth import local_device_with_bandwidth
    from decodegap.measure.machine import torch_device_name

    torch_device = torch_device_name(device)
    folder = generation.checkpoint_folder(model)
    tokenizer = generation.load_tokenizer(folder)
    ids = generation.encode_prompt(tokenizer, prompt, chat)
    engine = Engine.from_pretrained(
        folder, max_context=max_context or len(ids) + max_new_tokens, device=torch_device
    )
    options = generation.Options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        stop=tuple(stop or ()),
        chat=chat,
    )
    speed = generation.stream_answer(engine, tokenizer, ids, options, _write_now)
    where = local_device_with_bandwidth(torch_device)
    print(f"\n\n{generation.speed_words(speed, engine.program.shape, where)}", file=sys.stderr)


def _write_now(text: str) -> None:
    print(text, end="", flush=True)


@app.command()
def doctor(as_json: JsonOption = False) -> None:
    """Is this machine fit to measure? Exit code 0 fit, 1 fit with warnings, 2 not."""
    import msgspec

    from decodegap.doctor import examine
    from decodegap.doctor.view import examination_view

    examination = examine()
    if as_json:
        _print_json(msgspec.to_builtins(examination) | {"exit_code": examination.exit_code})
    else:
        _show(examination_view(examination))
    raise typer.Exit(examination.exit_code)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from decodegap import __version__

        print(__version__)
        raise typer.Exit


if __name__ == "__main__":
    main()
