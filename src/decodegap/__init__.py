"""Measure, explain and close the gap between a decode step and its memory floor.

Importing this package does nothing: no GPU is queried, no torch is loaded.
"""

__version__ = "0.1.0"
