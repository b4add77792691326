"""Sends part of an answer and hangs."""

import os
import sys
import time

from decodegap.measure.parent import read_job

read_job()
os.write(int(sys.argv[1]), b'{"outcome": "ok", "rea')
time.sleep(60)
