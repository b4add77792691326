"""Answers with the order it would have CUDA number GPUs in."""

import os

from decodegap.measure.parent import read_job, send_report

read_job()
send_report(os.environ.get("CUDA_DEVICE_ORDER", "not said").encode())
