"""Small example inputs for a model of transformers, from its configuration alone: enough to trace it, not to use it."""

from typing import Any

import torch
from torch import Tensor, nn

BATCH, LENGTH = 2, 8


def example_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Keyword arguments to call a model of transformers with: random but always the same, on the model's device.

    Text models get 8 tokens, image models one image of the configured size, Whisper one window of the configured
    length; a model with a decoder gets 8 decoder tokens too; all in a batch of 2.
    """
    config, main = getattr(model, "config", None), getattr(model, "main_input_name", None)
    if config is None or main is None:
        raise ValueError(
            f"an example input must be given for {type(model).__name__}: "
            "only models of transformers say in their configuration what they take"
        )
    random = torch.Generator().manual_seed(0)
    shapes = {"pixel_values": _pixels, "input_features": _features}
    if main == "input_ids":
        inputs = {main: _tokens(config, random)}
    elif main in shapes:
        inputs = {main: torch.randn(BATCH, *shapes[main](model), generator=random)}
    else:
        raise ValueError(f"an example input must be given for {type(model).__name__}: no rule for its {main!r}")
    if getattr(config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = _tokens(config, random)
    weight = next(model.parameters())
    return {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }


def _tokens(config: Any, random: torch.Generator) -> Tensor:
    return torch.randint(config.get_text_config().vocab_size, (BATCH, LENGTH), generator=random)


def _pixels(model: nn.Module) -> tuple[int, ...]:
    size = _setting(model, "image_size")
    height, width = (size, size) if isinstance(size, int) else size
    return getattr(model.config, "num_channels", 3), height, width


def _features(model: nn.Module) -> tuple[int, ...]:
    # the encoder's convolutions halve the length
    return _setting(model, "num_mel_bins"), 2 * _setting(model, "max_source_positions")


def _setting(model: nn.Module, name: str) -> Any:
    value = getattr(model.config, name, None)
    if value is None:
        raise ValueError(
            f"an example input must be given for {type(model).__name__}: its configuration does not say {name}"
        )
    return value
