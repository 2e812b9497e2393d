"""Readers of the data that experiments take from a folder: nothing is downloaded, nothing in a file is executed."""
