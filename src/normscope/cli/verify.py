"""normscope verify"""

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.options import JsonFlag, progress


def verify(
    file: Annotated[
        Path,
        typer.Argument(help="What normscope.save_certificates, `normscope keys -o` or `normscope vocab -o` wrote."),
    ],
    json: JsonFlag = False,
) -> None:
    """Check saved certificates again, every one, without the solver that found them."""
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    holds, reason = _verified(file)
    print(jsonlib.dumps({"schema_version": 1, "file": str(file), "holds": holds, "reason": reason}) if json else reason)
    if not holds:
        raise typer.Exit(1)


def _verified(file: Path) -> tuple[bool, str]:
    from normscope.separation.archive import ENDINGS, verify_archive
    from normscope.separation.findings import is_findings_file
    from normscope.separation.storage import verify_certificates

    if file.suffix.lower() in ENDINGS:
        return verify_archive(file)
    if is_findings_file(file):
        from normscope.studies.vocab import verify_vocab

        return verify_vocab(file, progress=progress)
    return verify_certificates(file)
