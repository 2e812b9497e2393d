"""Tokens as text, from the tokenizer of a folder or from the list in a .gguf file."""

import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from normscope.errors import CheckpointError
from normscope.models.checkpoint import open_checkpoint
from normscope.models.load import load_tokenizer
from normscope.models.transformers_library import byte_of_character

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
GGUF_TOKENS = b"tokenizer.ggml.tokens"


def token_texts(path: Path, tokens: Sequence[int]) -> list[str | None]:
    """The text of each token; None without a tokenizer."""
    if not tokens:
        return []
    if path.suffix.lower() == ".gguf" and path.is_file():
        return _from_gguf(path, tokens)
    if not (path / "config.json").is_file():
        return [None] * len(tokens)
    try:
        tokenizer = load_tokenizer(path)
    except CheckpointError:  # texts are only for display
        return [None] * len(tokens)
    return [_text(tokenizer, token) if token < len(tokenizer) else None for token in tokens]


def _text(tokenizer: Any, token: int) -> str:
    """A token decoded; as in the vocabulary if it is part of a character, or decodes to nothing."""
    decoded = str(tokenizer.decode([token]))
    return decoded if decoded and REPLACEMENT not in decoded else str(tokenizer.convert_ids_to_tokens(token))


def _from_gguf(path: Path, tokens: Sequence[int]) -> list[str | None]:
    """From the vocabulary in the file, its marks for spaces and bytes undone."""
    with open_checkpoint(path) as checkpoint:
        of_bytes = checkpoint.metadata.get("tokenizer.ggml.model") == "gpt2"
    pieces = dict(enumerate(_vocabulary(path)))
    return [_undone(pieces[token], of_bytes) if token in pieces else None for token in tokens]


def _vocabulary(path: Path) -> Iterator[str]:
    """The list of tokens in the header of a .gguf file; nothing if there is none, or it is cut off.

    It is located by its key, which is between its length and the type: an array of strings, each after its length.
    The `gguf` package would build objects for all of the header first, which takes seconds.
    """
    begin = struct.pack("<Q", len(GGUF_TOKENS)) + GGUF_TOKENS + struct.pack("<II", 9, 8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        place = data.find(begin)
        if place < 0:
            return
        place += len(begin) + 8
        (count,) = struct.unpack_from("<Q", data, place - 8)
        for _ in range(count):
            if place + 8 > len(data):
                return
            (length,) = struct.unpack_from("<Q", data, place)
            yield data[place + 8 : place + 8 + length].decode(errors="replace")
            place += 8 + length


def _undone(piece: str, of_bytes: bool) -> str:
    """A piece of a vocabulary as text; unchanged if its characters stand for bytes that are only part of a character.

    >>> _undone("ĠnaÃ¯ve", True), _undone("âĢ", True), _undone("▁the", False)
    (' naïve', 'âĢ', ' the')
    """
    if not of_bytes:
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ")
    try:
        return bytes(byte_of_character()[character] for character in piece).decode()
    except (KeyError, UnicodeDecodeError):
        return piece
