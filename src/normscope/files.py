"""Files and folders that appear whole or not at all, and never in place of another without being asked."""

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
ENCRYPTED = 1  # a flag of files in a .zip file
PIECE = 2**20  # bytes that are unpacked at a time
NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")  # that arrays in files may have


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


def is_archive(file: str | os.PathLike[str] | io.BytesIO) -> bool:
    """Whether a file ends as a .zip file does."""
    try:
        return zipfile.is_zipfile(file)
    except zipfile.BadZipFile:
        return False


@contextmanager
def opened_archive(file: Path | io.BytesIO, name: str) -> Iterator[zipfile.ZipFile]:
    """A .zip or .npz file of that name; whatever is wrong with it, or with what is read of it inside, is ValueError."""
    kind = Path(name).suffix.lower() or ".zip"
    if not is_archive(file):
        raise InputError(f"{name} is not a readable {kind} file: it is no archive, or was cut off")
    try:
        with zipfile.ZipFile(file) as archive:
            [(name_of_part, times)] = Counter(archive.namelist()).most_common(1) or [("", 0)]
            if times > 1:  # which of them is meant would depend on who reads it
                raise InputError(f"its parts must have names of their own, got {times} times {quoted(name_of_part)}")
            yield archive
    except (OSError, ValueError, EOFError, RuntimeError, struct.error, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"{name} is not a readable {kind} file: {first_line(error)}") from None


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """What one file in an archive holds, which is never more than the archive says."""
    if member.flag_bits & ENCRYPTED:
        raise InputError(f"{quoted(member.filename)} in it is encrypted: unpack it, and pack it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InputError(f"{quoted(member.filename)} in it is compressed in another way than by deflate")
    with archive.open(member) as file:
        content = file.read(member.file_size)  # without a size, a false one would be found out after it is unpacked
    if len(content) != member.file_size:
        raise InputError(f"{quoted(member.filename)} in it should have {member.file_size} bytes, got {len(content)}")
    return content


def unpacked(content: bytes, name: str) -> bytes:
    """What a .gz file of that name holds; ValueError if it can't be unpacked, or is larger than is allowed."""
    pieces, size = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            while piece := file.read(PIECE):
                pieces.append(piece)
                size += len(piece)
                require_memory(size, len(content), name)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{name} is not a readable .gz file, or was not copied whole: {first_line(error)}") from None
    return b"".join(pieces)


def npz_arrays(content: bytes, name: str, only: Container[str] | None = None) -> "dict[str, NDArray[Any]]":
    """The arrays of an .npz file of that name, or only some. Nothing in it is executed; ValueError if it is none.

    Sizes are checked before memory is taken: of the archive, and of each array against its bytes.
    """
    with opened_archive(io.BytesIO(content), name) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        wanted = {title: member for title, member in members.items() if only is None or title in only}
        require_memory(sum(member.file_size for member in wanted.values()), len(content), "what it holds")
        return {title: _array(read_member(archive, member), title) for title, member in wanted.items()}


def _array(content: bytes, name: str) -> "NDArray[Any]":
    """One array as .npy files have it, of numbers, truths or text, in the byte order of this machine."""
    import numpy as np

    file = io.BytesIO(content)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd literals in headers that are then refused
            shape, by_columns, dtype = headers[np.lib.format.read_magic(file)](file)
    except Exception as error:  # a damaged header can fail anywhere: KeyError, SyntaxError, TypeError, …
        raise InputError(f"array {quoted(name)} has no header of numpy's ({type(error).__name__})") from None
    if dtype.str[1:] not in NUMBERS and dtype.kind not in "US":
        raise InputError(f"array {quoted(name)} must be of numbers or text, got dtype {quoted(dtype)}")
    left = len(content) - file.tell()
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != left or not dtype.itemsize:
        raise InputError(
            f"array {quoted(name)} of shape {quoted(shape)} and dtype {dtype} does not fit the {left} bytes it has"
        )
    array = np.frombuffer(content, dtype, offset=file.tell())
    array = array.astype(dtype.newbyteorder("="))
    if dtype.kind == "b" and array.view(np.uint8).max(initial=0) > 1:
        raise InputError(f"array {quoted(name)} must be of truths, bytes 0 and 1, got others")
    if dtype.kind == "U" and array.view(np.uint32).max(initial=0) > sys.maxunicode:
        raise InputError(f"array {quoted(name)} must be of text, got numbers that are no characters")
    return np.asarray(array.reshape(shape, order="F" if by_columns else "C"), order="C")


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
