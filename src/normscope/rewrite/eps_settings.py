"""Where the eps of each norm is set, so that it can be changed: in its module, and in the configuration that makes it.

A configuration is not read by names. Every number in it that equals an eps is changed in a copy, the model is built
again without weights, and the modules whose numbers differ are those that it decides. A change of eps is then checked
on the traced call: the numbers of every operation before and after.
"""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import kind_of
from normscope.models.transformers_library import locked
from normscope.results.inventory import FoundNorm
from normscope.rewrite.norm_places import path_of

Key = tuple[str, ...]  # from the configuration of the model to one of its numbers


class EpsSettings:
    """The settings that hold the eps of norms, each with a name; norms without an eps have none."""

    def __init__(self, model: nn.Module, norms: Iterable[FoundNorm], calls: Iterable[str]) -> None:
        found = {path_of(norm): norm for norm in norms}
        self.of_norm: dict[str, str] = {}
        self.fixed: dict[str, str] = {}  # settings that can't be changed, and why
        self._keys: dict[str, Key] = {}
        self._attributes: dict[str, list[tuple[str, str]]] = {}  # by setting: modules and their attributes
        called = set(calls)
        decided = _decided(model, {norm.eps for norm in found.values() if norm.eps})
        for path in called:
            eps, place = found[path].eps, found[path].eps_place
            if not eps or place is None:
                continue
            own = [name for name, value in _numbers(model.get_submodule(path)).items() if value == eps]
            keys = [key for key, modules in decided.items() if (path, own[0] if own else "") in modules]
            setting = ".".join(("config", *keys[0])) if keys else f"{path}.{own[0] if own else 'eps'}"
            self.of_norm[path] = setting
            self._attributes.setdefault(setting, []).extend((path, name) for name in own)
            if place != "inside":
                self.fixed[setting] = f"the eps of {path} stands {place} the root"
            elif len(own) != 1 or (not keys and _configuration(model) is not None):
                self.fixed[setting] = f"the eps of {path} is set by the code of the model, not by its configuration"
            elif keys:
                self._keys[setting] = keys[0]
                others = sorted(module for module, _ in decided[keys[0]] if module not in called)
                if others:
                    self.fixed[setting] = f"{setting} is also that of {others[0]}, which the traced call does not run"

    def multiply(self, model: nn.Module, setting: str, factor: float) -> None:
        """Change an eps in all modules that have it, and in the configuration."""
        for path, name in self._attributes[setting]:
            module = model.get_submodule(path)
            setattr(module, name, getattr(module, name) * factor)
        if setting in self._keys:
            *parts, last = self._keys[setting]
            config = _configuration(model)
            for part in parts:
                config = getattr(config, part)
            setattr(config, last, getattr(config, last) * factor)


def eps_identities(before: ModelGraph, after: ModelGraph, factors: Mapping[str, float]) -> Iterator[tuple[str, bool]]:
    """Whether two traced calls differ in nothing but numbers of norms, which are so many times as large, in words.

    A norm that adds its eps in half precision must not lose it: an input of zeros would be divided by 0.
    """
    norm_of = {node: norm for norm in factors for call in before.calls_of(norm) for node in call}
    changed: dict[str, list[bool]] = {norm: [] for norm, factor in factors.items() if factor != 1}
    lost: dict[str, str] = {}
    same = len(before.nodes) == len(after.nodes)
    for one, other in zip(before.nodes, after.nodes, strict=False):
        same = same and one.name == other.name and str(one.target) == str(other.target)
        numbers = [_leaves(node) for node in (one, other)]
        if numbers[0] == numbers[1]:
            continue
        norm = norm_of.get(one)
        if norm not in changed or len(numbers[0]) != len(numbers[1]):
            same = False
            continue
        pairs = [(a, b) for a, b in zip(*numbers, strict=True) if a != b]
        changed[norm] += [isinstance(a, float) and b == a * factors[norm] for a, b in pairs]
        if kind_of(other) == "add" and not all(torch.tensor(b, dtype=other.meta["val"].dtype) for _, b in pairs):
            lost[norm] = str(other.meta["val"].dtype).removeprefix("torch.")
    yield "every operation is that of the original but for the eps of norms", same
    for norm, right in changed.items():
        yield f"the eps of {norm} is {factors[norm]:g} times that of the original", bool(right) and all(right)
        if norm in lost:
            yield f"the eps of {norm} is not 0 in {lost[norm]}, in which it is added", False


def same_numbers(one: nn.Module, other: nn.Module) -> bool:
    """Whether the modules of two models hold the same numbers, such as eps, beside their tensors."""
    return {path: _numbers(module) for path, module in one.named_modules()} == {
        path: _numbers(module) for path, module in other.named_modules()
    }


def _numbers(module: nn.Module) -> dict[str, float]:
    return {name: value for name, value in vars(module).items() if isinstance(value, float) and math.isfinite(value)}


def _leaves(node: Node) -> list[Any]:
    return [leaf.name if isinstance(leaf, Node) else leaf for leaf in pytree.tree_leaves((node.args, node.kwargs))]


def _configuration(model: nn.Module) -> Any:
    """The configuration of a model of transformers; None for any other."""
    config = getattr(model, "config", None)
    return config if hasattr(config, "to_diff_dict") else None


def _decided(model: nn.Module, values: set[float | None]) -> dict[Key, set[tuple[str, str]]]:
    """By key of the configuration with one of these values: the modules and attributes that it decides."""
    config = _configuration(model)
    keys = [] if config is None else [key for key, value in _floats(config) if value in values]
    if not keys:
        return {}
    plain = _built(model, config)
    decided: dict[Key, set[tuple[str, str]]] = {}
    for key in keys:
        other = copy.deepcopy(config)
        owner = other
        for part in key[:-1]:
            owner = getattr(owner, part)
        setattr(owner, key[-1], 4 * getattr(owner, key[-1]))
        changed = _built(model, other)
        decided[key] = {
            (path, name)
            for path, module in plain.named_modules()
            for name, value in _numbers(module).items()
            if _numbers(changed.get_submodule(path)).get(name) != value
        }
    return decided


def _floats(config: Any, seen: frozenset[int] = frozenset()) -> Iterator[tuple[Key, float]]:
    """The numbers of a configuration and of those in it."""
    for name, value in vars(config).items():
        if isinstance(value, float):
            yield (name,), value
        elif hasattr(value, "to_diff_dict") and id(value) not in seen:
            yield from (((name, *key), found) for key, found in _floats(value, seen | {id(config)}))


def _built(model: nn.Module, config: Any) -> nn.Module:
    with locked(), torch.device("meta"):
        built: nn.Module = type(model)(copy.deepcopy(config))
    return built
