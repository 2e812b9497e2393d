"""The command line: arguments and exit codes, nothing else.

0: done; 1: a check that was run did not hold; 2: bad input, said in one line.
"""

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import normscope

app = typer.Typer(
    help="What the normalization layers of a neural network really do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure normscope against what you would use instead.", no_args_is_help=True)
app.add_typer(bench, name="bench")

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
PictureOption = Annotated[Path | None, typer.Option("--picture", help="Write a picture here: .png, .svg or .pdf.")]
ForceFlag = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@app.command()
def inspect(json: JsonFlag = False, picture: PictureOption = None, force: ForceFlag = False) -> None:
    """The geometry of the norms that ship with the package: kind, dimension, semi-axes."""
    from normscope.data import bundled_norms
    from normscope.studies.inspect import inspect as study

    _require_writable(picture, force)
    norms = bundled_norms()
    _show(study(norms, model="the bundled gains"), json)
    if picture:
        from normscope.report.pictures import geometry_picture

        _write(geometry_picture(norms, chosen="four_channels"), picture)


@bench.command()
def axes(
    json: JsonFlag = False,
    picture: PictureOption = None,
    force: ForceFlag = False,
    size: Annotated[list[int] | None, typer.Option(help="N to compare at; may be repeated.", min=2)] = None,
) -> None:
    """Semi-axes and axes of a LayerNorm, against torch.linalg.eigvalsh and eigh (about ten minutes)."""
    from normscope.benchmarks.axes import SIZES, run

    _require_writable(picture, force)
    result = run(size or SIZES)
    _show(result, json)
    if picture:
        from normscope.report.pictures import growth_picture

        _write(growth_picture(result), picture)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        print(normscope.__version__)
        raise typer.Exit


def main() -> None:
    """Run the application; what a user can put right becomes one line and exit code 2."""
    try:
        app(prog_name="normscope")
    except (ValueError, OSError) as error:
        print(f"normscope: {error}", file=sys.stderr)
        sys.exit(2)


def _show(result: Any, json: bool) -> None:
    if json:
        print(jsonlib.dumps(result.to_dict(), indent=2, allow_nan=False))
        return
    from rich.console import Console

    from normscope.report.tables import tables

    console = Console(width=None if sys.stdout.isatty() else 100)
    for table in tables(result):
        console.print(table)


def _require_writable(picture: Path | None, force: bool) -> None:
    if picture:
        from normscope.report.files import PICTURE_FORMATS, require_writable

        require_writable(picture, force=force, formats=PICTURE_FORMATS)


def _write(figure: Any, path: Path) -> None:
    from normscope.report.files import write_picture

    write_picture(figure, path)
    print(f"wrote {path}", file=sys.stderr)
