"""normscope keys"""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import (
    DEVICE,
    DTYPE,
    DeviceOption,
    DtypeOption,
    FolderArgument,
    ForceFlag,
    InputsOption,
    JsonFlag,
    LinesFlag,
    PictureOption,
    inputs_of,
    picture_of,
    progress,
    require_picture,
    require_writable,
    show,
    tell_written,
    text_of,
    write,
)
from normscope.errors import InputError


class At(StrEnum):
    input = "input"
    output = "output"
    heads = "heads"


def keys(
    model: FolderArgument = None,
    *,
    text: Annotated[
        str | None,
        typer.Option(help="Run the model on this UTF-8 file, or on 'sample'; this or --inputs must be given."),
    ] = None,
    lines: LinesFlag = False,
    inputs: InputsOption = None,
    at: Annotated[
        At,
        typer.Option(help="Keys are what goes into the norm before attention, what comes out, or those of each head."),
    ] = At.heads,
    max_keys: Annotated[int | None, typer.Option(help="Only the first so many keys of each sequence.", min=1)] = None,
    causal: Annotated[
        bool, typer.Option("--causal", metavar="", help="Each key at its own position, against the keys up to it.")
    ] = False,
    reachable: Annotated[
        bool,
        typer.Option("--reachable", metavar="", help="Only by queries that the head can make, at the last position."),
    ] = False,
    certificates: Annotated[
        Path | None, typer.Option("-o", "--certificates", help="Write all certificates here, for verify: .zip.")
    ] = None,
    json: JsonFlag = False,
    picture: PictureOption = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    force: ForceFlag = False,
) -> None:
    """Which keys of a text no query can ever select, and how near heads can come to equal attention."""
    from normscope.separation.archive import ENDINGS, save_archive

    require_picture(picture, force)
    require_writable(certificates, ENDINGS, force)
    if text is None and inputs is None:
        raise InputError("keys are those of a text or of inputs: give --text (a file, or 'sample') or --inputs FILE")
    batch = inputs_of(inputs, text, lines)
    words = text_of(text)
    from normscope.studies.keys import keys as study

    result = study(
        model,
        words,
        lines=lines,
        inputs=batch,
        at=at.value,
        max_keys=max_keys,
        causal=causal,
        reachable=reachable,
        keep=certificates is not None,
        device=device,
        dtype=dtype,
        progress=progress,
    )
    contents = picture_of(picture, result.plot)
    if certificates is not None:
        save_archive(result.answers, certificates, force=force)
    write(contents)
    show(result, json)
    tell_written([*contents, *([certificates] if certificates else [])])
    if not result.verified:
        print("normscope: a certificate did not hold when it was checked", file=sys.stderr)
        raise typer.Exit(1)
