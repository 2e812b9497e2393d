"""Tokens as text, from the tokenizer of a folder or from the list in a .gguf file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.models.load import quiet

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def token_texts(path: Path, tokens: Sequence[int]) -> list[str | None]:
    """What each token stands for; None where no tokenizer says so."""
    if not tokens:
        return []
    if path.suffix.lower() == ".gguf" and path.is_file():
        return _from_gguf(path, tokens)
    if not (path / "config.json").is_file():
        return [None] * len(tokens)
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception:  # transformers raises whatever missing or broken files lead to, and names are only for reading
        return [None] * len(tokens)
    return [_text(tokenizer, token) if token < len(tokenizer) else None for token in tokens]


def _text(tokenizer: Any, token: int) -> str:
    """A token decoded, or as the vocabulary has it where it is only a part of a character, or nothing when decoded."""
    decoded = str(tokenizer.decode([token]))
    return decoded if decoded and REPLACEMENT not in decoded else str(tokenizer.convert_ids_to_tokens(token))


def _from_gguf(path: Path, tokens: Sequence[int]) -> list[str | None]:
    """From the vocabulary in the file, its marks for spaces and bytes undone."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    listed, kind = fields.get("tokenizer.ggml.tokens"), fields.get("tokenizer.ggml.model")
    if listed is None:
        return [None] * len(tokens)
    count, of_bytes = len(listed.data), kind is not None and kind.contents() == "gpt2"
    pieces = [str(listed.contents(token)) if token < count else None for token in tokens]
    return [
        piece and (_of_bytes(piece) if of_bytes else piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " "))
        for piece in pieces
    ]


def _of_bytes(piece: str) -> str:
    """A piece of a byte-level vocabulary, whose characters stand for bytes; as it is if it is only part of a character.

    >>> _of_bytes("ĠnaÃ¯ve"), _of_bytes("âĢ")
    (' naïve', 'âĢ')
    """
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
    try:
        return bytes(byte_of[character] for character in piece).decode()
    except (KeyError, UnicodeDecodeError):
        return piece
