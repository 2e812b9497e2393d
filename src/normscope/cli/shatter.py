"""normscope shatter"""

from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import JsonFlag, progress, show, tell_written


def shatter(
    depth: Annotated[int, typer.Argument(help="The number of LayerNorms, L.", min=1)],
    points: Annotated[
        int | None,
        typer.Option(help="How many points, up to 2^L + 1 and 20; without it: 2^L + 1, up to 17.", min=2),
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other networks.", min=0)] = 0,
    state: Annotated[
        Path | None,
        typer.Option("-o", "--state", help="Keep networks here, and go on from there if it exists: .npz."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Points and, for every labelling of them, a certified network of L LayerNorms of width 3 that realises it."""
    from normscope.capacity.shatter import shatter as study

    result = study(depth, points, seed=seed, state=state, progress=progress)
    show(result, json)
    tell_written([] if state is None else [state])
