"""A checkpoint as a model that runs, and a text as the batches that it runs on. Local files only; no remote code."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.checks import first_line
from normscope.models.checkpoint import CheckpointError

DTYPES = ("float32", "float64", "bfloat16", "float16")
CONTEXT = 1024  # tokens a piece, where a model allows more


def load_model(path: Path, *, device: str = "cpu", dtype: str = "float32") -> nn.Module:
    """The model of a Hugging Face folder with its weights, in eval mode."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    import transformers
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging

    _require_folder(path)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # one bar at a time: ours shows the text
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        names = config.architectures or []
        known = next((found for name in names if (found := getattr(transformers, str(name), None))), AutoModel)
        model: nn.Module = known.from_pretrained(path, local_files_only=True, dtype=getattr(torch, dtype))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointError(f"{path}: the model can't be loaded: {first_line(error)}") from None
    try:
        return model.eval().to(device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"the model can't be put on device {device!r}: {first_line(error)}") from None


def text_batches(path: Path, text: str) -> list[dict[str, Tensor]]:
    """The tokens of a text in pieces that fit the model, one row each, with the special tokens it expects."""
    from transformers import AutoConfig, AutoTokenizer

    _require_folder(path)
    if not text.strip():
        raise ValueError("the text is empty: give a text with at least one word")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path}: no tokenizer can be loaded: {first_line(error)}") from None
    longest = min(CONTEXT, getattr(config, "max_position_embeddings", None) or CONTEXT)
    pieces = tokenizer(text, truncation=True, max_length=longest, return_overflowing_tokens=True)["input_ids"]
    return [{"input_ids": torch.tensor([piece])} for piece in pieces if piece]


def read_text(path: Path) -> str:
    """A UTF-8 text file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} must be UTF-8 text, got byte {error.object[error.start]:#x} at {error.start}"
        ) from None


def run_in_pieces(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Iterator[None]:
    """Run the model on one batch after the other, without gradients or caches, giving way after each."""
    device = next(model.parameters()).device
    settings: dict[str, Any] = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    for batch in batches:
        with torch.no_grad():
            model(**{key: value.to(device) for key, value in batch.items()}, **settings)
        yield


def _require_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise CheckpointError(
            f"{path} must be a folder with config.json and weights to be run, and it has no config.json"
        )
