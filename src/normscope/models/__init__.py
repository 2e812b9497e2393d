"""Finding norms in modules and checkpoints, by asking them."""
