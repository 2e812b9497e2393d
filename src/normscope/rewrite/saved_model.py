"""Folded models on disk: a folder that any program which loads the original loads too, whole or not at all.

    config.json, model.safetensors          the same architecture, other weights
    tokenizer files and other small texts   as they were
    folding.json                            verdicts, reasons, tensors changed, certificate

Before the folder gets its name it is loaded again: every tensor must be there bit for bit, and the outputs the same. A
model with RMSNorm modules is none that its config.json could describe: it is written as a program, model.pt2.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import CheckpointError, InputError
from normscope.files import new_folder
from normscope.models.architecture import stored_names
from normscope.models.batches import Inputs
from normscope.models.checkpoint import open_checkpoint
from normscope.models.float64_run import evaluate, floats
from normscope.models.load import DTYPES, load_model
from normscope.models.transformers_library import locked
from normscope.rewrite.certificate import difference, outputs_of
from normscope.rewrite.fold import fold
from normscope.rewrite.results import Folding
from normscope.rewrite.saved_program import as_function, open_program, save_program, stored_in
from normscope.rewrite.stored_tensors import StoredTensors

TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
WRITTEN = ("config.json", "generation_config.json", "folding.json")
ROUNDING = 10  # times the rounding error of the folded model, that two runs of it may differ by


class NotTheSameError(Exception):
    """The certificate does not hold; nothing was written. `folding` says what was found."""

    def __init__(self, folding: Folding) -> None:
        found = folding.certificate
        broken = "".join(f"; not so: {words}" for words in found.broken[:1])
        super().__init__(
            f"the folded model is not the same function (in float64: {found.rewrite_difference:.1e} before rounding, "
            f"{found.written_difference:.1e} as stored in {found.dtype}, where rounding explains "
            f"{found.rounding_difference:.1e}{broken})"
        )
        self.folding = folding


def fold_checkpoint(
    source: Path,
    target: Path,
    *,
    inputs: Inputs | None = None,
    rms: bool = False,
    untie: bool = False,
    device: str = "cpu",
    dtype: str | None = None,
    name: str | None = None,
) -> Folding:
    """Fold the model of a folder in Hugging Face format, and write the result to a new one.

    It is written in the dtype of the original, if no other is given, and traced and certified on the first of `inputs`
    or, without them, on generated ones.
    """
    require_new_folder(target)
    model = load_model(source, device=device, dtype=dtype or stored_dtype(source))
    return save_folding(fold(model, inputs=inputs, rms=rms, untie=untie, name=name or str(source)), target, source)


def require_new_folder(path: Path) -> None:
    """Refuse a folder that could not be written later, before any work is done."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists: choose another name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: the folder {path.parent} is not writable")


def stored_dtype(source: Path) -> str:
    """The dtype of a checkpoint; the widest, if there are several."""
    with open_checkpoint(source) as checkpoint:
        found = {checkpoint.dtype(name) for name in checkpoint.names}
    for dtype in ("float64", "float32", "bfloat16", "float16"):
        if dtype in found:
            return dtype
    raise CheckpointError(f"{source}: weights must be {', '.join(DTYPES)} to be folded, got {', '.join(sorted(found))}")


def save_folding(folding: Folding, target: Path, source: Path | None = None) -> Folding:
    """Write a folded model to a new folder, with the small files of the one that it came from.

    What is returned knows in addition which tensors of that one are no part of the model, what a program takes, and how
    far the file, read back from disk and run in float64, is from the original.
    """
    if not folding.certificate.holds:
        raise NotTheSameError(folding)
    require_new_folder(target)
    with new_folder(target) as folder:
        for path, name in _texts(source):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / name)
        folding = _write_program(folding, folder) if folding.rms else _write_weights(folding, folder, source)
        if not folding.certificate.holds:
            raise NotTheSameError(folding)
        text = json.dumps(folding.to_dict(), indent=2, allow_nan=False)
        (folder / "folding.json").write_text(f"{text}\n", encoding="utf-8")
        _give_usual_rights(folder)
    return folding


