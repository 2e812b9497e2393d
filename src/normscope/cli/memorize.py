"""normscope memorize"""

from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import command, progress


@command(picture=True)
def memorize(
    file: Annotated[Path, typer.Argument(help="Columns of numbers and one of labels: .csv, with a heading or not.")],
    label: Annotated[
        str | None, typer.Option(help="Column of labels, by its name or number from 1. Default: the last.")
    ] = None,
    method: Annotated[str, typer.Option(help="search: short networks; merge: the published construction.")] = "search",
    dtype: Annotated[str, typer.Option(help="Data type of the network: float64 or float32.")] = "float64",
    eps: Annotated[float, typer.Option(help="eps of the LayerNorms.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="CPU time of the search, before merging takes over.", min=0)] = 600.0,
) -> Any:
    """A network of LayerNorms of width 3 that gives every sample of a file its label, certified."""
    from normscope.studies.memorize import memorize_file

    return memorize_file(
        file, label, method=method, dtype=dtype, eps=eps, seed=seed, seconds=seconds, progress=progress
    )
