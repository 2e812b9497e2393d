"""normscope verify"""

from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.options import command, progress


@command(saves=False)
def verify(
    file: Annotated[
        Path,
        typer.Argument(
            help="What `keys`, `vocab`, `memorize` or `shatter` saved with -o, or a result saved in Python."
        ),
    ],
    samples: Annotated[
        Path | None, typer.Argument(help="For a network of `normscope memorize`: the file that it has memorised.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels there, as for `normscope memorize`.")] = None,
) -> Any:
    """Check a saved result again, every certificate in it, without solving anything, and say what it proves."""
    from normscope.verify_file import verify as check

    return check(file, against=samples, label=label, progress=progress)
