"""normscope inspect"""

from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import (
    DEVICE,
    DTYPE,
    DeviceOption,
    DtypeOption,
    ForceFlag,
    InputsOption,
    JsonFlag,
    LinesFlag,
    ModelArgument,
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


def inspect(
    model: ModelArgument = None,
    json: JsonFlag = False,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page here.")] = None,
    picture: PictureOption = None,
    text: Annotated[
        str | None,
        typer.Option(help="Run the model, a folder, on this UTF-8 file, or on 'sample', and say where inputs land."),
    ] = None,
    lines: LinesFlag = False,
    inputs: InputsOption = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
    force: ForceFlag = False,
) -> None:
    """What every norm of a model really is: its kind, the ellipsoid that its outputs fill, where it stands."""
    from normscope.files import PAGES

    require_writable(html, PAGES, force)
    require_picture(picture, force)
    if text is None and inputs is None and (device, dtype) != (DEVICE, DTYPE):
        raise InputError("--device and --dtype need --text or --inputs: without them the model is not run")
    batch = inputs_of(inputs, text, lines)
    words = text_of(text)
    from normscope.report.pictures import geometry_picture
    from normscope.studies.inspect import inspect as study

    result = study(model, text=words, lines=lines, inputs=batch, device=device, dtype=dtype, progress=progress)
    contents: dict[Path, bytes] = {}
    if html:
        from normscope.report.page import render

        contents[html] = render(result).encode()
    contents |= picture_of(picture, lambda: geometry_picture(result))
    write(contents)
    show(result, json)
    tell_written(contents)
