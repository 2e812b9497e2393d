"""A model without its weights: the architecture that a config.json describes, built on the meta device.

Only code of the installed transformers library is used; a config that asks for code of its own is not followed.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normscope.checks import first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_architecture(config: dict[str, Any]) -> nn.Module | None:
    """The model of a config.json with its parameters on the meta device, or None if transformers does not know it.

    >>> model = build_architecture({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10})
    >>> model.h[0].ln_1.weight.is_meta
    True
    """
    import transformers
    from transformers import AutoModel

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        return None
    settings = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        described = transformers.CONFIG_MAPPING[kind].from_dict(_with_special_floats(settings))
        build = named_class(described.architectures) or AutoModel.from_config
        with torch.device("meta"):
            model: nn.Module = build(described)
    except Exception as error:
        raise ValueError(f"config.json does not describe a model of kind {kind!r}: {first_line(error)}") from None
    return model.eval().to("meta")  # some classes make a parameter on the CPU whatever they are told


def named_class(names: object) -> "type[PreTrainedModel] | None":
    """The first model class of transformers among the `architectures` of a config.json; None if there is none.

    >>> named_class(["pipeline", "GPT2LMHeadModel"]).__name__
    'GPT2LMHeadModel'
    """
    import transformers

    for name in names if isinstance(names, list) else []:
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return None


def stored_names(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Parameter of the model → its name in a checkpoint, which may be older, or saved with or without a head.

    transformers knows how it has renamed what it loads: prefixes, moved modules, gamma and beta for weight and bias.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    described = dict(model.named_parameters()) | dict(model.named_buffers())
    transforms = get_model_conversion_mapping(model)  # type: ignore[arg-type]
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    prefix = getattr(model, "base_model_prefix", "") or None
    found: dict[str, str] = {}
    for name in names:
        renamed = name if name in described else rename_source_key(name, renamings, [], prefix, described)[0]
        found.setdefault(renamed, name)
    return found


def _with_special_floats(value: Any) -> Any:
    """A config.json with the numbers that JSON lacks, which transformers stores as {"__float__": "Infinity"}."""
    if isinstance(value, list):
        return [_with_special_floats(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])
    return {key: _with_special_floats(item) for key, item in value.items()}
