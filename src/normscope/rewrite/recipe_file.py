"""Recipes of llm-compressor, as YAML: which layers read what, for the modifiers that scale or rotate between layers.

    NAME_stage:
      NAME_modifiers:
        SmoothQuantModifier:
          mappings: [[[readers…], source], …]
        AWQModifier:
          mappings: [{smooth_layer: source, balance_layers: [readers…]}, …]
        SpinQuantModifier:
          norm_mappings: [{norm: source, linears: [readers…]}, …]
          mappings: {embedding: what is centred, …}
          transform_config: {config_groups: {R1: {type: hadamard, apply: [{targets: …, location: …}, …]}}}

Without a transform_config, llm-compressor 0.14 replaces the mappings of SpinQuant by its own. With one, it reads of
`mappings` only the embedding, whose mean it subtracts.

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


@dataclass(frozen=True)
class RecipeRotation:
    """A rotation of a recipe, by patterns: outputs of the writers are rotated, inputs of the readers rotated back."""

    name: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    fused: tuple[RecipeMapping, ...]  # norms whose gain its readers take over first
    orthogonal: bool = True


@dataclass(frozen=True)
class RecipeCentring:
    """Tables of a recipe, by a pattern, whose rows lose their mean."""

    table: str


Step = RecipeMapping | RecipeRotation | RecipeCentring
UNUSED = "none"  # a pattern that matches no module


def read_recipe(path: Path) -> tuple[Step, ...]:
    """Every mapping and rotation in a recipe; an error if there is none."""
    import yaml

    if path.stat().st_size > LARGEST_RECIPE:
        raise InputError(f"{path} must be a recipe of llm-compressor, but has {path.stat().st_size:,} bytes")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise InputError(f"{path} can't be read as YAML: {where}{error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} can't be read as YAML: {first_line(error)}") from None
    found = list(_modifiers(content))
    if not any(name in MODIFIERS for name, _ in found):
        held = ", ".join(dict.fromkeys(name for name, _ in found)) or "none"
        raise InputError(
            f"{path} must have one of {', '.join(MODIFIERS)} in NAME_stage: NAME_modifiers:, got modifiers: {held}"
        )
    return tuple(step for name, settings in found if name in MODIFIERS for step in _steps(name, settings, path))


def _modifiers(content: Any) -> Iterator[tuple[str, Any]]:
    """Every modifier of every stage, with its settings."""
    for stage, groups in content.items() if isinstance(content, Mapping) else ():
        if str(stage).endswith("_stage") and isinstance(groups, Mapping):
            for group, modifiers in groups.items():
                if str(group).endswith("_modifiers") and isinstance(modifiers, Mapping):
                    yield from ((str(name), settings) for name, settings in modifiers.items())


def _steps(modifier: str, settings: Any, path: Path) -> Iterator[Step]:
    mappings = tuple(_mappings(modifier, settings, path))
    yield from mappings
    if modifier == SPINQUANT:
        groups = settings.get("transform_config")
        groups = groups.get("config_groups") if isinstance(groups, Mapping) else None
        if not isinstance(groups, Mapping) or not groups:
            raise InputError(
                f"{SPINQUANT} in {path} must have a transform_config with config_groups, got {quoted(groups)}: without "
                "one, llm-compressor replaces its mappings by those that it keeps for the class of the model"
            )
        tables = settings.get("mappings")
        if isinstance(tables, Mapping) and tables.get("embedding") is not None:
            yield RecipeCentring(require_pattern(tables["embedding"], f"mappings.embedding of {SPINQUANT} in {path}"))
        for name, group in groups.items():
            yield _rotation(str(name), group, mappings, f"config_groups.{name} of {SPINQUANT} in {path}")


def _rotation(name: str, group: Any, fused: tuple[RecipeMapping, ...], where: str) -> RecipeRotation:
    applied = group.get("apply") if isinstance(group, Mapping) else None
    if not isinstance(applied, list) or not all(isinstance(each, Mapping) for each in applied):
        raise InputError(f"{where} must have a list to apply, got {quoted(applied)}")
    if group.get("head_dim") is not None:
        raise InputError(f"{where} rotates heads: only rotations of whole streams can be checked, without head_dim")
    sides: dict[tuple[Any, bool], list[str]] = {("weight_output", False): [], ("weight_input", True): []}
    for each in applied:
        side = each.get("location"), bool(each.get("inverse", False))
        if side not in sides:
            raise InputError(
                f"{where} must have weight_output, and weight_input with inverse: true, got {quoted(side)}: rotations "
                "while the model runs can't be checked"
            )
        targets = each.get("targets")
        targets = targets if isinstance(targets, list) else [targets]
        sides[side] += [require_pattern(target, where) for target in targets]
    writers, readers = (tuple(targets) for targets in sides.values())
    return RecipeRotation(name, writers, readers, fused, group.get("type") != "random-matrix")


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


def written(steps: Sequence[Step], notes: Sequence[str]) -> str:
    """A recipe with a stage for each modifier, and notes as comments."""
    import yaml

    lines = [f"# {note}".rstrip() for note in notes]
    for modifier in MODIFIERS:
        own = [_as_plain(step) for step in steps if isinstance(step, RecipeMapping) and step.modifier == modifier]
        if own:
            stage = modifier.removesuffix("Modifier").lower()
            settings: dict[str, Any] = {"norm_mappings" if modifier == SPINQUANT else "mappings": own}
            if modifier == SPINQUANT:
                settings |= _rotations([step for step in steps if isinstance(step, RecipeRotation)])
            content = {f"{stage}_stage": {f"{stage}_modifiers": {modifier: settings}}}
            lines.append(yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=110).rstrip())
    return "\n".join(lines) + "\n"


def _rotations(rotations: Sequence[RecipeRotation]) -> dict[str, Any]:
    """Settings for these rotations, in which nothing is centred."""
    names = ("embedding", "attn", "attn_q", "attn_k", "attn_v", "attn_o", "lm_head")
    groups = {
        rotation.name: {
            "type": "hadamard",
            "apply": [
                {"targets": list(rotation.writers), "location": "weight_output"},
                {"targets": list(rotation.readers), "location": "weight_input", "inverse": True},
            ],
        }
        for rotation in rotations
    }
    unused = {**dict.fromkeys(names, UNUSED), "mlp_in": [UNUSED], "mlp_out": [UNUSED]}
    return {"mappings": unused, "transform_config": {"config_groups": groups}}


def _as_plain(mapping: RecipeMapping) -> Any:
    if mapping.modifier == SMOOTHQUANT:
        return [list(mapping.readers), mapping.source]
    if mapping.modifier == AWQ:
        return {"smooth_layer": mapping.source, "balance_layers": list(mapping.readers)}
    return {"norm": mapping.source, "linears": list(mapping.readers)}
