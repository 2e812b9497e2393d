"""A model without its weights: the architecture that a config.json describes, built on the meta device.

Only code of the installed transformers library is used; a config that asks for code of its own is not followed.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from normscope.checks import first_line


def build_architecture(config: dict[str, Any]) -> nn.Module | None:
    """The model of a config.json with its parameters on the meta device, or None if transformers does not know it.

    >>> model = build_architecture({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10})
    >>> model.h[0].ln_1.weight.is_meta
    True
    """
    import transformers
    from transformers import AutoConfig, AutoModel

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        return None
    settings = {key: value for key, value in config.items() if key not in ("model_type", "auto_map")}
    try:
        described = AutoConfig.for_model(kind, **settings)
        names = described.architectures or []
        known = next((found for name in names if (found := getattr(transformers, str(name), None))), None)
        with torch.device("meta"):
            build = known or AutoModel.from_config
            model: nn.Module = build(described)
    except Exception as error:
        raise ValueError(f"config.json does not describe a model of kind {kind!r}: {first_line(error)}") from None
    return model.eval()


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
