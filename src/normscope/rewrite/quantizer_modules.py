"""The modules of a model as llm-compressor sees them, and what a pattern of a recipe matches among them.

A pattern is the name of a module, a class, or `re:` and a regular expression that must match from the start of a name.
The patterns of a mapping are matched together, in the order of the modules: a set is complete once every pattern has a
match, and ends where the next match lies outside the part of the model that the set is in. So one mapping stands for
one set in every layer.

Experts stored as stacks of matrices are separate linear layers there: `experts.0.up_proj`, …
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from normscope.checks import quoted
from normscope.errors import InputError

PATTERN = "re:"
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class MappingError(Exception):
    """Why llm-compressor stops with an error at a mapping."""


@dataclass(frozen=True)
class Part:
    """Where the weight of a module is stored: a tensor, or a part of a stack with as many axes as a matrix."""

    tensor: str
    place: tuple[Any, ...] = ()  # index into the tensor; () is all of it
    turned: bool = False  # the part is stored as inputs × outputs, and llm-compressor sees its transpose

    def of(self, values: Tensor) -> Tensor:
        """The part of the values of the tensor, as llm-compressor sees it; it shares their memory."""
        part = values[self.place] if self.place else values
        return part.T if self.turned else part


@dataclass(frozen=True)
class QuantizerModule:
    """A module that a recipe can name."""

    name: str
    classes: tuple[str, ...]
    weight: Part | None = None
    bias: Part | None = None

    def matches(self, pattern: str) -> bool:
        if pattern.startswith(PATTERN):
            return re.match(pattern.removeprefix(PATTERN), self.name) is not None
        return pattern == self.name or pattern in self.classes


ModuleSet = dict[str, list[QuantizerModule]]  # by pattern


def quantizer_modules(model: nn.Module) -> tuple[QuantizerModule, ...]:
    """Every module, in the order in which the model holds them."""
    found: list[QuantizerModule] = []
    experts: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(f"{stack}.") for stack in experts):
            continue  # replaced by the experts
        classes = tuple(kind.__name__ for kind in type(module).__mro__ if issubclass(kind, nn.Module))
        own = dict(module.named_parameters(recurse=False))
        prefix = f"{name}." if name else ""
        parts = {key: Part(f"{prefix}{key}") for key in ("weight", "bias") if key in own}
        found.append(QuantizerModule(name, classes, parts.get("weight"), parts.get("bias")))
        if _is_stack(module, own):
            experts.append(name)
            found += _experts(name, module, own)
    return tuple(found)


def _is_stack(module: nn.Module, own: dict[str, nn.Parameter]) -> bool:
    """Whether a module holds the matrices of its experts as stacks, and says how they are stored."""
    stacks = {"down_proj", "gate_up_proj" if getattr(module, "has_gate", False) else "up_proj"}
    stored = all(key in own and own[key].ndim == 3 for key in stacks)
    return stored and isinstance(getattr(module, "is_transposed", None), bool)


def _experts(name: str, module: Any, own: dict[str, nn.Parameter]) -> Iterator[QuantizerModule]:
    turned = module.is_transposed
    for number in range(len(own["down_proj"])):
        yield QuantizerModule(f"{name}.{number}", ("Module",))
        for layer in ("up_proj", "gate_proj", "down_proj") if module.has_gate else ("up_proj", "down_proj"):
            stack, rows = layer, slice(None)
            if module.has_gate and layer != "down_proj":
                stack = "gate_up_proj"
                rows = _half(own[stack].shape[2 if turned else 1], layer, getattr(module, "is_concatenated", True))
            place = (number, slice(None), rows) if turned else (number, rows)
            bias = Part(f"{name}.{stack}_bias", (number, rows)) if f"{stack}_bias" in own else None
            yield QuantizerModule(
                f"{name}.{number}.{layer}", ("Linear", "Module"), Part(f"{name}.{stack}", place, turned), bias
            )


def _half(outputs: int, layer: str, concatenated: bool) -> slice:
    """The outputs of gate or up among those of both."""
    if not concatenated:
        return slice(0 if layer == "gate_proj" else 1, None, 2)
    return slice(None, outputs // 2) if layer == "gate_proj" else slice(outputs // 2, None)


def matching_sets(modules: Sequence[QuantizerModule], patterns: Sequence[str]) -> list[ModuleSet]:
    """The sets of modules that the patterns of a mapping stand for.

    >>> model = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(2), "up": nn.Linear(2, 2)}) for _ in range(2))
    >>> sets = matching_sets(quantizer_modules(model), ["re:.*norm", "re:.*up"])
    >>> [[module.name for found in each.values() for module in found] for each in sets]
    [['0.norm', '0.up'], ['1.norm', '1.up']]
    """
    sets: list[ModuleSet] = []
    current: ModuleSet = {pattern: [] for pattern in patterns}
    around = ""
    for module in modules:
        matched = [pattern for pattern in current if module.matches(pattern)]
        if len(matched) > 1:
            raise MappingError(f"{module.name} matches two of its patterns, {matched[0]} and {matched[1]}")
        if not matched:
            continue
        begun = any(current.values())
        wider = _common(around, module.name) if begun else module.name
        if begun and all(current.values()) and wider != around:
            sets.append(current)
            current, wider = {pattern: [] for pattern in patterns}, module.name
        current[matched[0]].append(module)
        around = wider
    missing = [pattern for pattern, found in current.items() if not found]
    if not missing:
        return [*sets, current]
    if any(current.values()):
        matched = [pattern for pattern, found in current.items() if found]
        raise MappingError(f"{', '.join(matched)} matches modules for which {', '.join(missing)} matches none")
    return sets


def _common(one: str, other: str) -> str:
    """The innermost part of the model that holds both."""
    parts: list[str] = []
    for left, right in zip(one.split("."), other.split("."), strict=False):
        if left != right:
            break
        parts.append(left)
    return ".".join(parts)


def patterns_for(
    modules: Sequence[QuantizerModule], wanted: Sequence[tuple[str, tuple[str, ...]]]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Patterns that stand for exactly these sets: the name of one module, and the names of those that belong to it.

    >>> model = nn.ModuleDict({"layers": nn.ModuleList(
    ...     nn.ModuleDict({"norm": nn.LayerNorm(2), "up": nn.Linear(2, 2)}) for _ in range(3))})
    >>> names = [(f"layers.{number}.norm", (f"layers.{number}.up",)) for number in range(3)]
    >>> list(patterns_for(quantizer_modules(model), names))
    [('re:layers[.][0-9]+[.]norm$', ('re:layers[.][0-9]+[.]up$',))]
    >>> list(patterns_for(quantizer_modules(model), names[:2]))
    [('re:layers[.](0|1)[.]norm$', ('re:layers[.](0|1)[.]up$',))]
    """
    alike: dict[tuple[str, tuple[str, ...]], list[tuple[str, tuple[str, ...]]]] = {}
    for source, others in wanted:
        general = tuple(dict.fromkeys(_general(other) for other in others))
        alike.setdefault((_general(source), general), []).append((source, others))
    for (source, others), sets in alike.items():
        numbers = "|".join(dict.fromkeys(found[0] for name, _ in sets if (found := NUMBER.findall(name))))
        some = f"({numbers})" if "|" in numbers else numbers
        for first in ("[0-9]+", some):
            tried = _numbered(source, first), tuple(_numbered(other, first) for other in others)
            if _stands_for(modules, tried, sets):
                yield tried
                break
        else:
            yield from sets


