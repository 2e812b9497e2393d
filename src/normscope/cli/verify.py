"""normscope verify"""

import json as jsonlib
from pathlib import Path
from typing import Annotated
from zipfile import is_zipfile

import typer

from normscope.cli.options import JsonFlag, progress
from normscope.errors import InputError

LONGEST = 500  # characters of what is said


def verify(
    file: Annotated[
        Path,
        typer.Argument(
            help="What `normscope keys`, `vocab`, `memorize` or `shatter` kept with -o, or normscope.save_certificates."
        ),
    ],
    samples: Annotated[
        Path | None, typer.Argument(help="For a network of `normscope memorize`: the file that it has memorised.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The column of labels there, as for `normscope memorize`.")] = None,
    json: JsonFlag = False,
) -> None:
    """Check saved certificates again, every one, and say what they prove and how many verdicts hang on rounding."""
    if file.is_dir():
        raise IsADirectoryError(f"{file} is a folder, and must be a file")
    if not file.is_file():
        raise FileNotFoundError(f"{file}: no such file")
    holds, reason = _verified(file, samples, label)
    reason = reason[:LONGEST]  # names of columns and files may be of any length
    print(jsonlib.dumps({"schema_version": 1, "file": str(file), "holds": holds, "reason": reason}) if json else reason)
    if not holds:
        raise typer.Exit(1)


def _verified(file: Path, samples: Path | None, label: str | None) -> tuple[bool, str]:
    from normscope.results.result import ENDINGS
    from normscope.separation import archive, storage

    if file.suffix.lower() in ENDINGS:
        from normscope.verify_file import verify as verify_result

        found = verify_result(file, against=samples, label=label, progress=progress)
        return found.holds, found.reason
    if samples is not None or label is not None:
        given = samples if label is None else f"--label {label}"
        raise InputError(f"{file} is no network ({ENDINGS[0]}), and needs no samples: got {given}")
    if not is_zipfile(file):
        raise InputError(f"{file} holds no certificates: they are .npz, .zip or {ENDINGS[0]} files")
    if file.suffix.lower() in archive.ENDINGS:
        return archive.verify_archive(file)
    return storage.verify_certificates(file)
