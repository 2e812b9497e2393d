"""normscope ranges"""

from typing import Any

from normscope.cli.options import (
    FolderArgument,
    InputsOption,
    TextOption,
    command,
    inputs_of,
    model_of,
    progress,
    text_of,
)


@command()
def ranges(model: FolderArgument = None, text: TextOption = None, inputs: InputsOption = None) -> Any:
    """How far each output of a linear layer behind a norm can go, over all inputs, from the weights alone."""
    from normscope.studies.ranges import ranges as ask

    return ask(model_of(model), text=text_of(text), inputs=inputs_of(inputs), progress=progress)
