"""What every tensor of a traced call can hold, for all inputs: bounds, and how they depend on the norms before them."""
