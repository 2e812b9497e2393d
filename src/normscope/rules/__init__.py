"""Sentences on what stands out in a result: one file for each type of result."""
