"""Files that appear whole or not at all, and never in place of another without being asked."""

import io
import os
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.checks import first_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

PICTURES = (".pdf", ".png", ".svg")
PAGES = (".html", ".htm")
UNFINISHED = ".normscope-"  # how the names of files begin that are being written


def require_writable(path: Path, *, force: bool, endings: tuple[str, ...]) -> None:
    """Refuse a path that could not be written later, before any work is done."""
    if path.suffix.lower() not in endings:
        raise ValueError(
            f"{path} must end in {' or '.join(endings)}, got {repr(path.suffix) if path.suffix else 'no ending'}"
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be the name of a file, but it is a folder: choose another name")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another name, or give --force to replace it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: the folder {path.parent} is not writable")


def drawn(figure: "Figure", path: Path) -> bytes:
    """A figure as a file, in the format of the path's ending."""
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix[1:].lower())
    return file.getvalue()


def write_whole(content: bytes, path: Path) -> None:
    """Write a file that takes its place under the path only when all of it is there."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:  # it would name the temporary file, which nobody knows
        raise OSError(f"{path} can't be written: {error.strerror}") from None


def npz_arrays(content: bytes, name: str) -> "dict[str, NDArray[Any]]":
    """The arrays of an .npz file of that name. Nothing in it is executed; ValueError if it is none."""
    import numpy as np

    file = io.BytesIO(content)
    if not zipfile.is_zipfile(file):  # numpy would take it for a pickle, and advise to load it as one
        raise ValueError(f"{name} is not a readable .npz file: it is no archive, or was cut off")
    try:
        with np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name} is not a readable .npz file: {first_line(error)}") from None


def said_format(path: str | os.PathLike[str]) -> str:
    """What an .npz file says that it holds, under the name `format`; nothing if it does not, or is none."""
    try:
        return str(npz_arrays(Path(path).read_bytes(), str(path)).get("format", ""))
    except (OSError, ValueError):
        return ""


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
