"""normscope keys"""

from enum import StrEnum
from typing import Annotated, Any

import typer

from normscope.cli.options import (
    DEVICE,
    DTYPE,
    DeviceOption,
    DtypeOption,
    FolderArgument,
    InputsOption,
    LinesFlag,
    TextOption,
    command,
    inputs_of,
    model_of,
    progress,
    text_of,
)
from normscope.errors import InputError


class At(StrEnum):
    input = "input"
    output = "output"
    heads = "heads"


class Queries(StrEnum):
    any = "any"
    reachable = "reachable"


class Rivals(StrEnum):
    all = "all"
    causal = "causal"


@command(picture=True)
def keys(
    model: FolderArgument = None,
    *,
    text: TextOption = None,
    lines: LinesFlag = False,
    inputs: InputsOption = None,
    at: Annotated[
        At, typer.Option(help="The keys of each head, or what goes into or comes out of the norm before attention.")
    ] = At.heads,
    queries: Annotated[
        Queries, typer.Option(help="Any query, or only those that the head can produce at the last position.")
    ] = Queries.any,
    rivals: Annotated[
        Rivals, typer.Option(help="All keys of the sequence, or only those up to the key's own position.")
    ] = Rivals.all,
    max_keys: Annotated[int | None, typer.Option(help="Only the first N keys of each sequence.", min=1)] = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    keep: bool = False,
) -> Any:
    """Which keys of a text no query can ever select, and how near heads can come to equal attention."""
    if text is None and inputs is None:
        raise InputError("keys are those of a text or of inputs: give --text (a file, or 'sample') or --inputs FILE")
    batch, words = inputs_of(inputs, text, lines), text_of(text)
    from normscope.studies.keys import keys as ask

    return ask(
        model_of(model),
        text=words.splitlines() if lines and words is not None else words,
        inputs=batch,
        at=at.value,
        queries=queries.value,
        rivals=rivals.value,
        max_keys=max_keys,
        keep=keep,
        device=device,
        dtype=dtype,
        progress=progress,
    )
