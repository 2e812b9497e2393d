"""Files that appear whole or not at all, and never in place of another without being asked."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".pdf", ".png", ".svg")
PAGES = (".html", ".htm")


def require_writable(path: Path, *, force: bool, endings: tuple[str, ...]) -> None:
    """Refuse a path that could not be written later, before any work is done."""
    if path.suffix.lower() not in endings:
        raise ValueError(f"{path} must end in {' or '.join(endings)}, got {path.suffix or 'no ending'!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first")
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists: choose another name, or give --force to replace it")


def write_page(page: str, path: Path) -> None:
    """Save a page of HTML as UTF-8."""
    with _appearing_whole(path) as file:
        file.write(page.encode())


def write_picture(figure: "Figure", path: Path) -> None:
    """Save a figure in the format of the path's ending."""
    with _appearing_whole(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())


@contextmanager
def _appearing_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to that takes its place under the path only when all of it is there."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
