"""Dies before it reads its job."""

import os

os._exit(7)
