"""The commands `normscope reproduce` and `normscope bench`, found by the entry point `normscope.commands`."""

import typer

from normscope.cli.options import RESEARCH


def register(app: typer.Typer) -> None:
    """Add the commands of this package to an application."""
    from normscope_lab.cli.bench import bench
    from normscope_lab.cli.reproduce import reproduce

    app.command(rich_help_panel=RESEARCH)(reproduce)
    app.add_typer(bench, name="bench", rich_help_panel=RESEARCH)
