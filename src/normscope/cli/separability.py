"""normscope separability"""

from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import DEVICE, DTYPE, DeviceOption, DtypeOption, FolderArgument, command, model_of, progress


@command()
def separability(
    model: FolderArgument = None,
    *,
    text: Annotated[Path, typer.Option(help="A UTF-8 file: in each line a text, a tab and its label.")],
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
) -> Any:
    """How well labelled texts separate before and after every norm: SSR, and the least that linear maps reach."""
    from normscope.models.labelled_texts import read_labelled
    from normscope.studies.separability import separability as ask

    texts, labels = read_labelled(text)
    return ask(model_of(model), text=texts, labels=labels, device=device, dtype=dtype, progress=progress)
