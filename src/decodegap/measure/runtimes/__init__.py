"""Ways of running a step: one file each, chosen by name in `registry.py`."""
