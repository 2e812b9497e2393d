"""Rewriting models: folded norms, swapped norms, and certificates of what changed."""
