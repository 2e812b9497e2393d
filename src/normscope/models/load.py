"""Load a checkpoint as a model that runs, and a text as batches for it. Local files only; no remote code."""

import inspect
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from weakref import finalize

import torch
from torch import Tensor, nn

from normscope.checks import first_line, quoted
from normscope.errors import CheckpointError, InputError
from normscope.models import transformers_library as library
from normscope.models.architecture import build_architecture, described_config, explained, notes_on
from normscope.models.checkpoint import Checkpoint, open_checkpoint, read_json
from normscope.models.corpus import Corpus, LongText, as_texts
from normscope.models.gguf_model import config_of, scaled_positions
from normscope.models.gguf_tokenizer import gguf_tokenizer
from normscope.models.weights import Weights

DTYPES = ("float32", "float64", "bfloat16", "float16")
CONTEXT = 1024  # tokens per piece, where a model allows more


def load_model(
    path: Path, *, device: str = "cpu", dtype: str = "float32", room: Mapping[str | int, int] | None = None
) -> nn.Module:
    """The model of a Hugging Face folder or a .gguf file with its weights, in eval mode; refused unless all are there.

    Quantized tensors of a .gguf file are decoded. With device "auto" the layers of a folder are placed by accelerate:
    on GPUs, then in memory, and on the disk what is left; `room` is bytes for each, by default what is free.
    """
    require_dtype(dtype)
    if device == "auto":
        return _placed(path, dtype, room)
    model = _from_gguf(path, dtype) if is_gguf(path) else _from_folder(path, dtype)
    try:
        placed: nn.Module = model.eval().to(device)
    except Exception as error:
        raise InputError(f"the model can't be put on device {device!r}: {first_line(error)}") from None
    return placed


def open_weights(path: Path, *, dtype: str = "float32") -> tuple[nn.Module, Weights]:
    """The model of a folder or a .gguf file on the meta device, and its tensors, read when they are asked for."""
    require_dtype(dtype)
    config = known_config(path)
    with named(path):
        model = build_architecture(config)
    assert model is not None
    weights = Weights.of_checkpoint(checkpoint := open_checkpoint(path), model, dtype=dtype)
    _warn_of_notes(path, notes_on(config))
    if is_gguf(path):
        _warn_of_notes(path, _notes_on_gguf(checkpoint, model, weights))
    return model, weights


