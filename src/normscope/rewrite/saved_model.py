"""Folded models on disk: a folder that loads like the original, written atomically.

    config.json, model.safetensors          the same architecture, other weights
    tokenizer files and other small texts   unchanged
    folding.json                            verdicts, reasons, tensors changed, certificate, and claims for `verify`
    rotation.npz                            the matrices of a rotation, also for `verify`

Before the folder gets its name it is loaded again: every tensor must match bit for bit, and the outputs be the same. A
model with RMSNorm modules, which no config.json can describe, is written as an exported program, model.pt2.
"""

import json
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from normscope.checks import Floats
from normscope.errors import CheckpointError, InputError, NotCertifiedError
from normscope.files import new_folder
from normscope.models.architecture import stored_names
from normscope.models.checkpoint import open_checkpoint
from normscope.models.float64_run import difference, evaluate, floats, outputs_of
from normscope.models.gguf_model import gguf_conversions
from normscope.models.load import DTYPES, load_model, load_tokenizer
from normscope.models.transformers_library import locked
from normscope.results.folding import Certificate, Folding
from normscope.results.result import FOLDER_FILE
from normscope.rewrite.eps_settings import same_numbers
from normscope.rewrite.folded_files import MATRICES
from normscope.rewrite.saved_program import as_function, open_program, save_program, stored_in
from normscope.rewrite.stored_tensors import StoredTensors, equal_values

TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".md")
WRITTEN = ("config.json", "generation_config.json", FOLDER_FILE)
ROUNDING = 10  # times the rounding error of the folded model: tolerance between two runs of it


@dataclass(frozen=True)
class Source:
    """The checkpoint that a model was loaded from."""

    folder: Path
    names: tuple[str, ...]  # of its tensors
    dtype: str  # of its weights; the widest, if there are several

    @classmethod
    def of(cls, folder: Path) -> "Source":
        with open_checkpoint(folder) as checkpoint:
            dtypes = {name: checkpoint.dtype(name) for name in checkpoint.names}
        for dtype in ("float64", "float32", "bfloat16", "float16"):
            if dtype in dtypes.values():
                return cls(folder, tuple(dtypes), dtype)
        found = ", ".join(sorted(set(dtypes.values())))
        raise CheckpointError(f"{folder}: weights must be {', '.join(DTYPES)} to be folded, got {found}")


