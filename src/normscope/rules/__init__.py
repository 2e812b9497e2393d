"""What stands out in results, in sentences: one file for each kind of result."""
