"""The commands `normscope reproduce` and `normscope bench`, found by the entry point `normscope.commands`."""

import typer


def register(app: typer.Typer) -> None:
    """Add the commands of this package to an application."""
    from normscope_lab.cli.bench import bench
    from normscope_lab.cli.reproduce import reproduce

    app.command()(reproduce)
    app.add_typer(bench, name="bench")
