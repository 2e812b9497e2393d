"""normscope inspect"""

from typing import Any

from normscope.cli.options import (
    DEVICE,
    DTYPE,
    DeviceOption,
    DtypeOption,
    InputsOption,
    LinesFlag,
    ModelArgument,
    TextOption,
    command,
    inputs_of,
    model_of,
    progress,
    text_of,
)
from normscope.errors import InputError


@command(page=True, picture=True)
def inspect(
    model: ModelArgument = None,
    text: TextOption = None,
    lines: LinesFlag = False,
    inputs: InputsOption = None,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
) -> Any:
    """Every norm of a model: its kind, the ellipsoid of its outputs, and with a text where real inputs land."""
    if text is None and inputs is None and (device, dtype) != (DEVICE, DTYPE):
        raise InputError("--device and --dtype need --text or --inputs: without them the model is not run")
    batch, words = inputs_of(inputs, text, lines), text_of(text)
    from normscope.studies.inspect import inspect as ask

    return ask(
        model_of(model),
        text=words.splitlines() if lines and words is not None else words,
        inputs=batch,
        device=device,
        dtype=dtype,
        progress=progress,
    )
