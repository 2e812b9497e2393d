"""Files and folders that appear whole or not at all, and never in place of another without being asked."""

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.checks import first_line

try:
    import fcntl
except ImportError:  # not on Windows: nothing is locked there, so nothing of a killed process is removed
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

PICTURES = (".pdf", ".png", ".svg")
PAGES = (".html", ".htm")
UNFINISHED = ".normscope-"  # how the names of files begin that are being written
FOLDER = f"{UNFINISHED}folder-"  # and those of folders,
LOCK = ".lock"  # each with a file beside it that ends so, locked as long as its process runs,
MARK = b"normscope: the folder beside this file is being written\n"  # and says so


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


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder that gets its name when all in it is there, and is gone if that fails.

    A process that is killed leaves it behind under a temporary name; the next folder in the same place removes it.

    >>> with tempfile.TemporaryDirectory() as place:
    ...     with new_folder(Path(place) / "new") as folder:
    ...         _ = (folder / "text").write_text("whole")
    ...     os.listdir(place), os.listdir(Path(place) / "new")
    (['new'], ['text'])
    """
    try:
        _remove_unfinished(target.parent)
        handle, lock = _locked_file(target.parent)
        folder = lock.with_suffix("")
        try:
            folder.mkdir()
            yield folder
            folder.rename(target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)
            os.close(handle)
    except OSError as error:  # it would name the temporary folder, which nobody knows
        raise OSError(f"{target} can't be written: {error.strerror or first_line(error)}") from None


def _locked_file(place: Path) -> tuple[int, Path]:
    """A new file beside which a folder can be written: locked until the process closes it or ends, however it ends."""
    while True:
        handle, name = tempfile.mkstemp(dir=place, prefix=FOLDER, suffix=LOCK)
        if _lock(handle) is not False and os.path.exists(name):  # else another process took it for a leftover
            os.write(handle, MARK)
            return handle, Path(name)
        os.close(handle)


def _remove_unfinished(place: Path) -> None:
    """Remove the folders that killed processes were writing here: not those of processes that still run."""
    for lock in place.glob(f"{FOLDER}*{LOCK}"):
        try:
            handle = os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # a link, of another user, or gone by now
            continue
        try:
            ours = os.read(handle, len(MARK) + 1) in (MARK, b"")  # empty: killed as soon as it began
            if ours and _lock(handle):
                folder = lock.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)  # which does not follow links
                if not folder.exists():
                    lock.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock a file until it is closed: whether that worked, None where files can't be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


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
