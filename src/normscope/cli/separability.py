"""normscope separability"""

from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import DEVICE, DTYPE, DeviceOption, DtypeOption, FolderArgument, JsonFlag, progress, show


def separability(
    model: FolderArgument = None,
    *,
    texts: Annotated[Path, typer.Option(help="A UTF-8 file: in each line a text, a tab and its label.")],
    json: JsonFlag = False,
    device: DeviceOption = DEVICE,
    dtype: DtypeOption = DTYPE,
) -> None:
    """How well labelled texts come apart before and after every norm: SSR, and the least that linear maps reach."""
    from normscope.models.labelled_texts import read_labelled
    from normscope.studies.separability import separability as study

    inputs, labels = read_labelled(texts)
    show(study(model, inputs, labels, device=device, dtype=dtype, progress=progress), json)
