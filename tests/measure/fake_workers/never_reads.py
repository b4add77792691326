"""Hangs before it reads its job."""

import time

time.sleep(4)
