"""normscope verify"""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import JsonFlag


def verify(
    file: Annotated[Path, typer.Argument(help="Certificates saved by normscope.save_certificates: an .npz file.")],
    json: JsonFlag = False,
) -> None:
    """Check saved certificates again, every one, without the solver that found them."""
    from normscope.separation.storage import verify_certificates

    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    holds, reason = verify_certificates(file)
    print(jsonlib.dumps({"schema_version": 1, "file": str(file), "holds": holds, "reason": reason}) if json else reason)
    if not holds:
        raise typer.Exit(1)
