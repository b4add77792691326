"""A worker that answers with its job: the parent's own cost, for `overheads.py`."""

from decodegap.measure.parent import read_job, send_report

if __name__ == "__main__":
    send_report(read_job())
