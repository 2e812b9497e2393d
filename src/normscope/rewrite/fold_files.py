"""A fold from files to files: tensors are read, rewritten and written one at a time, and no model is loaded or run.

    shards of the original ──▶ norms and graph, on the meta device ──▶ plan ──▶ shards of the same names
                            ╰─▶ every tensor of the written files compared with what it should be

The largest tensor decides how much memory it takes, not the model. What is written is certified tensor by tensor:
`normscope.certificates.check_fold_files`. `normscope verify FOLDER MODEL --text FILE` makes a run on inputs, apart.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.certificates.check_fold import Scaling
from normscope.certificates.check_fold_files import Claims, comparisons
from normscope.errors import InputError, NotCertifiedError
from normscope.files import new_folder
from normscope.models.checkpoint import Checkpoint, open_checkpoint
from normscope.models.safetensors_file import write_safetensors
from normscope.models.subject import Subject
from normscope.models.transformers_library import locked
from normscope.models.weights import Weights
from normscope.progress import Progress
from normscope.results.folding import Folding, TensorCertificate
from normscope.results.result import FOLDER_FILE
from normscope.rewrite.eps_settings import same_numbers
from normscope.rewrite.folded_files import FoldedFiles
from normscope.rewrite.folded_weights import FoldedWeights
from normscope.rewrite.plan import decide
from normscope.rewrite.rewrites import Wanted
from normscope.rewrite.saved_model import Source, copy_texts, give_usual_rights
from normscope.rewrite.stored_tensors import StoredTensors, Uses, ties

INDEX = "model.safetensors.index.json"
COPIED = "generation_config.json"  # a model that is loaded writes its own


def fold_files(subject: Subject, source: Source, wanted: Wanted, out: Path | None, progress: Progress) -> Folding:
    """Fold the checkpoint of a folder into a new folder, or only decide and check if there is none to write."""
    _require_fold_only(wanted)
    if out is None:
        raise InputError("a fold without a run writes a folder: give its name (--out), or ask for the plan (--plan)")
    inventory, weights = subject.traced, subject.weights
    assert inventory.module is not None
    assert inventory.graph is not None
    with open_checkpoint(source.folder) as checkpoint:
        shards = checkpoint.shards
        model, stored = inventory.module, StoredTensors(inventory.module, weights)
        uses = Uses(stored, inventory.graph)
        _require_equal_copies(checkpoint, weights, stored)
        plan = decide(model, uses, inventory.values(), {})
        folded = FoldedWeights(stored, plan.promise, stored)
        claims = Claims.of(plan.promise, None, Scaling({}, frozenset(), {}), {})
        dtype = str(subject.dtype)
        with new_folder(out) as folder:
            copy_texts(source.folder, folder)
            if (source.folder / COPIED).is_file():
                shutil.copyfile(source.folder / COPIED, folder / COPIED)
            _write_config(model, dtype, folder)
            changed = _write_shards(folder, shards, checkpoint, weights, folded, progress)
            files = FoldedFiles(source.folder, folder, dtype, claims)
            if not same_numbers(model, files.model):
                raise InputError(f"{type(model).__name__} is built with other numbers from its own configuration")
            checked = list(progress(comparisons(claims, files), "comparing tensors"))
            used = {name for names in shards.values() for name in names if weights.made_from(name)}
            broken = tuple(words for words, holds in checked if not holds)
            folding = Folding(
                subject.name,
                plan.verdicts,
                changed,
                None,
                tuple(tie for tie in ties(uses) if stored.first_name(tie.table) not in changed),
                (),
                not_run=uses.idle(),
                unused_tensors=tuple(name for name in checkpoint.names if name not in used),
                claims=claims,
                tensors=TensorCertificate(dtype, len(checked), len(files.names), broken),
            )
            if broken:
                raise NotCertifiedError(
                    f"the folded tensors are not what they should be (failed: {broken[0]}); nothing was written",
                    folding,
                )
            text = json.dumps(folding.to_dict(), indent=2, allow_nan=False)
            (folder / FOLDER_FILE).write_text(f"{text}\n", encoding="utf-8")
            give_usual_rights(folder)
    return folding


def _require_fold_only(wanted: Wanted) -> None:
    """Refuse what needs the model, or a run of it."""
    asked = {
        "rms": wanted.rms,
        "untie": wanted.untie,
        "rotate": wanted.rotate is not None,
        "rescale": wanted.rescale is not None,
    }
    option = next((name for name, given in asked.items() if given), None)
    if option is not None:
        raise InputError(f"{option} needs a run, which certifies it: leave out --no-run (in Python: run=False)")


def _require_equal_copies(checkpoint: Checkpoint, weights: Weights, stored: StoredTensors) -> None:
    """Refuse a checkpoint with different values under two names that are one tensor of the model."""
    by_tensor: dict[str, list[str]] = {}
    for name in checkpoint.names:
        for target in weights.made_from(name):
            by_tensor.setdefault(stored.first_name(target), []).append(target)
    for names in by_tensor.values():
        for other in dict.fromkeys(names[1:]):
            if other != names[0] and not torch.equal(weights(names[0]), weights(other)):
                raise InputError(
                    f"{names[0]} and {other} are one tensor of the model, but are stored with other values"
                )


def _write_config(model: nn.Module, dtype: str, folder: Path) -> None:
    """The configuration, as transformers writes it with a model."""
    config: Any = model.config
    config.dtype, config.architectures = dtype, [type(model).__name__]
    with locked():
        config.save_pretrained(folder)


def _write_shards(
    folder: Path,
    shards: dict[str, tuple[str, ...]],
    checkpoint: Checkpoint,
    weights: Weights,
    folded: FoldedWeights,
    progress: Progress,
) -> tuple[str, ...]:
    """Write every tensor that the model uses into a file of the same name; return the tensors that changed."""
    touched, changed = folded.touched, dict[str, None]()

    def value(name: str) -> Tensor:
        first = folded.names.first_name(name)
        if first not in touched:
            return weights(name)
        new = folded.rounded(name, weights.dtype(name))
        if not torch.equal(new, weights(name)):
            changed[first] = None
        return new

    places: dict[str, str] = {}
    total = 0
    for shard, stored in progress(list(shards.items()), "folding, shards"):
        used = {name: weights.made_from(name)[0] for name in stored if weights.made_from(name)}
        if used:
            places |= dict.fromkeys(used, shard)
            total += write_safetensors(
                folder / shard,
                {name: weights.dtype(target) for name, target in used.items()},
                {name: checkpoint.shape(name) for name in used},
                lambda name: weights.as_stored(name, value),
            )
    if (checkpoint.path / INDEX).is_file():
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        (folder / INDEX).write_text(f"{json.dumps(index, indent=2)}\n", encoding="utf-8")
    return tuple(name for name in folded.names.first_names if name in changed)
