"""Answers with its job."""

from decodegap.measure.parent import read_job, send_report

send_report(read_job())