def _write_weights(folding: Folding, folder: Path, source: Path | None) -> Folding:
    model: Any = folding.model
    if not hasattr(model, "save_pretrained"):
        raise InputError(f"only models of transformers are saved as folders, got {type(model).__name__}")
    with locked():
        model.save_pretrained(folder, safe_serialization=True)
    try:
        loaded = load_model(folder, device=str(model.device), dtype=folding.certificate.dtype)
    except CheckpointError as error:
        what = "without its ties" if folding.untied else "folded"
        reason = str(error).removeprefix(f"{folder}: ")
        raise InputError(f"{type(model).__name__} can't be stored {what}: {reason}") from None
    _require_same_tensors(loaded, model)
    _require_same_outputs(folding, outputs_of(loaded, folding.example))
    folding = _read_back(folding, evaluate(folding.float64.program, StoredTensors(loaded).in_float64))
    return folding if source is None else replace(folding, left_out=_left_out(source, folder, model))


def _write_program(folding: Folding, folder: Path) -> Folding:
    takes = save_program(folding.model, folding.example, folder / "model.pt2")
    args, kwargs = folding.example
    program = open_program(folder / "model.pt2")
    with torch.no_grad():
        outputs = as_function(program)(*args, **kwargs)
    _require_same_outputs(folding, floats(outputs))
    return _read_back(replace(folding, program=takes), evaluate(program, stored_in(program)))


def _read_back(folding: Folding, outputs: list[Tensor]) -> Folding:
    """With what a file that was read from disk gives in float64."""
    apart = difference(outputs, folding.float64.outputs)
    measured = replace(folding.certificate, written_difference=apart, read_back=True)
    return replace(folding, certificate=measured)


def _give_usual_rights(folder: Path) -> None:
    """The rights that a file gets when it is written, for all of a folder: temporary ones are only their owner's."""
    usual = (folder / "folding.json").stat().st_mode & 0o666
    for path in (folder, *folder.rglob("*")):
        path.chmod(usual | (usual & 0o444) >> 2 if path.is_dir() else usual)


def _texts(source: Path | None) -> Iterator[tuple[Path, Path]]:
    """Small files to copy from a folder, with their names in it: no weights, no code, nothing that is written anew."""
    if source is None:
        return
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        text = path.suffix.lower() in TEXTS or path.name.upper().startswith(("LICENSE", "NOTICE"))
        anew = str(name) in WRITTEN or path.name.endswith(".index.json")
        hidden = any(part.startswith(".") for part in name.parts)
        if text and path.is_file() and not anew and not hidden:
            yield path, name


def _require_same_tensors(loaded: nn.Module, saved: nn.Module) -> None:
    """Refuse a folder from which other tensors are loaded than were certified."""
    stored, wanted = StoredTensors(loaded), StoredTensors(saved)
    for name in saved.state_dict():
        there = name in stored and torch.equal(stored[name], wanted[name])
        if not there or stored.first_name(name) != wanted.first_name(name):
            raise InputError(f"{name} is not loaded as it was saved: this architecture can't be stored folded")


def _require_same_outputs(folding: Folding, outputs: list[Tensor]) -> None:
    """Refuse a file from which a model is loaded that gives other outputs than the certified one, beyond rounding."""
    apart = difference(outputs, outputs_of(folding.model, folding.example))
    if not apart <= ROUNDING * max(folding.certificate.folded_error, torch.finfo(torch.float64).eps):
        raise InputError(f"the saved model gives other outputs once loaded: they differ by {apart:.1e}")


def _left_out(source: Path, folder: Path, model: nn.Module) -> tuple[str, ...]:
    """Tensors of a checkpoint that are no part of the model that its config.json describes, under whatever name."""
    with open_checkpoint(source) as original, open_checkpoint(folder) as written:
        names, saved = stored_names(model, original.names), set(written.names)
    known = StoredTensors(model)
    return tuple(stored for renamed, stored in names.items() if renamed not in known and stored not in saved)
