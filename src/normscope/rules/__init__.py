"""What stands out in a result, in sentences: one file for each type of result."""
