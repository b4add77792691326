"""How fast a step could be: shapes, bytes, devices, floors. Pure; imports no torch."""
