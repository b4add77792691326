"""A study's trials on a Ray cluster: Ray decides where, restarts what a lost node was running, and
brings the records back.

The trials of one run stay together: they are compared with each other, so an actor that holds one
device runs them in turn, those that share a process as one task. A node offers a device as a
resource of its catalogue name (`ray start --resources='{"h100-sxm5": 1}'`), or a GPU by Ray's
accelerator type.
"""

import logging
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from decodegap.errors import DecodegapError, Unavailable, first_line
from decodegap.measure.session import StoredRecord
from decodegap.record import Placement, Record
from decodegap.study.folder import store
from decodegap.study.matrix import Planned
from decodegap.study.run import devices_here, launch_here, launched_together, settled

Launch = Callable[[Sequence[Planned]], Iterable[Record]]

# How long no node may offer a device before its trials are given up for this time.
_PATIENCE_SECONDS = 60.0
_MOST_RESTARTS = 3
_ANSWER_SECONDS = 5.0


class LostDevice(DecodegapError):
    """Trials are left whose device no node offers any more."""


def connect(address: str) -> None:
    """Join the cluster at `address` (`auto`, `HOST:PORT` or `ray://HOST:PORT`).

    Raises:
        Unavailable: Ray is not installed, or no cluster answers there.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise Unavailable("--ray needs Ray: pip install 'decodegap[cluster]'") from None
    _refuse_silent(address)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = first_line(error)
        raise Unavailable(f"no Ray cluster answers at {address} ({reason})") from None


def _refuse_silent(address: str) -> None:
    """Ray itself goes on trying for minutes where nothing listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        reason = error.strerror or error
        raise Unavailable(f"no Ray cluster answers at {address} ({reason})") from None


def devices_there(wanted: Sequence[str]) -> dict[str, str]:
    """Of the devices wanted, those that some node offers, with the resource to ask for."""
    import ray

    offered: dict[str, float] = ray.cluster_resources()
    found = {}
    for device in wanted:
        names = (device, f"accelerator_type:{device.partition('-')[0].upper()}")
        resource = next((name for name in names if offered.get(name, 0) > 0), None)
        if resource is not None:
            found[device] = resource
    return found


def run_on_ray(
    trials: Sequence[Planned],
    records: Sequence[Record],
    folder: Path,
    launch: Launch | None = None,
    patience_seconds: float = _PATIENCE_SECONDS,
) -> Iterator[StoredRecord]:
    """Run the trials, whose devices some node must offer, on the connected cluster, and store each
    record here as it comes.

    Raises:
        LostDevice: the last node with a device that is still needed has gone.
        Unavailable: a node has not the device it offers.
    """
    import ray

    seen = list(records)
    waiting = _queues(trials)
    devices = {run: queue[0][0].device for run, queue in waiting.items()}
    resources = devices_there(list(devices.values()))
    actors = {
        run: _start_actor(device, resources[device], launch or launch_on_node)
        for run, device in devices.items()
    }
    running: dict[Any, str] = {}
    for run in devices:
        _submit_next(run, waiting, actors, running, seen)
    while running:
        done, _ = ray.wait(list(running), num_returns=1, timeout=patience_seconds)
        if not done:
            _refuse_lost([devices[run] for run in running.values()])
            continue
        run = running.pop(done[0])
        fresh = msgspec.json.decode(_result(done[0], devices[run]), type=list[Record])
        seen += fresh
        stored = [StoredRecord(record, store(record, folder)) for record in fresh]
        _submit_next(run, waiting, actors, running, seen)
        yield from stored


def _result(reference: Any, device: str) -> bytes:
    """What an actor sent back."""
    import ray
    from ray.exceptions import RayActorError, RayTaskError

    try:
        sent: bytes = ray.get(reference)
    except RayActorError:
        raise LostDevice(
            f"a trial lost {_MOST_RESTARTS + 1} nodes with {device} one after the other; finished "
            "records are kept: see the nodes' logs and run the study again"
        ) from None
    except RayTaskError as error:
        if isinstance(error.cause, DecodegapError):
            raise error.cause from None
        raise
    return sent


def _queues(trials: Sequence[Planned]) -> dict[str, deque[list[Planned]]]:
    """What is left of each run, in its order, by process."""
    queues: dict[str, deque[list[Planned]]] = {}
    for together in launched_together(trials):
        queues.setdefault(together[0].trial.run, deque()).append(together)
    return queues


def _submit_next(
    run: str,
    waiting: dict[str, deque[list[Planned]]],
    actors: dict[str, Any],
    running: dict[Any, str],
    seen: Sequence[Record],
) -> None:
    """Give the run's actor its next process of trials; with none left, free its device."""
    queue = waiting[run]
    while queue:
        together = [one for one in queue.popleft() if not settled(one.trial, seen)]
        if together:
            running[actors[run].run.remote(msgspec.json.encode(together))] = run
            return
    del actors[run]  # Ray ends an actor that nobody can call any more


def _refuse_lost(devices: Sequence[str]) -> None:
    gone = sorted(set(devices) - set(devices_there(devices)))
    if gone:
        raise LostDevice(
            f"no node offers {', '.join(gone)} any more; finished records are kept: start a node "
            "with it and run the study again"
        )


def _start_actor(device: str, resource: str, launch: Launch) -> Any:
    """One that Ray starts anew elsewhere, and whose trial it repeats there, if its node is lost."""
    import ray

    share = 0.001 if resource.startswith("accelerator_type:") else 1
    options = {
        "num_cpus": 1,
        "num_gpus": 0 if device == "cpu" else 1,
        "resources": {resource: share},
        "max_restarts": _MOST_RESTARTS,
        "max_task_retries": -1,  # tries to reach a node that is just being lost count as well
    }
    return ray.remote(_Runner).options(**options).remote(launch)


class _Runner:
    """Runs trials on the node it lives on, one at a time."""

    def __init__(self, launch: Launch) -> None:
        import ray

        context = ray.get_runtime_context()
        self._launch = launch
        self._node = context.get_node_id()
        self._repeating = context.was_current_actor_reconstructed

    def run(self, job: bytes) -> bytes:
        """Planned trials of one process in, their records out, both as JSON."""
        records = list(self._launch(msgspec.json.decode(job, type=list[Planned])))
        placement = Placement(node=self._node, retried=self._repeating)
        self._repeating = False  # only the first task after a restart had been begun before
        placed = [msgspec.structs.replace(record, placement=placement) for record in records]
        return msgspec.json.encode(placed)


def launch_on_node(together: Sequence[Planned]) -> Iterator[Record]:
    """Run trials that share a process on this node's device of their kind.

    Raises:
        Unavailable: Ray's accelerator type is coarser than ours: this is another device.
    """
    devices = devices_here()
    device = together[0].device
    if device not in devices:
        raise Unavailable(
            f"a node offers {device} and has {', '.join(devices)}; name its device with "
            "`ray start --resources`"
        )
    return launch_here(together, devices)
