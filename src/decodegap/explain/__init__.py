"""From records to what they mean: summaries, accounts, findings. Pure; imports no torch."""
