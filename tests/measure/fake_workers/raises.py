"""Dies of an exception."""

from decodegap.measure.parent import read_job

read_job()
raise ValueError("no such luck")
