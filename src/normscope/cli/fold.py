"""normscope fold"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import DEVICE, InputsOption, JsonFlag, inputs_of, printable, show, tell_written

BUNDLED = "bundled"


def fold(
    model: Annotated[
        Path, typer.Argument(help=f"A folder in Hugging Face format; '{BUNDLED}': the GPT that ships with the package.")
    ],
    out: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
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
    inputs: InputsOption = None,
    json: JsonFlag = False,
    device: Annotated[str, typer.Option(help="Where to run both models.")] = DEVICE,
    dtype: Annotated[
        str | None, typer.Option(help="In what to write the result: that of the weights, if not given.")
    ] = None,
) -> None:
    """Write a model that computes the same with norms that do less: a proof, and a reason for all that was kept."""
    batch, source = inputs_of(inputs), model
    if str(model) == BUNDLED and not model.exists():
        from normscope.data import demo_model

        source = demo_model()
    from normscope.rewrite.saved_model import NotTheSameError, fold_checkpoint

    try:
        result = fold_checkpoint(
            source, out, inputs=batch, rms=rms, untie=untie, device=device, dtype=dtype, name=str(model)
        )
    except NotTheSameError as error:
        show(error.folding, json)
        print(f"normscope: {printable(str(error))}; nothing was written", file=sys.stderr)
        raise typer.Exit(1) from None
    show(result, json)
    tell_written([out])