def any_of(names: Sequence[str]) -> tuple[str, ...]:
    """Patterns for single names, those that differ only in their numbers in one; each matches these names at least."""
    return tuple(dict.fromkeys(_numbered(_general(name), "[0-9]+") for name in names))


def _general(name: str) -> str:
    return NUMBER.sub("0", name)


def _numbered(name: str, first: str) -> str:
    """A regular expression for all names that differ from this one in their numbers; a name without numbers stays."""
    if not NUMBER.search(name):
        return name
    head, tail = NUMBER.split(name, maxsplit=1)
    parts = [head, *NUMBER.split(tail)]
    escaped = [re.escape(part).replace(r"\.", "[.]") for part in parts]
    return f"{PATTERN}{escaped[0]}{first}{'[0-9]+'.join(escaped[1:])}$"


def _stands_for(
    modules: Sequence[QuantizerModule], tried: tuple[str, tuple[str, ...]], sets: list[tuple[str, tuple[str, ...]]]
) -> bool:
    source, others = tried
    if source in others:
        return False
    try:
        found = matching_sets(modules, (source, *others))
    except MappingError:
        return False
    names = [
        ([module.name for module in each[source]], {module.name for other in others for module in each[other]})
        for each in found
    ]
    return names == [([name], set(readers)) for name, readers in sets]


def require_pattern(pattern: Any, where: str) -> str:
    """A pattern of a recipe, checked."""
    if not isinstance(pattern, str) or not pattern:
        raise InputError(f"{where} must be the name of a module or re: and a regular expression, got {quoted(pattern)}")
    if pattern.startswith(PATTERN):
        try:
            re.compile(pattern.removeprefix(PATTERN))
        except re.error as error:
            raise InputError(f"{where} must be a regular expression, got {quoted(pattern)}: {error}") from None
    return pattern
