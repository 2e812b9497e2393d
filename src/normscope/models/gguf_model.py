"""A .gguf file as a model of transformers: its configuration, and its tensors under their names in the model.

Both follow the tables and processors of transformers, which also put back in order what llama.cpp stores in another
order: rows of queries and keys of Llama, gains of norms with 1 added, experts apart. Tensors are decoded one at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.checks import first_line, quoted
from normscope.errors import InputError
from normscope.models import transformers_library as library
from normscope.models.checkpoint import Checkpoint, open_checkpoint
from normscope.models.gguf_file import outline

KIND = "general.architecture"
TABLE = "token_embd.weight"
WIDTHS = {  # of experts, which transformers takes from its defaults; here from the last axis but one of these tensors
    "moe_intermediate_size": "ffn_gate_exps.weight",
    "shared_expert_intermediate_size": "ffn_gate_shexp.weight",
}
SCALING = "rope.scaling.type"


def gguf_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """What the config.json of a .gguf file would say; InputError if transformers does not know its architecture."""
    kind = checkpoint.metadata.get(KIND)
    if not isinstance(kind, str) or not library.is_gguf_architecture(kind):
        raise InputError(
            f"{library.version()} must know the architecture of a .gguf file, got {quoted(kind)}: "
            "give the model as a folder in Hugging Face format"
        )
    with library.locked():
        try:
            config = library.gguf_config(outline(checkpoint.path))
        except Exception as error:  # the file can make transformers raise anything
            raise InputError(f"no configuration can be made from the file: {first_line(error)}") from error
    if TABLE in checkpoint.names:  # often it is not said, but counted from the tokens
        config["vocab_size"] = checkpoint.shape(TABLE)[0]
    for setting, ending in WIDTHS.items():
        shapes = (checkpoint.shape(name) for name in checkpoint.names if name.endswith(f".{ending}"))
        if (shape := next(shapes, ())) and len(shape) > 1:
            config[setting] = shape[-2]
    return config


def scaled_positions(checkpoint: Checkpoint) -> str | None:
    """A sentence on positions that a .gguf file scales, which transformers does not read."""
    for key, value in checkpoint.metadata.items():
        if key.endswith(f".{SCALING}") and value != "none":
            return f"{key} is {quoted(value)}, which {library.version()} does not read: positions are not scaled."
    return None


def config_of(path: Path) -> dict[str, Any]:
    """The configuration of a .gguf file."""
    with open_checkpoint(path) as checkpoint:
        return gguf_config(checkpoint)


@dataclass(frozen=True)
class GgufConversion:
    """A tensor of a model, and those of a .gguf file that it is made from."""

    sources: tuple[tuple[str, str], ...]
    target: str
    converter: Any  # the processor of transformers
    names: dict[str, str]  # in the file → in the model

    def keeps_rows(self, rows: int) -> bool:
        """Whether the tensor is one of the file as it is, so that some of its rows can be read alone."""
        numbers = np.arange(rows, dtype=np.float32)[:, None]
        try:
            made = self.converter.process(weights=numbers, name=self.sources[0][1])
        except Exception:  # it needs more than this one tensor
            return False
        return len(self.sources) == 1 and made.name is not None and bool(np.array_equal(made.weights, numbers))

    def made(self, model: nn.Module, read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """The tensor of the model, from those of the file."""
        parsed: dict[str, Any] = {"tensors": {}}
        for _, name in self.sources:
            values = read(name).numpy()
            made = self.converter.process(
                weights=values, name=name, tensor_key_mapping=self.names, parsed_parameters=parsed
            )
            if made.name is not None:
                parsed["tensors"][self.target] = torch.from_numpy(np.ascontiguousarray(made.weights))
        return dict(parsed["tensors"])


def gguf_conversions(checkpoint: Checkpoint, model: nn.Module) -> list[GgufConversion]:
    """How the tensors of a model are made from those of a .gguf file; tensors that the model lacks are left out."""
    processor, names = library.gguf_names(model, checkpoint.metadata[KIND], gguf_config(checkpoint))
    found: dict[str, list[str]] = {}
    for name in checkpoint.names:
        target = names.get(name) or names.get(name.removesuffix(".weight"))
        if target is not None:
            found.setdefault(target, []).append(name)
    return [
        GgufConversion(tuple((name, name) for name in sources), target, processor, names)
        for target, sources in found.items()
    ]
