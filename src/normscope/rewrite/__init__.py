"""Models turned into other models: folded norms, swapped norms, and the certificates that say what changed."""
