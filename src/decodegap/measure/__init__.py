"""From a trial to its record: fresh processes, stopwatches, verdicts, environment."""
