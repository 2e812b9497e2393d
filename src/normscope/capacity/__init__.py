"""How much a norm bends, and what networks with nothing but LayerNorm can do."""
