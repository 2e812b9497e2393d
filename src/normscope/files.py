"""Files and folders are written atomically, and never replace others unless asked to."""

import gzip
import io
import math
import os
import shutil
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.checks import first_line, quoted, require_memory
from normscope.errors import InputError

try:
    import fcntl
except ImportError:  # not on Windows: no locks there, so leftovers of killed processes are not removed
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

PICTURES = (".pdf", ".png", ".svg")
SARIF = (".sarif", ".json")
TABLES = (".csv", ".parquet")
PAGES = (".html", ".htm")
UNFINISHED = ".normscope-"  # prefix of files that are being written
FOLDER = f"{UNFINISHED}folder-"  # and of folders;
LOCK = ".lock"  # each has a file beside it with this suffix, locked while its process runs,
MARK = b"normscope: the folder beside this file is being written\n"  # and with this content
ENCRYPTED = 1  # flag bit of a file in a .zip archive
PIECE = 2**20  # bytes unpacked at a time
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")  # allowed dtypes of arrays in files


def require_writable(path: Path, *, force: bool, endings: tuple[str, ...]) -> None:
    """Refuse a path that could not be written later, before any work is done."""
    if path.suffix.lower() not in endings:
        raise InputError(
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


def files_with_times(path: Path) -> list[list[Any]]:
    """A file, or all files of a folder, each with its size and time of change: other ones if something was changed."""
    found = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    return [[str(each.absolute()), each.stat().st_size, each.stat().st_mtime_ns] for each in found]


def drawn(figure: "Figure", path: Path) -> bytes:
    """A figure as a file, in the format of the path's ending."""
    file = io.BytesIO()
    figure.savefig(file, format=path.suffix[1:].lower())
    return file.getvalue()


def write_atomically(content: bytes, path: Path) -> None:
    """Write a file atomically: to a temporary file first, which then replaces the path."""
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
    except OSError as error:  # its message would name the temporary file
        raise OSError(f"{path} can't be written: {error.strerror}") from None


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Write a folder atomically: it is renamed to `target` when complete, and removed on failure.

    A killed process leaves it behind under a temporary name; the next call for the same parent folder removes it.

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
    except OSError as error:  # its message would name the temporary folder
        raise OSError(f"{target} can't be written: {error.strerror or first_line(error)}") from None


def _locked_file(place: Path) -> tuple[int, Path]:
    """A new lock file for a folder to be written: locked until the process closes it or ends in any way."""
    while True:
        handle, name = tempfile.mkstemp(dir=place, prefix=FOLDER, suffix=LOCK)
        if _lock(handle) is not False and os.path.exists(name):  # else another process took it for a leftover
            os.write(handle, MARK)
            return handle, Path(name)
        os.close(handle)


def _remove_unfinished(place: Path) -> None:
    """Remove unfinished folders of killed processes, but not those of running ones."""
    for lock in place.glob(f"{FOLDER}*{LOCK}"):
        try:
            handle = os.open(lock, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # a link, another user's, or already removed
            continue
        try:
            ours = os.read(handle, len(MARK) + 1) in (MARK, b"")  # empty: killed right after it was created
            if ours and _lock(handle):
                folder = lock.with_suffix("")
                shutil.rmtree(folder, ignore_errors=True)  # rmtree does not follow links
                if not folder.exists():
                    lock.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock a file until it is closed; returns whether that worked, None where files can't be locked."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def pyarrow_library() -> tuple[Any, Any]:
    """pyarrow and pyarrow.parquet; an error that says how to install them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("a .parquet file needs pyarrow: pip install 'normscope[tables]'") from None
    return pyarrow, parquet


def is_archive(file: str | os.PathLike[str] | io.BytesIO) -> bool:
    """Whether a file has the end record of a .zip archive."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return False


@contextmanager
def opened_archive(file: Path | io.BytesIO, name: str) -> Iterator[zipfile.ZipFile]:
    """Open a .zip or .npz file; any error in it, or while reading from it inside the `with`, becomes an InputError."""
    kind = Path(name).suffix.lower() or ".zip"
    if not is_archive(file):
        raise InputError(f"{name} is not a readable {kind} file: it is not an archive, or is truncated")
    try:
        with zipfile.ZipFile(file) as archive:
            [(name_of_part, times)] = Counter(archive.namelist()).most_common(1) or [("", 0)]
            if times > 1:  # readers would disagree on which of them to use
                raise InputError(f"names of its parts must be unique, got {quoted(name_of_part)} {times} times")
            yield archive
    except (OSError, ValueError, EOFError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{name} is not a readable {kind} file: {first_line(error)}") from None


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """The content of one file in an archive, never more than its stated size."""
    if member.flag_bits & ENCRYPTED:
        raise InputError(f"{quoted(member.filename)} in it is encrypted: unpack it, and pack it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{quoted(member.filename)} in it must be stored or compressed by deflate, got another method")
    with archive.open(member) as file:
        content = file.read(member.file_size)  # bounded: a wrong size would otherwise show only after unpacking
    if len(content) != member.file_size:
        raise InputError(f"{quoted(member.filename)} in it should have {member.file_size} bytes, got {len(content)}")
    return content


def unpacked(content: bytes, name: str) -> bytes:
    """The content of a .gz file; InputError if it can't be unpacked or is larger than allowed."""
    pieces, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while piece := file.read(PIECE):
                pieces.append(piece)
                size += len(piece)
                require_memory(size, len(content), name)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{name} is not a readable .gz file, or is truncated: {first_line(error)}") from None
    return b"".join(pieces)


def npz_arrays(content: bytes, name: str, only: Container[str] | None = None) -> "dict[str, NDArray[Any]]":
    """The arrays of an .npz file, or only some. Nothing in it is executed; InputError if it is invalid.

    Sizes are checked before memory is allocated: of the archive, and of each array against its bytes.
    """
    with opened_archive(io.BytesIO(content), name) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        wanted = {title: member for title, member in members.items() if only is None or title in only}
        require_memory(sum(member.file_size for member in wanted.values()), len(content), "what it holds")
        return {title: _array(read_member(archive, member), title) for title, member in wanted.items()}


def _array(content: bytes, name: str) -> "NDArray[Any]":
    """One array in .npy format, of numbers, booleans or text, in the byte order of this machine."""
    import numpy as np

    file = io.BytesIO(content)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd literals in headers, which are refused anyway
            shape, by_columns, dtype = headers[np.lib.format.read_magic(file)](file)
    except Exception as error:  # a damaged header can fail anywhere: KeyError, SyntaxError, TypeError, …
        raise InputError(f"array {quoted(name)} has no valid numpy header ({type(error).__name__})") from None
    if dtype.str[1:] not in NUMBERS and dtype.kind not in "US":
        raise InputError(f"array {quoted(name)} must hold numbers or text, got dtype {quoted(dtype)}")
    left = len(content) - file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left or not dtype.itemsize:
        raise InputError(
            f"array {quoted(name)} of shape {quoted(shape)} and dtype {dtype} does not fit the {left} bytes it has"
        )
    array = np.frombuffer(content, dtype, offset=file.tell())
    array = array.astype(dtype.newbyteorder("="))
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise InputError(f"array {quoted(name)} must hold booleans, bytes 0 and 1, got others")
    if dtype.kind == "U" and array.view(np.uint32).max(initial=0) > sys.maxunicode:
        raise InputError(f"array {quoted(name)} must hold text, got values that are not characters")
    return np.asarray(array.reshape(shape, order="F" if by_columns else "C"), order="C")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
