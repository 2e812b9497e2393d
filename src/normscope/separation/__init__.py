"""Separation: which points of a set some linear score prefers to all others, with a certificate for every verdict."""
