"""The parent: fresh processes for trials, one record a trial, whatever happens in it.

A process runs one trial, or those that share one in turn. The worker gets its job in a file and
answers on a pipe of its own, a line a trial, so that nothing a library prints can be taken for a
result. Its standard input stays open, silent, for its whole life: the end of it tells a worker that
the parent is gone.
"""

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from time import monotonic
from typing import IO

import msgspec

from decodegap.errors import DecodegapError
from decodegap.measure.machine import number_gpus_by_bus
from decodegap.record import Environment, Measurement, Outcome, Record, Trial, new_id

_WORKER = "decodegap.measure.worker"
_TAIL_CHARACTERS = 2000
# After these a process does not go on: what they leave in its memory would meet the next trial.
ENDS_PROCESS = frozenset({"oom", "crash", "timeout"})


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


def run_process(trials: Sequence[Trial]) -> Iterator[Record]:
    """Run trials in turn in one fresh process, each record given as soon as it is there; what is
    left when a failure has ended that process runs in another one. A failure is a record too;
    Ctrl-C kills the worker and propagates."""
    done = 0
    while done < len(trials):
        for record in _one_process(trials[done:]):
            done += 1
            yield record


def _one_process(trials: Sequence[Trial]) -> Iterator[Record]:
    """The records of the trials up to the first that ends the process, at least one."""
    with _started(_WORKER, msgspec.json.encode(trials)) as worker:
        for place, trial in enumerate(trials):
            started_at = datetime.now(UTC)
            ended = worker.answer(trial.timeout_seconds, is_last=place == len(trials) - 1)
            report = interpret(ended, trial.timeout_seconds)
            yield Record(
                id=new_id(),
                trial=trial,
                outcome=report.outcome,
                reason=report.reason,
                started_at=started_at,
                seconds=ended.seconds,
                measurement=report.measurement,
                environment=report.environment,
                place_in_process=place,
            )
            if ended.timed_out or report.outcome in ENDS_PROCESS:
                return


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
    """Run `python -m module` on `job` and wait, asleep, for its one message and its end."""
    with _started(module, job) as worker:
        return worker.answer(timeout_seconds, is_last=True)


@contextmanager
def _started(module: str, job: bytes) -> Iterator["_Worker"]:
    """A worker on its job; gone, with whatever it started, at the end of the block.

    It is a session of its own, so Ctrl-C reaches only the parent, which then kills it.
    """
    number_gpus_by_bus()
    receive, send = os.pipe()
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
            yield _Worker(process, receive, printed)
        finally:
            os.close(receive)
            _kill_group(process)


class _Worker:
    """A running worker, its messages and its end."""

    def __init__(self, process: "subprocess.Popen[bytes]", receive: int, printed: IO[bytes]):
        self._process = process
        self._receive = receive
        self._printed = printed
        self._received = bytearray()

    def answer(self, timeout_seconds: float, is_last: bool) -> WorkerExit:
        """The next message, waited for asleep; for the last one also the worker's end, so that its
        memory is free again when the next process starts."""
        start = monotonic()
        timed_out = self._listen(start + timeout_seconds, is_last)
        if timed_out:
            _kill_group(self._process)
        line, end, rest = self._received.partition(b"\n")
        self._received = rest
        has_ended = is_last or timed_out or not end
        if has_ended:
            self._process.wait()
        return WorkerExit(
            message=bytes(line),
            returncode=self._process.returncode if has_ended else 0,
            timed_out=timed_out,
            seconds=monotonic() - start,
            tail=_tail(self._printed) if has_ended else "",
        )

    def _listen(self, deadline: float, to_the_end: bool) -> bool:
        """Collect what the worker sends up to the end of a message, or of the worker; True if the
        deadline came first.

        Its end is watched apart from the pipe's: a process it left behind may hold the pipe open.
        """
        ended = os.pidfd_open(self._process.pid)
        waiting = [self._receive, ended]
        try:
            while ended in waiting and (to_the_end or b"\n" not in self._received):
                ready, _, _ = select.select(waiting, [], [], max(0.0, deadline - monotonic()))
                if not ready:
                    return True
                if self._receive in ready and not self._take():
                    waiting.remove(self._receive)
                elif ended in ready:
                    waiting.remove(ended)
        finally:
            os.close(ended)
        while ended not in waiting and select.select([self._receive], [], [], 0)[0]:
            if not self._take():  # what it had sent before it ended
                break
        return False

    def _take(self) -> bool:
        """Append what is there to read; False at the end of the stream."""
        chunk = os.read(self._receive, 1 << 20)
        self._received += chunk
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
    """The worker's side: one message, a line of JSON, as many times as there are answers."""
    with os.fdopen(int(sys.argv[1]), "wb", closefd=False) as pipe:
        pipe.write(report + b"\n")


def require_ok(ended: WorkerExit, what: str, timeout_seconds: float) -> bytes:
    """The message of a worker that had to succeed.

    Raises:
        DecodegapError: it did not; the reason is its own.
    """
    if ended.message and not ended.timed_out:
        return ended.message
    raise DecodegapError(f"{what} failed: {interpret(ended, timeout_seconds).reason}")
