"""normscope verify"""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import JsonFlag


def verify(
    file: Annotated[
        Path, typer.Argument(help="An .npz file of normscope.save_certificates, or a .zip of `normscope keys -o`.")
    ],
    json: JsonFlag = False,
) -> None:
    """Check saved certificates again, every one, without the solver that found them."""
    from normscope.separation.archive import ENDINGS, verify_archive
    from normscope.separation.storage import verify_certificates

    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    holds, reason = verify_archive(file) if file.suffix.lower() in ENDINGS else verify_certificates(file)
    print(jsonlib.dumps({"schema_version": 1, "file": str(file), "holds": holds, "reason": reason}) if json else reason)
    if not holds:
        raise typer.Exit(1)
