"""Files that appear whole or not at all, and never in place of another without being asked."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE_FORMATS = (".pdf", ".png", ".svg")


def require_writable(path: Path, *, force: bool, formats: tuple[str, ...]) -> None:
    """Refuse a path that could not be written later, before any work is done."""
    if path.suffix.lower() not in formats:
        raise ValueError(f"{path} must end in {' or '.join(formats)}, got {path.suffix or 'no ending'!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another name, or give --force to replace it")


def write_picture(figure: "Figure", path: Path) -> None:
    """Save a figure in the format of the path's ending."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            figure.savefig(file, format=path.suffix[1:].lower())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
