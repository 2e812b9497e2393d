"""The command line: arguments and exit codes, nothing else."""

from normscope.cli.app import app, main

__all__ = ["app", "main"]
