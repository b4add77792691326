"""The parent: one fresh process per trial, one record per process, whatever happens in it.

The worker gets its job in a file and answers once, on a pipe of its own, so that nothing a library
prints can be taken for a result. Its standard input stays open, silent, for its whole life: the end
of it tells a worker that the parent is gone.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import IO

import msgspec

from decodegap.errors import DecodegapError
from decodegap.record import Environment, Measurement, Outcome, Record, Trial, new_id

_TAIL_CHARACTERS = 2000


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The one message of a worker."""

    outcome: Outcome
    reason: str | None
    measurement: Measurement | None = None
    environment: Environment | None = None


class WorkerExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker ended: what it sent, how it exited, the end of what it printed."""

    message: bytes
    returncode: int
    timed_out: bool
    seconds: float
    tail: str


def run_trial(trial: Trial) -> Record:
    """Run one trial in a fresh process. A failure is a record too; Ctrl-C kills the worker and
    propagates."""
    started_at = datetime.now(UTC)
    ended = run_worker(
        "decodegap.measure.worker", msgspec.json.encode(trial), trial.timeout_seconds
    )
    report = interpret(ended, trial.timeout_seconds)
    return Record(
        id=new_id(),
        trial=trial,
        outcome=report.outcome,
        reason=report.reason,
        started_at=started_at,
        seconds=ended.seconds,
        measurement=report.measurement,
        environment=report.environment,
    )


def interpret(ended: WorkerExit, timeout_seconds: float) -> WorkerReport:
    """What a worker's end means. A worker that reported has the word; else its exit tells."""
    if ended.message:
        try:
            return msgspec.json.decode(ended.message, type=WorkerReport)
        except msgspec.DecodeError as error:
            damage = f"the worker's answer is damaged: {error}"
            if not ended.timed_out:
                return WorkerReport(outcome="crash", reason=damage)
    if ended.timed_out:
        reason = f"no result within {timeout_seconds:.0f} s; raise --timeout or shrink the trial"
        return WorkerReport(outcome="timeout", reason=reason)
    how = _how_it_ended(ended.returncode)
    return WorkerReport(
        outcome="crash", reason=f"worker ended with {how}: {_last_line(ended.tail)}"
    )


def _how_it_ended(returncode: int) -> str:
    if returncode == -signal.SIGKILL:
        return "SIGKILL (what the kernel sends when host memory runs out)"
    return signal.Signals(-returncode).name if returncode < 0 else f"exit code {returncode}"


def _last_line(tail: str) -> str:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def run_worker(module: str, job: bytes, timeout_seconds: float) -> WorkerExit:
    """Run `python -m module` on `job` and wait, asleep, for its one message and its end.

    The worker is a session of its own, so Ctrl-C reaches only the parent, which then kills the
    worker and whatever it started.
    """
    receive, send = os.pipe()
    started = monotonic()
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as job_file:
        job_file.write(job)
        job_file.flush()
        job_file.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(send), str(job_file.fileno())],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(send, job_file.fileno()),
            start_new_session=True,
        )
        os.close(send)
        try:
            message, timed_out = _listen(process, receive, started + timeout_seconds)
        finally:
            os.close(receive)
            _kill_group(process)
        tail = _tail(printed)
    return WorkerExit(
        message=message,
        returncode=process.returncode,
        timed_out=timed_out,
        seconds=monotonic() - started,
        tail=tail,
    )


def _listen(
    process: "subprocess.Popen[bytes]", receive: int, deadline: float
) -> tuple[bytes, bool]:
    """What the worker sends until it has ended: (message, timed out).

    Its end is watched apart from the pipe's: a process it left behind may hold the pipe open.
    """
    received = bytearray()
    ended = os.pidfd_open(process.pid)
    waiting = [receive, ended]
    try:
        while ended in waiting:
            ready, _, _ = select.select(waiting, [], [], max(0.0, deadline - monotonic()))
            if not ready:
                return bytes(received), True
            if receive in ready and not _take(receive, received):
                waiting.remove(receive)
            elif ended in ready:
                waiting.remove(ended)
    finally:
        os.close(ended)
    while select.select([receive], [], [], 0)[0] and _take(receive, received):
        pass  # what it had sent before it ended
    return bytes(received), False


def _take(receive: int, received: bytearray) -> bool:
    """Append what is there to read; False at the end of the stream."""
    chunk = os.read(receive, 1 << 20)
    received += chunk
    return bool(chunk)


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End the worker and its children; harmless when they have ended."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _tail(printed: IO[bytes]) -> str:
    printed.seek(0, os.SEEK_END)
    printed.seek(max(0, printed.tell() - _TAIL_CHARACTERS))
    return printed.read().decode("utf-8", errors="replace")


def read_job() -> bytes:
    """The worker's side: take the job, and die when the parent does.

    Waits on the descriptor of standard input, not on `sys.stdin`: a thread inside the buffered
    stream holds its lock, and Python aborts over that lock when it exits.
    """
    import threading

    def die_with_parent() -> None:
        os.read(0, 1)  # returns only at the end of the stream
        os._exit(1)

    threading.Thread(target=die_with_parent, daemon=True).start()
    with os.fdopen(int(sys.argv[2]), "rb") as job:
        return job.read()


def send_report(report: bytes) -> None:
    """The worker's side: answer, once."""
    with os.fdopen(int(sys.argv[1]), "wb") as pipe:
        pipe.write(report)


def require_ok(ended: WorkerExit, what: str, timeout_seconds: float) -> bytes:
    """The message of a worker that had to succeed.

    Raises:
        DecodegapError: it did not; the reason is its own.
    """
    if ended.message and not ended.timed_out:
        return ended.message
    raise DecodegapError(f"{what} failed: {interpret(ended, timeout_seconds).reason}")
