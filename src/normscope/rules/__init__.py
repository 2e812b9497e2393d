"""What stands out in a result: sentences, most important first."""
