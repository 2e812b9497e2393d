"""Certificates of many sets of keys in one file: a .zip of .npz files, each as `save_certificates` writes it."""

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from normscope.checks import require_memory, shortened
from normscope.files import opened_archive, read_member, require_writable, write_whole
from normscope.separation.selectable import Selectable
from normscope.separation.storage import NotProvenError, Proven, certificate_bytes, proven_in

ENDINGS = (".zip",)


def save_archive(answers: Mapping[str, Selectable], path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write all answers, each under its name, to a file ending in .zip; an existing one is replaced only by force."""
    target = Path(path)
    require_writable(target, force=force, endings=ENDINGS)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, answer in answers.items():  # a ZipInfo is dated 1980: equal answers give equal files
            archive.writestr(zipfile.ZipInfo(f"{name}.npz"), certificate_bytes(answer))
    write_whole(file.getvalue(), target)


def verify_archive(path: str | os.PathLike[str]) -> tuple[bool, str]:
    """Whether every file of an archive proves what it says; and why, or which one does not."""
    try:
        with opened_archive(Path(path), str(path)) as archive:
            members, parts = archive.infolist(), []
            for member in members:
                name = shortened(member.filename, 80)
                require_memory(member.file_size, member.compress_size, name)
                try:
                    parts.append(proven_in(read_member(archive, member), name)[0])
                except NotProvenError as error:
                    return False, f"{name}: {str(error).removeprefix(f'{name} ')}"
    except ValueError as error:
        return False, str(error)
    if not members:
        return False, f"{path} holds no certificates"
    total = Proven(*map(sum, zip(*parts, strict=True)))
    return True, f"{len(members):,} sets of keys, every certificate holds: {total.in_words()}"
