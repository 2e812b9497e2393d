"""Small example inputs for a model of transformers, by its configuration: enough to trace it, not to use it.

The inputs of a model follow from its main input, the parameters of its forward and its configuration; no class is known
by name. Sizes that the configuration leaves open come from the processor in the model's folder, or are small.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError

BATCH, LENGTH = 2, 8
IMAGE, SOUND, SPECTRA = 64, 4096, 64  # default numbers of pixels, samples and spectra
GRID = (2, 4)  # patches of an image that comes as patches
MOST_VALUES = 2**28  # of one input: 1 GB of float32
LARGEST_FILE = 2**20  # bytes of a processor's file
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
PLACEHOLDERS = ("image_token", "video_token", "audio_token")  # tokens that stand for pictures and sounds


def example_inputs(model: nn.Module, folder: Path | None = None) -> dict[str, Tensor]:
    """Keyword arguments to call a model of transformers with: random but always the same, on the model's device.

    Text models get 8 tokens, image and video models pictures of the configured size, audio models spectra or a short
    sound; models of two towers get both, a model with a decoder 8 decoder tokens too; all in a batch of 2. `folder` is
    where the files of a processor are, if it is not the one that the model was loaded from.
    """
    main = getattr(model, "main_input_name", None)
    if getattr(model, "config", None) is None or main is None:
        raise _missing(model, "only models of transformers say in their configuration what they take")
    facts = _Facts(model, folder)
    inputs: dict[str, Tensor] = {}
    for name in _taken(facts, [main] if isinstance(main, str) else list(main)):
        if name not in RULES:
            raise _missing(model, f"no rule for its {name!r}")
        inputs[name] = RULES[name](facts)
    weight = next(model.parameters())
    return {
        name: value.to(weight.device, weight.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }


def _missing(model: nn.Module, why: str) -> InputError:
    return InputError(
        f"an example input must be given for {type(model).__name__}: {why} (--inputs FILE, or inputs= in Python)"
    )


class _Facts:
    """Settings of a model: of its configuration with all its parts, and of its processor."""

    def __init__(self, model: nn.Module, folder: Path | None) -> None:
        self.model: nn.Module = model
        self.config: Any = model.config
        self.random = torch.Generator().manual_seed(0)
        self.parameters = inspect.signature(model.forward).parameters
        loaded_from = getattr(model, "name_or_path", None)
        self._folder = folder or (Path(loaded_from) if isinstance(loaded_from, str) and loaded_from else None)

    def find(self, *names: str) -> Any:
        """The first of these settings that the configuration, a part of it or the processor has; None if none does."""
        for place in chain(_parts(self.config), self._processors()):
            for name in names:
                value = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
                if value is not None:
                    return value
        return None

    def size(self, *names: str, default: int | None = None) -> int:
        """A setting that is a count."""
        value = self.find(*names)
        if value is None and default is not None:
            return default
        if value is None:
            raise _missing(self.model, f"its configuration does not say {names[0]}")
        if type(value) is not int or value < 1:
            raise InputError(f"{names[0]} in the configuration must be a whole number, 1 or more, got {value!r:.60}")
        return value

    def pair(self, *names: str, default: int | None = None) -> tuple[int, int]:
        """A setting that is a height and a width, in any notation."""
        value = self.find(*names)
        if isinstance(value, dict):
            keys = next((keys for keys in EDGES if value.keys() >= set(keys)), None)
            value = None if keys is None else [value[key] for key in keys]
        elif isinstance(value, int):
            value = [value]
        if value is None and default is not None:
            value = [default]
        if value is None:
            raise _missing(self.model, f"its configuration does not say {names[0]}")
        sizes = list(value) if isinstance(value, (list, tuple)) else []
        if len(sizes) not in (1, 2) or any(type(size) is not int or size < 1 for size in sizes):
            raise InputError(f"{names[0]} in the configuration must be one or two whole numbers, got {value!r:.60}")
        return sizes[0], sizes[-1]

    def floats(self, *shape: int) -> Tensor:
        """A batch of random numbers; unreasonable sizes are refused before memory is allocated."""
        if BATCH * prod(shape) > MOST_VALUES:
            sizes = " × ".join(map(str, (BATCH, *shape)))
            raise _missing(self.model, f"its configuration asks for {sizes} numbers, and {MOST_VALUES} are the limit")
        return torch.randn(BATCH, *shape, generator=self.random)

    def tokens(self, config: Any) -> Tensor:
        """Tokens of a vocabulary, without special tokens where others remain."""
        size = getattr(config, "vocab_size", None) or self.size("vocab_size")
        settings = [setting for part in _parts(self.config) for setting in vars(part).items()]
        special = {value for name, value in settings if "token_i" in name and isinstance(value, int)}
        usable = [token for token in range(min(size, 1024)) if token not in special] or [0]
        return torch.tensor(usable)[torch.randint(len(usable), (BATCH, LENGTH), generator=self.random)]

    def picture(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        height, width = self.pair("image_size", "crop_size", "size", default=IMAGE)
        return self.size("num_channels", "in_chans", default=3), height, width

    def _processors(self) -> Iterator[dict[str, Any]]:
        """The settings of the processor files: each file as a whole, then its nested objects."""
        for name in PROCESSORS if self._folder is not None else ():
            path = Path(self._folder or "") / name
            if not path.is_file() or path.stat().st_size > LARGEST_FILE:
                continue
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (ValueError, RecursionError):
                raise InputError(f"{path} must be JSON: the file is damaged") from None
            if isinstance(content, dict):
                yield content
                yield from (part for part in content.values() if isinstance(part, dict))


EDGES = (("height", "width"), ("shortest_edge",), ("longest_edge",))


def _parts(config: Any) -> Iterator[Any]:
    """A configuration and those inside it."""
    yield config
    for part in vars(config).values():
        if hasattr(part, "model_type") and hasattr(part, "to_dict"):
            yield from _parts(part)


def _taken(facts: _Facts, main: list[str]) -> list[str]:
    """The parameters of forward that an example needs."""
    known = facts.parameters
    needed = [
        name
        for name, parameter in known.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    names = dict.fromkeys([*(name for name in main if name in known), *needed])
    parts = list(_parts(facts.config))
    if not any(name.startswith(PLACEHOLDERS) for part in parts for name in vars(part)):
        for name, settings in TOWERS.items():
            if name in known and any(getattr(part, setting, None) for part in parts for setting in settings):
                names[name] = None
    for name, *companions in COMPANIONS:
        if name in names and known.keys() >= set(companions):
            names |= dict.fromkeys(companions)
    if getattr(facts.config, "is_encoder_decoder", False) and "decoder_input_ids" in known:
        names["decoder_input_ids"] = None
    return list(names)


# A model has a further input if its configuration describes one, unless tokens stand for it.
TOWERS = {
    "input_ids": ("vocab_size",),
    "pixel_values": ("image_size", "num_patches"),
    "input_features": ("num_mel_bins",),
    "input_values": ("audio_config",),
}
COMPANIONS = (  # an input and its companions, if forward takes all of them
    ("pixel_values", "spatial_shapes", "pixel_attention_mask"),
    ("pixel_values", "input_points"),
    ("input_features", "is_longer"),
)


def _input_ids(facts: _Facts) -> Tensor:
    text = getattr(facts.config, "text_config", None)
    return facts.tokens(facts.config if text is None else text)


def _decoder_input_ids(facts: _Facts) -> Tensor:
    return facts.tokens(facts.config.get_text_config(decoder=True))


def _pixel_values(facts: _Facts) -> Tensor:
    if "spatial_shapes" in facts.parameters:  # images of any shape, as patches
        return facts.floats(prod(GRID), facts.size("num_channels", default=3) * prod(facts.pair("patch_size")))
    frames = () if facts.find("num_frames") is None else (facts.size("num_frames"),)
    return facts.floats(*frames, *facts.picture())


def _videos(facts: _Facts) -> Tensor:
    return facts.floats(facts.size("frames_per_clip", "num_frames"), *facts.picture())


def _input_values(facts: _Facts) -> Tensor:
    """Spectra one after the other, or a sound: long enough for the convolutions that begin with one channel of it."""
    if facts.find("num_mel_bins") is not None and facts.find("max_length") is not None:
        return facts.floats(facts.size("max_length"), facts.size("num_mel_bins"))
    layers: list[nn.Conv1d] = []
    for layer in (module for module in facts.model.modules() if isinstance(module, nn.Conv1d)):
        if layer.in_channels == (layers[-1].out_channels if layers else 1):
            layers.append(layer)
        elif layers:
            break
    samples = LENGTH if layers else SOUND
    for layer in reversed(layers):
        samples = (samples - 1) * layer.stride[0] + layer.dilation[0] * (layer.kernel_size[0] - 1) + 1
    channels = () if facts.find("audio_channels") is None else (facts.size("audio_channels"),)
    return facts.floats(*channels, samples)


def _input_features(facts: _Facts) -> Tensor:
    """Spectra: as a picture, channel by channel for convolutions that halve their number, or one after the other."""
    bins = facts.size("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim", "feature_size")
    if facts.find("spec_size") is not None:
        side = facts.size("spec_size")
        return facts.floats(4 if facts.find("enable_fusion") else 1, side * (side // bins), bins)
    if facts.find("num_mel_bins") is not None and facts.find("max_source_positions") is not None:
        return facts.floats(bins, 2 * facts.size("max_source_positions"))
    return facts.floats(SPECTRA, bins)


RULES: dict[str, Callable[[_Facts], Tensor]] = {
    "input_ids": _input_ids,
    "decoder_input_ids": _decoder_input_ids,
    "pixel_values": _pixel_values,
    "pixel_values_videos": _videos,
    "input_values": _input_values,
    "input_features": _input_features,
    "spatial_shapes": lambda facts: torch.tensor([GRID] * BATCH),
    "pixel_attention_mask": lambda facts: torch.ones(BATCH, prod(GRID), dtype=torch.long),
    "is_longer": lambda facts: torch.zeros(BATCH, 1, dtype=torch.bool),
    "input_points": lambda facts: facts.floats(1, 1, 2),
    "past_values": lambda facts: facts.floats(
        facts.size("context_length"), facts.size("num_input_channels", default=1)
    ),
}
