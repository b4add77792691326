"""Where a study's trials run: on this machine, or on a Ray cluster."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from decodegap.measure.session import StoredRecord
from decodegap.record import Record
from decodegap.study import cluster
from decodegap.study.matrix import StudyPlan
from decodegap.study.run import Work, devices_here, launch_here, run_study


def devices_at(address: str | None, plan: StudyPlan) -> dict[str, str]:
    """The devices of the plan that are there, each with what the place calls it.

    Raises:
        Unavailable: no cluster answers at the address.
    """
    if address is None:
        return devices_here()
    cluster.connect(address)
    return cluster.devices_there([planned.device for planned in plan.trials])


def run_at(
    address: str | None,
    work: Work,
    records: Sequence[Record],
    folder: Path,
    devices: dict[str, str],
) -> Iterator[StoredRecord]:
    """Run what is left, and store each record as it comes."""
    if address is None:
        return run_study(work.here, records, folder, partial(launch_here, devices=devices))
    return cluster.run_on_ray(work.here, records, folder)
