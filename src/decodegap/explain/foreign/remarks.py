"""What is to be said of graded figures: findings, each with a hint."""

from collections.abc import Iterator, Sequence

from decodegap.explain.findings import Finding, merge_findings
from decodegap.explain.foreign.against_floor import Grade
from decodegap.explain.foreign.figure import ForeignFigure
from decodegap.units import format_bandwidth, format_bytes, format_seconds

# What is said of a grade: the text and the hint.
_Remark = tuple[str, str]


def findings_on_grades(grades: Sequence[Grade]) -> list[Finding]:
    """Each remark once, with all the figures it is made on."""
    return merge_findings(
        Finding(severity="warning", cells=(grade.figure.what,), text=text, hint=hint)
        for grade in grades
        for text, hint in _remarks(grade)
    )


def findings_on_others(figures: Sequence[ForeignFigure]) -> list[Finding]:
    """What is said of the figures left out, since they are of another model than the one given."""
    return merge_findings(
        Finding(
            severity="warning",
            cells=(figure.what,),
            text=f"left out: {figure.model_text!r} has {figure.num_parameters} parameters and is "
            "another model than --model",
            hint="grade the file again with that one",
        )
        for figure in figures
    )


def _remarks(grade: Grade) -> Iterator[_Remark]:
    yield from _on_memory(grade)
    yield from _on_step(grade)
    yield from _on_bytes(grade)
    yield from _on_evidence(grade)


def _on_memory(grade: Grade) -> Iterator[_Remark]:
    if grade.impossible:
        assert grade.floor is not None
        yield (
            f"impossible: faster than memory: {format_seconds(grade.step)} a step, and "
            f"{format_bytes(grade.bytes)} take {format_seconds(grade.floor)} at "
            f"{grade.speed_text}",
            "look for a format, model or device other than named, weights that stay in a cache, "
            "several tokens a pass (speculation), or a clock that does not wait for the device",
        )
    elif grade.reachable_floor is not None and grade.step < grade.reachable_floor:
        assert grade.device.reachable_bytes_per_second is not None
        speed = format_bandwidth(grade.device.reachable_bytes_per_second)
        yield (
            f"faster than {speed}, the most that was measured on such a device",
            "doubt it as if it were impossible, unless its memory was clocked higher",
        )


def _on_step(grade: Grade) -> Iterator[_Remark]:
    figure = grade.figure
    if figure.has_prefill:
        yield (
            "prefill is inside this figure: a step took at most what is shown, and the time alone "
            "cannot tell the two apart",
            "time generation alone (llama-bench -n), or run it again with another number of "
            "generated tokens: the difference is steps alone",
        )
    if figure.batch is None:
        yield (
            "the batch is not stated, so this may be throughput and has no R_floor",
            f"--batch{figure.default_of('batch')}",
        )
    elif figure.batch != 1:
        yield (
            f"batch is not 1: {figure.batch} streams share a step, so tokens per second are "
            "throughput, not a step's rate",
            "run it with one stream; R_floor is of one",
        )


def _on_bytes(grade: Grade) -> Iterator[_Remark]:
    figure = grade.figure
    if figure.prompt_length is None:
        yield (
            "context is not stated: the floor counts a cache of the generated tokens alone",
            f"--context, the tokens before the first that was timed{figure.default_of('context')}",
        )
    if grade.format is None:
        yield (
            "a format that is none of ours: the floor counts what the file's weights take",
            "--format, if it is stored in one of ours",
        )
    if figure.cache_format is not None:
        yield (
            f"the cache is {figure.cache_format}: the floor leaves it out",
            "at a short context that changes little; measure with a 16-bit cache",
        )
    if figure.num_devices > 1:
        yield (
            f"up to {figure.num_devices} devices: the floor takes the bandwidth of all together",
            "layers split over devices are read one device at a time: run it on one",
        )
    if figure.on_host:
        yield (
            f"{', '.join(figure.on_host)}: some of the model may be in the host's memory, which "
            "the floor does not count",
            "load all of it, or the figure is of neither memory",
        )
    if figure.num_gpu_layers is not None and figure.num_gpu_layers <= grade.num_layers:
        yield (
            f"{figure.num_gpu_layers} of {grade.num_layers} layers and the head are on the GPU: "
            "the rest reads the host's memory, which the floor does not count",
            "load all of it, or the figure is of neither memory",
        )


def _on_evidence(grade: Grade) -> Iterator[_Remark]:
    figure = grade.figure
    if not figure.samples:
        yield (
            "only a mean and a spread, no raw samples: a tail cannot be seen and one slow "
            "repetition moves it",
            "keep the file with every repetition",
        )
    yield (
        "one process: nothing is known of the spread between processes",
        "run the tool several times, or `decodegap measure`, which starts one a trial",
    )
    if figure.unread:
        yield (
            f"fields that are not known here: {', '.join(figure.unread)}",
            "if one of them changes what was timed, this grade does not know it",
        )
