"""Which tensors of a model in a half type are held in that type, and the ranges of its inputs.

Norms and softmax often run in float32 whatever the type of the model. A second trace shows where: of the same call, on
the meta device, with the model in the half type.
"""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.models.checkpoint import read_json
from normscope.models.example_inputs import LARGEST_FILE, PROCESSORS
from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import is_float
from normscope.models.second_trace import traced_again


def held_otherwise(model: nn.Module, graph: ModelGraph, dtype: str) -> frozenset[str]:
    """The floating-point nodes of a graph that are not held in this type when the model is."""
    kind: torch.dtype = getattr(torch, dtype)
    try:
        second = traced_again(_without_values(model, kind), graph, lambda value: _on_meta(value, kind))
    except ValueError:
        return frozenset()
    if [(node.name, node.target) for node in second.nodes] != [(node.name, node.target) for node in graph.nodes]:
        return frozenset()
    return frozenset(node.name for node in second.nodes if is_float(node) and node.meta["val"].dtype != kind)


def _without_values(model: nn.Module, kind: torch.dtype) -> nn.Module:
    """A copy on the meta device, in another type."""
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    return copy.deepcopy(model, memo).to(kind)


def _on_meta(value: Any, kind: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.to("meta", kind if value.is_floating_point() else None)


def input_ranges(folder: Path) -> dict[str, tuple[float, float]]:
    """The range of pixel values that the image processor in a folder makes; nothing where there is none."""
    for name in PROCESSORS if folder.is_dir() else ():
        path = folder / name
        if not path.is_file() or path.stat().st_size > LARGEST_FILE:
            continue
        try:
            found = read_json(path)
        except (ValueError, json.JSONDecodeError):
            continue
        inner = found.get("image_processor")
        if (bounds := _pixels(inner if isinstance(inner, dict) else found)) is not None:
            return {"pixel_values": bounds}
    return {}


def _pixels(settings: Mapping[str, Any]) -> tuple[float, float] | None:
    """From 0 to 255, rescaled, minus the mean, over the deviation, channel by channel."""
    rescales, normalizes = settings.get("do_rescale", True), settings.get("do_normalize", False)
    factor = settings.get("rescale_factor", 1 / 255) if rescales else 1.0
    means, deviations = settings.get("image_mean"), settings.get("image_std")
    numbers = [factor, *(means or []), *(deviations or [])] if isinstance(means or [], list) else [None]
    if not all(isinstance(number, (int, float)) for number in numbers) or not isinstance(deviations or [], list):
        return None
    top = 255.0 * factor
    if not normalizes:
        return 0.0, top
    if not means or not deviations or len(means) != len(deviations) or min(deviations) <= 0:
        return None
    pairs = list(zip(means, deviations, strict=True))
    return min((0.0 - mean) / deviation for mean, deviation in pairs), max(
        (top - mean) / deviation for mean, deviation in pairs
    )