def known_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder, or what stands for it in a .gguf file, of a kind that transformers knows."""
    if is_gguf(path):
        with named(path):
            return config_of(path)
    _require_folder(path)
    config = _known_config(path)
    if (path / "adapter_config.json").exists():
        raise CheckpointError(f"{path}: adapter_config.json asks for an adapter: merge it into the weights first")
    return config


def is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def require_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")


def require_device(device: str) -> None:
    """Refuse a device that torch does not know, or that is not there; "auto" places layers by accelerate."""
    try:
        torch.empty(0, device="cpu" if device == "auto" else device)
    except Exception as error:  # RuntimeError, AssertionError, NotImplementedError: torch's words differ by device
        raise InputError(f"device must be one that torch can use here, got {device!r}: {first_line(error)}") from error


def _warn_of_notes(path: Path, notes: Iterable[str]) -> None:
    """Warn of what in a checkpoint is not supported."""
    for note in notes:
        warnings.warn(f"{path}: {note}", library.NotFollowedWarning, stacklevel=4)


def _notes_on_gguf(checkpoint: Checkpoint, model: nn.Module, weights: Weights) -> Iterator[str]:
    """Sentences on what in a .gguf file has no part in the model that transformers makes of it."""
    if lost := weights.left_out:
        others = f" and {len(lost) - 1} more tensor{'s' * (len(lost) > 2)}" if len(lost) > 1 else ""
        yield f"{type(model).__name__} of {library.version()} has no place for {lost[0]}{others}: left out."
    if (scaled := scaled_positions(checkpoint)) is not None:
        yield scaled


def _from_gguf(path: Path, dtype: str) -> nn.Module:
    model, weights = open_weights(path, dtype=dtype)
    weights.fill(model)
    return model


def _placed(path: Path, dtype: str, room: Mapping[str | int, int] | None) -> nn.Module:
    """The model of a folder with its layers where there is room; those on the disk are read when they run."""
    if is_gguf(path):
        raise InputError(f"device auto needs a folder with config.json, got {path}: its tensors must be decoded first")
    if find_spec("accelerate") is None:
        raise InputError("device auto needs accelerate: pip install 'normscope[large]'")
    folder = TemporaryDirectory(prefix="normscope-")  # for layers that can't be read from the checkpoint as they are
    settings = {"device_map": "auto", "offload_folder": folder.name}
    model = _from_folder(path, dtype, **settings, **({} if room is None else {"max_memory": dict(room)})).eval()
    finalize(model, folder.cleanup)
    return model


def _from_folder(path: Path, dtype: str, **settings: Any) -> nn.Module:
    from transformers import AutoModel

    config = known_config(path)
    with named(path), explained(config, "the model can't be loaded"):
        described = described_config(config)
        known: Any = library.model_class(described.architectures) or AutoModel
        model, loaded = known.from_pretrained(
            path,
            config=described,
            local_files_only=True,
            trust_remote_code=False,
            dtype=getattr(torch, dtype),
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported in `loaded`, and refused below by name
            **settings,
        )
    _warn_of_notes(path, notes_on(config))
    _require_all_weights(path, loaded)
    loaded_model: nn.Module = model
    return loaded_model


def text_batches(path: Path, text: str | Sequence[str] | Corpus) -> "TextBatches":
    """The tokens of a text in pieces that fit the model of a folder, with the special tokens that it expects.

    Each of several texts is a sequence of its own, split only if it is too long; empty ones are skipped.
    """
    if not is_gguf(path):
        _require_folder(path)
    texts = text if isinstance(text, Corpus) else [text] if isinstance(text, str) else list(text)
    for each in [] if isinstance(texts, Corpus) else texts:
        if not isinstance(each, str):
            raise InputError(f"text must be a string or several strings, got one of type {type(each).__name__}")
    if not any(each.head() for each in as_texts(texts)):
        raise InputError("the text is empty: give a text with at least one word")
    model = _described(path)
    takes = getattr(model, "main_input_name", None)
    if takes != "input_ids":
        raise InputError(f"{path}: {type(model).__name__} takes {takes}, not text")
    tokenizer = load_tokenizer(path)
    with named(path):
        return TextBatches(texts, tokenizer, model)


def load_tokenizer(path: Path) -> Any:
    """The tokenizer of a folder, from its files alone, or of a .gguf file."""
    from transformers import AutoTokenizer, PreTrainedConfig

    if is_gguf(path):
        with named(path), explained({}, "no tokenizer can be made from the file"):
            return gguf_tokenizer(path)
    config, settings = _json(path / "config.json"), _json(path / "tokenizer_config.json")
    with named(path), explained(config, "no tokenizer can be loaded"):
        for name in (config.get("tokenizer_class"), settings.get("tokenizer_class")):
            if name is not None and not library.is_tokenizer(name):
                raise InputError(f"tokenizer_class must be the name of a tokenizer, got {quoted(name)}")
        tokenizer = AutoTokenizer.from_pretrained(
            path,
            config=described_config(config) if library.config_class(config.get("model_type")) else PreTrainedConfig(),
            local_files_only=True,
            trust_remote_code=False,
        )
        longest = tokenizer.model_max_length
        if isinstance(longest, bool) or not isinstance(longest, (int, float)) or not longest >= 1:
            raise InputError(
                f"model_max_length in tokenizer_config.json must be a number, 1 or more, got {quoted(longest)}"
            )
    return tokenizer


class TextBatches:
    """Batches of one row, made on demand, so that memory does not grow with the text.

    The text is tokenized once at the start, to count and to check, and again each time the batches are iterated.
    """

    def __init__(self, texts: Sequence[str] | Corpus, tokenizer: Any, model: nn.Module) -> None:
        self._texts, self._tokenizer = texts, tokenizer
        self._before, self._after = _special_tokens(tokenizer, next(self._sequences()).head())
        self._room: int = min(_longest(model), tokenizer.model_max_length) - len(self._before) - len(self._after)
        if self._room < 1:
            raise InputError("the model's context is too short for the special tokens and one token of text")
        self._decodes = "decoder_input_ids" in inspect.signature(model.forward).parameters
        self._pieces, known, largest = 0, False, max([0, *self._before, *self._after])
        for sequence in self._sequences():
            length = 0
            for tokens in self._blocks(sequence):
                length += len(tokens)
                known = known or bool(tokenizer.decode(tokens, skip_special_tokens=True).strip())
                largest = max([largest, *tokens])
            self._pieces += math.ceil(length / self._room)
        if not known:
            raise InputError("the tokenizer knows no token of the text: tokenizer files may be missing")
        _require_in_vocabulary(largest, model)

    def __len__(self) -> int:
        return self._pieces

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for sequence in self._sequences():
            waiting: list[int] = []
            for tokens in self._blocks(sequence):
                waiting += tokens
                whole = len(waiting) - len(waiting) % self._room
                for start in range(0, whole, self._room):
                    yield self._batch(waiting[start : start + self._room])
                del waiting[:whole]
            if waiting:
                yield self._batch(waiting)

    def _sequences(self) -> Iterator[LongText]:
        return (text for text in as_texts(self._texts) if text.head())

    def _blocks(self, sequence: LongText) -> Iterator[list[int]]:
        """Tokens of a sequence, block by block, without special tokens."""
        for block in sequence.blocks():
            yield _tokenized(self._tokenizer, block, add_special_tokens=False)

    def _batch(self, tokens: list[int]) -> dict[str, Tensor]:
        row = torch.tensor([[*self._before, *tokens, *self._after]])
        return {"input_ids": row, "decoder_input_ids": row} if self._decodes else {"input_ids": row}


def run_in_pieces(model: nn.Module, batches: Iterable[Mapping[str, Tensor]]) -> Iterator[None]:
    """Run the model on one batch after the other, yielding after each: in evaluation mode, no gradients, no caches.

    Any exception of the model becomes an InputError of one line; its training mode is restored at the end.
    """
    weight = next(model.parameters(), torch.empty(0))
    name = type(model).__name__
    # accelerate's hooks bring weights when they are needed; elsewhere nothing would.
    if weight.is_meta and not any(hasattr(module, "_hf_hook") for module in model.modules()):
        raise InputError(f"{name} can't be run: it is on the meta device, where weights have no values")
    device = torch.device("cpu") if weight.is_meta else weight.device
    settings: dict[str, Any] = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        for batch in batches:
            try:
                with torch.no_grad():
                    model(**{key: value.to(device) for key, value in batch.items()}, **settings)
            except Exception as error:  # the model's own code, which may raise anything
                raise InputError(f"{name} can't be run on this input: {first_line(error)}") from error
            yield
    finally:
        for module in training:
            module.training = True


def _require_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        beside = path.is_file() and (path.parent / "config.json").is_file()
        raise CheckpointError(
            f"{path} must be a folder with config.json and weights, because the model is run or traced, "
            + (f"but is a file: give its folder, {path.parent}" if beside else "but has no config.json")
        )


def _require_all_weights(path: Path, loaded: Mapping[str, Any]) -> None:
    """Refuse a model with weights that did not come from the checkpoint; tied weights are not reported as missing."""
    if missing := sorted(loaded["missing_keys"]):
        raise CheckpointError(
            f"{path}: tensors that config.json describes are missing, for example {missing[0]} ({len(missing)} in all)"
        )
    if mismatched := sorted(loaded["mismatched_keys"]):
        name, stored, described = mismatched[0]
        raise CheckpointError(
            f"{path}: tensors do not have the shape that config.json describes, for example {name}: "
            f"{tuple(stored)} instead of {tuple(described)} ({len(mismatched)} in all)"
        )


def _described(path: Path) -> nn.Module:
    config = known_config(path)
    with named(path):
        model = build_architecture(config)
    assert model is not None
    return model


def _known_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder, of a kind that transformers knows."""
    config = _json(path / "config.json")
    if library.config_class(config.get("model_type")) is None:
        raise CheckpointError(
            f"{path}: the model can't be loaded: model_type in config.json must be one that {library.version()} knows, "
            f"got {quoted(config.get('model_type'))}"
        )
    return config