@dataclass(frozen=True, eq=False)
class TracedCall:
    """The call that a folded model was certified on, kept to check the model read back from disk."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    program: ExportedProgram  # of the folded model
    reference: list[Tensor]  # outputs of the original in float64
    outputs: list[Tensor]  # of the folded model in its own dtype
    source: Source | None = None  # None for a module
    matrices: Mapping[str, Floats] = field(default_factory=dict)  # of rotations, by stream


def require_new_folder(path: Path) -> None:
    """Refuse a folder that could not be written later, before any work is done."""
    if path.exists() or path.is_symlink():
        raise FileExistsError(f"{path} exists: choose another name")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist: create it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"{path} can't be written: the folder {path.parent} is not writable")


def save_folding(folding: Folding, path: str | os.PathLike[str]) -> Folding:
    """Write a folded model to a new folder, with the small files of its source folder.

    The returned result also lists the source tensors that the model does not use, the inputs of a program, and how
    far the file, read back from disk and run in float64, is from the original.
    """
    _certificate(folding)
    if folding.module is None:
        raise InputError("a folding that was loaded from a file has no model: fold the model again to save it")
    _require_certified(folding)
    target, source = Path(path), folding.call.source
    require_new_folder(target)
    with new_folder(target) as folder:
        if source is not None:
            copy_texts(source.folder, folder)
        if source is not None and source.folder.is_file():
            _write_tokenizer(source.folder, folder)
        folding = _write_program(folding, folder) if folding.rms else _write_weights(folding, folder)
        _require_certified(folding)
        if folding.call.matrices:
            np.savez(folder / MATRICES, *folding.call.matrices.values())
        text = json.dumps(folding.to_dict(), indent=2, allow_nan=False)
        (folder / FOLDER_FILE).write_text(f"{text}\n", encoding="utf-8")
        give_usual_rights(folder)
    return folding


def _certificate(folding: Folding) -> Certificate:
    if folding.tensors is not None:
        raise InputError("a fold that was made without a run is already written: copy its folder")
    if folding.certificate is None:
        raise InputError("a fold that was only planned can't be saved: fold the model without plan")
    return folding.certificate


def _require_certified(folding: Folding) -> None:
    found = _certificate(folding)
    if not found.holds:
        failed = "".join(f"; failed: {words}" for words in found.broken[:1])
        rewrite, written, rounding = (
            "not comparable" if row.difference is None else f"{row.difference:.1e}" for row in folding.measurements[:3]
        )
        raise NotCertifiedError(
            f"the folded model is not the same function (in float64: {rewrite} before rounding, {written} as stored in "
            f"{found.dtype}, where rounding explains {rounding}{failed}); nothing was written",
            folding,
        )


def _write_weights(folding: Folding, folder: Path) -> Folding:
    model, call = folding.module, folding.call
    if not hasattr(model, "save_pretrained"):
        raise InputError(f"only models of transformers are saved as folders, got {type(model).__name__}")
    with locked():
        model.save_pretrained(folder, safe_serialization=True)
    try:
        loaded = load_model(folder, device=str(model.device), dtype=_certificate(folding).dtype)
    except CheckpointError as error:
        what = "without its ties" if folding.untied else "folded"
        reason = str(error).removeprefix(f"{folder}: ")
        raise InputError(f"{type(model).__name__} can't be stored {what}: {reason}") from None
    stored, wanted = StoredTensors(loaded), StoredTensors(model)
    names = model.state_dict().keys()
    _require_same_tensors(stored, wanted, names)
    if not same_numbers(loaded, model):
        raise InputError(f"{type(model).__name__} is loaded with another eps than it was saved with")
    _require_same_outputs(folding, outputs_of(loaded, call.args, call.kwargs))
    folding = _read_back(folding, None if stored.equal(wanted, names) else evaluate(call.program, stored.values))
    return (
        folding if call.source is None else replace(folding, unused_tensors=_unused(call.source, folder, model, wanted))
    )


def _write_program(folding: Folding, folder: Path) -> Folding:
    call = folding.call
    takes = save_program(folding.module, call.args, call.kwargs, folder / "model.pt2")
    program = open_program(folder / "model.pt2")
    with torch.no_grad():
        outputs = as_function(program)(*call.args, **call.kwargs)
    _require_same_outputs(folding, floats(outputs))
    return _read_back(replace(folding, program=takes), evaluate(program, stored_in(program)))


def _read_back(folding: Folding, outputs: list[Tensor] | None) -> Folding:
    """The folding with the certificate of a file read back from disk, from its outputs in float64.

    None: the program was run before with tensors equal to those of the file, so the outputs are known.
    """
    written = _certificate(folding).written_difference
    if outputs is not None:
        apart = difference(outputs, folding.call.reference)
        written = apart if math.isfinite(apart) else None
    return replace(folding, certificate=replace(_certificate(folding), written_difference=written, read_back=True))


def give_usual_rights(folder: Path) -> None:
    """Set default permissions on everything in a folder: temporary files are only accessible to their owner."""
    usual = (folder / FOLDER_FILE).stat().st_mode & 0o666
    for path in (folder, *folder.rglob("*")):
        path.chmod(usual | (usual & 0o444) >> 2 if path.is_dir() else usual)


def copy_texts(source: Path, folder: Path) -> None:
    """Copy the small files of a folder: no weights, no code, nothing that fold writes."""
    for file, name in _texts(source):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / name)


def _texts(source: Path) -> Iterator[tuple[Path, Path]]:
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        text = path.suffix.lower() in TEXTS or path.name.upper().startswith(("LICENSE", "NOTICE"))
        anew = str(name) in WRITTEN or path.name.endswith(".index.json")
        hidden = any(part.startswith(".") for part in name.parts)
        if text and path.is_file() and not anew and not hidden:
            yield path, name


def _write_tokenizer(file: Path, folder: Path) -> None:
    """The tokenizer of a .gguf file, if there is one that transformers can read."""
    with suppress(CheckpointError):
        load_tokenizer(file).save_pretrained(folder)


def _require_same_tensors(stored: StoredTensors, wanted: StoredTensors, names: Iterable[str]) -> None:
    """Refuse a folder that loads tensors other than the certified ones."""
    compared: set[str] = set()
    for name in names:
        same = name in stored and stored.first_name(name) == (first := wanted.first_name(name))
        if not same or (first not in compared and not equal_values(stored[name], wanted[name])):
            raise InputError(f"{name} is not loaded as it was saved: this architecture can't be stored folded")
        compared.add(first)


def _require_same_outputs(folding: Folding, outputs: list[Tensor]) -> None:
    """Refuse a file whose model gives outputs that differ from the certified ones by more than rounding."""
    apart, error = difference(outputs, folding.call.outputs), _certificate(folding).folded_error
    if not apart <= ROUNDING * max(math.inf if error is None else error, torch.finfo(torch.float64).eps):
        raise InputError(f"the saved model gives other outputs once loaded: they differ by {apart:.1e}")


def _unused(source: Source, folder: Path, model: nn.Module, known: StoredTensors) -> tuple[str, ...]:
    """Tensors of a checkpoint that the model described by its config.json does not use under any name."""
    if source.folder.is_file():  # a .gguf file, whose tensors have names of their own
        with open_checkpoint(source.folder) as checkpoint:
            used = {name for each in gguf_conversions(checkpoint, model) for name, _ in each.sources}
            return tuple(name for name in checkpoint.names if name not in used)
    with open_checkpoint(folder) as written:
        saved = set(written.names)
    names = stored_names(model, source.names)
    return tuple(stored for renamed, stored in names.items() if renamed not in known and stored not in saved)
