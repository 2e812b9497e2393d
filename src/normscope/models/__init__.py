"""Finding norms in modules and checkpoints, identified from their outputs."""
