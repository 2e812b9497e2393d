"""normscope ranges"""

import sys

import typer

from normscope.cli.options import FolderArgument, InputsOption, JsonFlag, inputs_of, show


def ranges(model: FolderArgument = None, inputs: InputsOption = None, json: JsonFlag = False) -> None:
    """The exact output range of every linear layer that reads a norm, over all inputs, from weights alone."""
    batch = inputs_of(inputs)
    from normscope.studies.ranges import ranges as study

    result = study(model, inputs=batch)
    show(result, json)
    if not result.verified:
        print("normscope: an input that should approach its bound did not; see the gaps", file=sys.stderr)
        raise typer.Exit(1)
