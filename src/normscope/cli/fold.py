"""normscope fold"""

from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import (
    DEVICE,
    DeviceOption,
    FolderArgument,
    InputsOption,
    TextOption,
    command,
    inputs_of,
    model_of,
    progress,
    tell_written,
    text_of,
)


@command(saves=False)
def fold(
    model: FolderArgument = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            help="Write the folded model to this folder, which must not exist. Without it nothing is written.",
        ),
    ] = None,
    rms: Annotated[
        bool,
        typer.Option("--rms", metavar="", help="Put RMSNorm modules in place of norms, and write an exported program."),
    ] = False,
    untie: Annotated[
        bool,
        typer.Option(
            "--untie", metavar="", help="Give a head that shares its matrix with a table a copy, and fold that too."
        ),
    ] = False,
    text: TextOption = None,
    inputs: InputsOption = None,
    device: DeviceOption = DEVICE,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="Data type to store the result in: float32, float64, bfloat16 or float16. Default: as the weights."
        ),
    ] = None,
) -> Any:
    """Fold norms into the weights around them: the same function, certified, and a reason for every norm kept."""
    from normscope.rewrite.fold import fold as ask

    text = text_of(text)
    result = ask(
        model_of(model),
        text=text,
        inputs=inputs_of(inputs, text),
        out=out,
        rms=rms,
        untie=untie,
        device=device,
        dtype=dtype,
        progress=progress,
    )
    tell_written([] if out is None else [out])
    return result
