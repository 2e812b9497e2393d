"""The tokenizer in a .gguf file: its vocabulary as transformers reads it, and the tokens at the ends of a text."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from normscope.errors import InputError
from normscope.models.checkpoint import open_checkpoint

KIND = "tokenizer.ggml.model"  # only a file that has a tokenizer has this key
BEGINS, ENDS = "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"
SENTENCE_PIECE = "llama"  # the kind to which llama.cpp adds a first token where the key does not say so


def gguf_tokenizer(path: Path) -> Any:
    """The tokenizer in a .gguf file; not by AutoTokenizer, which reads the file in a way that takes seconds."""
    from transformers import PreTrainedTokenizerFast

    with open_checkpoint(path) as checkpoint:
        keys = checkpoint.metadata
    if KIND not in keys:
        raise InputError(
            "a text needs a tokenizer, and the file has none: give tokens by --inputs FILE, or inputs= in Python"
        )
    with TemporaryDirectory() as folder:
        (Path(folder) / path.name).symlink_to(path.resolve())  # alone: files beside it may belong to another model
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, gguf_file=path.name, local_files_only=True)
    added = {"bos_token": keys.get(BEGINS, keys[KIND] == SENTENCE_PIECE), "eos_token": keys.get(ENDS, False)}
    for token, is_added in added.items():  # transformers does not read these keys
        if is_added is True and getattr(tokenizer, token) is not None:
            setattr(tokenizer, f"add_{token}", True)
    return tokenizer
