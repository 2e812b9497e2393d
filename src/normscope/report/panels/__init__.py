"""Panels of the report: one file for each type of result, with a function `panels(result)`."""
