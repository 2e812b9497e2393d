"""What stands out in a result: sentences, one function for each type."""
