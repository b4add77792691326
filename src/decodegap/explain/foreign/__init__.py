"""What other tools measured, read as they wrote it and graded against the floor. Pure."""
