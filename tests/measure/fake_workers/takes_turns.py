"""Answers trial by trial what each trial's `folder` says."""

import os
import time

import msgspec

from decodegap.measure.parent import ENDS_PROCESS, WorkerReport, read_job, send_report
from decodegap.record import Trial

for trial in msgspec.json.decode(read_job(), type=list[Trial]):
    if trial.folder == "sleep":
        time.sleep(60)
    if trial.folder == "die":
        os._exit(3)
    send_report(msgspec.json.encode(WorkerReport(outcome=trial.folder, reason=None)))
    if trial.folder in ENDS_PROCESS:
        break
