"""Records and floors made visible. Pure; imports no torch."""
