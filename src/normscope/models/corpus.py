"""Texts in files, read when they are needed, so that memory does not grow with them.

a file             one text, or with `lines` a text in each line
.jsonl, .parquet   a text in each row, in the column that is named
a folder           all files in it that end in .txt, .md, .jsonl or .parquet, in the order of their names
a pattern          all files that fit it, such as texts/**/*.jsonl
"""

import glob
import json
import shlex
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.checks import first_line, quoted
from normscope.errors import InputError
from normscope.files import pyarrow_library

ROWS = JSONL, PARQUET = ".jsonl", ".parquet"
ENDINGS = (".txt", ".md", *ROWS)  # of files in a folder
COLUMN = "text"
BLOCK = 1 << 16  # characters that are tokenized at a time
ROWS_AT_ONCE = 64  # of a .parquet file


@dataclass(frozen=True)
class Corpus:
    """Where texts are.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "a.jsonl").write_text('{"text": "To be"}\\n{"text": "or not"}')
    ...     _ = (Path(folder) / "b.txt").write_text("to be")
    ...     [text.head() for text in Corpus(Path(folder)).texts()]
    ['To be', 'or not', 'to be']
    """

    path: Path
    column: str = COLUMN
    lines: bool = False

    def files(self) -> list[Path]:
        """The files with texts; an error if there are none."""
        if self.path.is_dir():
            found = [path for path in self.path.rglob("*") if path.suffix.lower() in ENDINGS and path.is_file()]
            if not found:
                raise InputError(f"{self.path} must have files that end in {', '.join(ENDINGS)}, and has none")
            return sorted(found)
        if glob.has_magic(str(self.path)) and not self.path.exists():
            fitting = sorted(glob.glob(str(self.path), recursive=True))
            if not (found := [Path(each) for each in fitting if Path(each).is_file()]):
                raise InputError(f"no file fits the pattern {quoted(str(self.path))}")
            return found
        return [self.path]

    def texts(self) -> Iterator["LongText"]:
        """Every text, one after the other."""
        for path in self.files():
            if path.suffix.lower() == JSONL:
                yield from (LongText(text=text) for text in _rows_of_jsonl(path, self.column))
            elif path.suffix.lower() == PARQUET:
                yield from (LongText(text=text) for text in _rows_of_parquet(path, self.column))
            elif self.lines:
                pieces = (line for piece in _pieces(path, by_line=True) for line in piece.splitlines())
                yield from (LongText(text=line) for line in pieces)
            else:
                yield LongText(path=path)

    def size(self) -> tuple[int, int]:
        """The number of texts, and of characters in them."""
        texts = characters = 0
        for text in self.texts():
            texts += 1
            characters += sum(map(len, text.pieces()))
        return texts, characters

    def option(self) -> str:
        """The options of a command that reads the same."""
        column = "" if self.column == COLUMN else f" --column {shlex.quote(self.column)}"
        return f"--text {shlex.quote(str(self.path))}{column}{' --lines' * self.lines}"


@dataclass(frozen=True)
class LongText:
    """One text, in memory or in a file."""

    text: str = ""
    path: Path | None = None

    def pieces(self) -> Iterator[str]:
        if self.path is not None:
            return _pieces(self.path)
        return (self.text[start : start + BLOCK] for start in range(0, len(self.text), BLOCK))

    def blocks(self) -> Iterator[str]:
        """Blocks of text, each but the first beginning with the space or line break before a word, if there is one."""
        return cut(self.pieces(), BLOCK)

    def head(self, characters: int = 64) -> str:
        """Its first characters, without space around them; empty if there is nothing else."""
        head = ""
        for piece in self.pieces():
            head = (head + piece).lstrip()
            if len(head) >= characters:
                break
        return head.rstrip() if len(head) < characters else head[:characters]


def as_texts(texts: Sequence[str] | Corpus) -> Iterable[LongText]:
    """Texts, each time anew."""
    return texts.texts() if isinstance(texts, Corpus) else (LongText(text=text) for text in texts)


def cut(pieces: Iterable[str], size: int) -> Iterator[str]:
    """The same text in blocks of up to `size` characters, cut before a space or line break where there is one.

    >>> list(cut(["to be or", " not to be"], size=7))
    ['to be', ' or', ' not', ' to be']
    """
    held = ""
    for piece in pieces:
        held += piece
        while len(held) > size:
            space = max(held.rfind(" ", 1, size), held.rfind("\n", 1, size))
            end = space if space > 0 else size
            yield held[:end]
            held = held[end:]
    yield held


def _pieces(path: Path, by_line: bool = False) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8") as file:
            if by_line:
                yield from file
                return
            while piece := file.read(BLOCK):
                yield piece
    except UnicodeDecodeError:
        raise _not_utf8(path) from None


def _not_utf8(path: Path) -> InputError:
    """The error that says where a file is no UTF-8 text, without reading all of it into memory."""
    decoder, at = getincrementaldecoder("utf-8")(), 0
    with open(path, "rb") as file:
        while True:
            block = file.read(BLOCK)
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:  # its object begins with what the last block left over
                place = at + len(block) - len(error.object) + error.start
                return InputError(f"{path} must be UTF-8 text, got byte {error.object[error.start]:#x} at {place}")
            if not block:
                return InputError(f"{path} must be UTF-8 text, and was changed while it was read")
            at += len(block)


def read_text(path: Path) -> str:
    """A UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} must be UTF-8 text, got byte {error.object[error.start]:#x} at {error.start}"
        ) from None


def _rows_of_jsonl(path: Path, column: str) -> Iterator[str]:
    for number, line in enumerate(_pieces(path, by_line=True), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.strip())
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: must be JSON: {first_line(error)}") from None
        if not isinstance(row, dict) or column not in row:
            known = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
            raise InputError(
                f"{path}, line {number}: must be an object with a text at {quoted(column)}, got {quoted(known)}: "
                "name the column with --column"
            )
        yield _checked(row[column], f"{path}, line {number}: {quoted(column)}")


def _rows_of_parquet(path: Path, column: str) -> Iterator[str]:
    arrow, parquet = pyarrow_library()
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                known = ", ".join(file.schema_arrow.names)
                raise InputError(f"{path} must have a column {quoted(column)}, got {quoted(known)}: give --column")
            batches = file.iter_batches(ROWS_AT_ONCE, columns=[column])
            for number, value in enumerate((value for batch in batches for value in batch.column(0)), start=1):
                where = f"{path}, row {number}: {quoted(column)}"
                try:
                    text = value.as_py()
                except UnicodeDecodeError as error:
                    raise InputError(f"{where} must be UTF-8 text, got byte {error.object[error.start]:#x}") from None
                yield _checked(text, where)
    except arrow.ArrowException as error:
        raise InputError(f"{path} is not a readable .parquet file: {first_line(error)}") from None


def _checked(value: Any, where: str) -> str:
    """The text in a row; an error where there is none."""
    if not isinstance(value, str):
        got = "none" if value is None else f"{type(value).__name__} {quoted(str(value))}"
        raise InputError(f"{where} must be a text, got {got}")
    try:
        value.encode()
    except UnicodeEncodeError as error:  # JSON can hold it, and tokenizers fail on it
        half = ord(value[error.start])
        raise InputError(f"{where} must be a text, got half of a character, U+{half:04X}") from None
    return value
