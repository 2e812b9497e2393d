"""normscope shatter"""

from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import command, progress


@command(resumes=True, saves=False)
def shatter(
    depth: Annotated[int, typer.Argument(help="Number of LayerNorms, L.", min=1)],
    points: Annotated[
        int | None,
        typer.Option(help="Number of points, up to 2^L + 1 and 20. Default: 2^L + 1, up to 17.", min=2),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    resume: Path | None = None,
) -> Any:
    """Points and, for every labelling of them, a certified network of L LayerNorms of width 3 that realises it."""
    from normscope.capacity.labellings import shatter as ask

    return ask(depth, points, seed=seed, resume=resume, progress=progress)
