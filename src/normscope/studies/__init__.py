"""Questions asked of a whole model, one per file."""
