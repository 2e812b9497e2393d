"""normscope memorize"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.options import (
    ForceFlag,
    JsonFlag,
    PictureOption,
    picture_of,
    progress,
    require_picture,
    require_writable,
    show,
    tell_written,
    write,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def memorize(
    file: Annotated[Path, typer.Argument(help="Columns of numbers and one of labels: .csv, with a heading or not.")],
    label: Annotated[
        str | None, typer.Option(help="The column of labels, by its name or number from 1; without it: the last.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Keep the network here: .safetensors.")] = None,
    method: Annotated[str, typer.Option(help="fold: short networks; merge: as published.")] = "fold",
    dtype: Annotated[str, typer.Option(help="Of the network: float64 or float32.")] = "float64",
    eps: Annotated[float, typer.Option(help="Of its LayerNorms.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Another seed, another network.", min=0)] = 0,
    seconds: Annotated[float, typer.Option(help="CPU time for folding, before merging takes over.", min=0)] = 600.0,
    json: JsonFlag = False,
    picture: PictureOption = None,
    force: ForceFlag = False,
) -> None:
    """A network of LayerNorms of width 3 that gives every sample of a file its label, certified."""
    from normscope.studies.memorize import ENDINGS
    from normscope.studies.memorize import memorize as study

    require_picture(picture, force)
    require_writable(output, ENDINGS, force)
    result = study(file, label, method=method, dtype=dtype, eps=eps, seed=seed, seconds=seconds, progress=progress)

    def draw() -> "Figure":
        from normscope.report.journey import journey_picture

        return journey_picture(result)

    contents = picture_of(picture, draw)
    if output:
        contents[output] = result.network.to_bytes()
    write(contents)
    show(result, json)
    tell_written(contents)
