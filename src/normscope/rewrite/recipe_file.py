"""Recipes of llm-compressor, as YAML: which layers read what, for the modifiers that scale or rotate between layers.

    NAME_stage:
      NAME_modifiers:
        SmoothQuantModifier:
          mappings: [[[readers…], source], …]
        AWQModifier:
          mappings: [{smooth_layer: source, balance_layers: [readers…]}, …]
        SpinQuantModifier:
          norm_mappings: [{norm: source, linears: [readers…]}, …]

Read and written with PyYAML's safe loader: a recipe holds plain values only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from normscope.checks import first_line, quoted
from normscope.errors import InputError
from normscope.rewrite.quantizer_modules import require_pattern

SMOOTHQUANT, AWQ, SPINQUANT = "SmoothQuantModifier", "AWQModifier", "SpinQuantModifier"
MODIFIERS = (SMOOTHQUANT, AWQ, SPINQUANT)
LARGEST_RECIPE = 2**20  # bytes


@dataclass(frozen=True)
class RecipeMapping:
    """A mapping of a recipe, by patterns: what the source writes is divided, the columns of its readers multiplied."""

    modifier: str
    source: str
    readers: tuple[str, ...]


def read_recipe(path: Path) -> tuple[RecipeMapping, ...]:
    """Every mapping in a recipe; an error if there is none."""
    import yaml

    if path.stat().st_size > LARGEST_RECIPE:
        raise InputError(f"{path} must be a recipe of llm-compressor, but has {path.stat().st_size:,} bytes")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} can't be read as YAML: {first_line(error)}") from None
    found = list(_modifiers(content))
    if not any(name in MODIFIERS for name, _ in found):
        held = ", ".join(dict.fromkeys(name for name, _ in found)) or "none"
        raise InputError(
            f"{path} must have one of {', '.join(MODIFIERS)} in NAME_stage: NAME_modifiers:, got modifiers: {held}"
        )
    return tuple(
        mapping for name, settings in found if name in MODIFIERS for mapping in _mappings(name, settings, path)
    )


def _modifiers(content: Any) -> Iterator[tuple[str, Any]]:
    """Every modifier of every stage, with its settings."""
    for stage, groups in content.items() if isinstance(content, Mapping) else ():
        if str(stage).endswith("_stage") and isinstance(groups, Mapping):
            for group, modifiers in groups.items():
                if str(group).endswith("_modifiers") and isinstance(modifiers, Mapping):
                    yield from ((str(name), settings) for name, settings in modifiers.items())


def _mappings(modifier: str, settings: Any, path: Path) -> Iterator[RecipeMapping]:
    key = "norm_mappings" if modifier == SPINQUANT else "mappings"
    given = settings.get(key) if isinstance(settings, Mapping) else None
    if not isinstance(given, list) or not given:
        raise InputError(
            f"{modifier} in {path} must have a list of {key}, got {quoted(given)}: without one, llm-compressor takes "
            "those that it keeps for the class of the model"
        )
    for number, mapping in enumerate(given):
        where = f"{key}[{number}] of {modifier} in {path}"
        source, readers = _parts(modifier, mapping, where)
        readers = [readers] if isinstance(readers, str) else readers
        if not isinstance(readers, list) or not readers:
            raise InputError(f"{where} must have a list of layers, got {quoted(readers)}")
        checked = tuple(require_pattern(reader, where) for reader in readers)
        yield RecipeMapping(modifier, require_pattern(source, where), checked)


def _parts(modifier: str, mapping: Any, where: str) -> tuple[Any, Any]:
    """The source and the readers of a mapping."""
    if modifier == SMOOTHQUANT:
        if isinstance(mapping, list) and len(mapping) == 2:
            return mapping[1], mapping[0]
        raise InputError(f"{where} must be [[layers…], norm], got {quoted(mapping)}")
    source, readers = ("norm", "linears") if modifier == SPINQUANT else ("smooth_layer", "balance_layers")
    if isinstance(mapping, Mapping) and source in mapping and readers in mapping:
        return mapping[source], mapping[readers]
    raise InputError(f"{where} must have {source} and {readers}, got {quoted(mapping)}")


def written(mappings: Sequence[RecipeMapping], more: Mapping[str, Mapping[str, Any]], notes: Sequence[str]) -> str:
    """A recipe with a stage for each modifier, and notes as comments; `more` are further settings of a modifier."""
    import yaml

    lines = [f"# {note}".rstrip() for note in notes]
    for modifier in MODIFIERS:
        own = [_as_plain(mapping) for mapping in mappings if mapping.modifier == modifier]
        if own:
            stage = modifier.removesuffix("Modifier").lower()
            key = "norm_mappings" if modifier == SPINQUANT else "mappings"
            content = {f"{stage}_stage": {f"{stage}_modifiers": {modifier: {key: own, **more.get(modifier, {})}}}}
            lines.append(yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110).rstrip())
    return "\n".join(lines) + "\n"


def _as_plain(mapping: RecipeMapping) -> Any:
    if mapping.modifier == SMOOTHQUANT:
        return [list(mapping.readers), mapping.source]
    if mapping.modifier == AWQ:
        return {"smooth_layer": mapping.source, "balance_layers": list(mapping.readers)}
    return {"norm": mapping.source, "linears": list(mapping.readers)}
