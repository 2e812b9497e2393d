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
            help="What `normscope keys`, `vocab`, `memorize` or `shatter` saved with -o, or a result saved in Python."
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
    from normscope.capacity import ln_net as network
    from normscope.capacity import shatter_state as shatter_networks
    from normscope.files import said_format
    from normscope.vocabulary import findings

    if _is_result(file):
        from normscope.verify_file import verify

        found = verify(file, against=samples, label=label, progress=progress)
        return found.holds, found.reason
    if file.suffix.lower() in network.ENDINGS:
        from normscope.studies.memorize import verify_memorized

        if samples is None:
            raise InputError(f"{file} is a network: name the file that it has memorised as well")
        return verify_memorized(file, samples, label)
    if samples is not None or label is not None:
        given = samples if label is None else f"--label {label}"
        raise InputError(f"{file} is no network ({network.ENDINGS[0]}), and needs no samples: got {given}")
    if not is_zipfile(file):
        raise InputError(f"{file} holds no certificates: they are .npz or {network.ENDINGS[0]} files")
    said = said_format(file)
    if said == findings.FORMAT:
        from normscope.studies.vocab import verify_vocab

        return verify_vocab(file, progress=progress)
    if said == shatter_networks.FORMAT:
        from normscope.capacity.shatter import verify_shattering

        return verify_shattering(file, progress=progress)
    raise InputError(f"{file} holds no certificates: its format is {said!r}")


def _is_result(file: Path) -> bool:
    """Whether a file is a result that was saved: its metadata stand at its beginning."""
    from normscope.results.result import FORMAT

    with file.open("rb") as opened:
        return FORMAT.encode() in opened.read(4096)
