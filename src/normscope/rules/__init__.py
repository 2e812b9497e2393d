"""What stands out in a result, in plain sentences."""
