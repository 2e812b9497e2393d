"""normscope vocab"""

from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import JsonFlag, ModelArgument, progress, show, tell_written


def vocab(
    model: ModelArgument = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Stop after so many seconds; tokens that are not settled are reported as open.", min=0),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            "-o", "--state", help="Keep certificates here, for verify, and go on from there if it exists: .npz."
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Tokens that can never be the argmax: for any hidden vector, and for those that the last norm can write."""
    from normscope.studies.vocab import vocab as study

    result = study(model, budget=budget, state=state, progress=progress)
    show(result, json)
    tell_written([] if state is None else [state])
