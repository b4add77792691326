"""Answers, and dies on the way out, as libraries do."""

import os

from decodegap.measure.parent import read_job, send_report

send_report(read_job())
os.abort()