def _json(path: Path) -> dict[str, Any]:
    """A JSON object in a file; an empty one if there is no such file."""
    return read_json(path) if path.is_file() else {}


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the name of the folder or file to errors that do not begin with it."""
    try:
        yield
    except ValueError as error:
        reason = str(error)
        raise CheckpointError(reason if reason.startswith(str(path)) else f"{path}: {reason}") from None


def _special_tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int]]:
    """The special tokens that the tokenizer puts before and after a text."""
    plain, full = _tokenized(tokenizer, text, add_special_tokens=False), _tokenized(tokenizer, text)
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return full[:start], full[start + len(plain) :]
    return [], []


def _tokenized(tokenizer: Any, text: str, **options: bool) -> list[int]:
    with library.quiet():
        return list(tokenizer(text, **options)["input_ids"])


def _longest(model: Any) -> int:
    """Tokens that a model takes at once; fewer than its positions where the first ones stand for padding."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or CONTEXT
    reserved = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if "position" in name and isinstance(module, nn.Embedding) and module.padding_idx is not None
        if module.num_embeddings == positions
    ]
    return int(min(CONTEXT, positions - max(reserved, default=0)))


def _require_in_vocabulary(token: int, model: Any) -> None:
    size = model.get_input_embeddings().num_embeddings
    if token >= size:
        raise InputError(
            f"tokens must be below {size}, the vocabulary of the model, got {token}: "
            "the tokenizer does not belong to this model"
        )
