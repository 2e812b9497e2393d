"""Studies of a whole model, one per file."""
