"""normscope vocab"""

from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import (
    InputsOption,
    ModelArgument,
    TextOption,
    command,
    inputs_of,
    model_of,
    progress,
    text_of,
)


@command(saves=False, resumes=True)
def vocab(
    model: ModelArgument = None,
    text: TextOption = None,
    inputs: InputsOption = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Stop after this many seconds; tokens without a verdict by then are open.", min=0),
    ] = None,
    resume: Path | None = None,
) -> Any:
    """Tokens that can never be the argmax: for any hidden vector, and for outputs of the last norm."""
    from normscope.studies.vocab import vocab as ask

    batch = inputs_of(inputs, text)
    return ask(model_of(model), text=text_of(text), inputs=batch, seconds=seconds, resume=resume, progress=progress)
