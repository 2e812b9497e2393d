"""What a config.json may contain: it describes a model, and must not download anything or choose code or sizes freely.

At every depth, and again after transformers has added its defaults:

    ignored     where it came from, and code that it would load: `_name_or_path`, `auto_map`, and everything that
                transformers keeps in its configurations for its own use; an `…_implementation` that transformers
                ships, since all of them compute the same
    refused     an `…_implementation` or a `quant_method` that transformers does not ship, a `…backbone` that is the
                name of a repository or a path, models that are arguments for timm, keys that replace a method, more
                layers than the limit

Anything else that a string in it leads to is stopped by the locks of `transformers_library`, and reported by its key.
"""

import re
from collections.abc import Iterator
from typing import Any

from normscope.checks import quoted, shortened
from normscope.errors import InputError
from normscope.models import transformers_library as library

NOTES = ("auto_map", "name_or_path", "transformers_weights", "tokenizer_class")
MODULES_PER_LAYER = 50
DEEPEST = 40
LAYERS = re.compile(r"(^|_)(layers?|depths?|blocks?|stages?)$")
TABLES = ("id2label", "label2id", "task_specific_params", "vocabulary_map")  # their keys are words, not settings
BARE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")  # like those of models inside timm
FLAG = "--max-modules"


class _Limit:
    modules = 50_000  # of a model: layers and their submodules


class ConfigError(InputError):
    """A config.json that is refused, with the key, its value and what is expected."""

    def __init__(self, key: str, expected: str) -> None:
        super().__init__(f"config.json: {shortened(key, 80)} {expected}")


def allow_modules(count: int) -> int:
    """Set how many modules a model of a config.json may have (default 50,000); return the old limit."""
    if count < 1:
        raise InputError(f"{FLAG} must be 1 or more, got {count}")
    before, _Limit.modules = _Limit.modules, count
    return before


def most_modules() -> int:
    return _Limit.modules


def checked_config(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json without its ignored settings; ConfigError for refused ones.

    >>> checked_config({"model_type": "gpt2", "_name_or_path": "gpt2", "n_layer": 2, "attn_implementation": "sdpa"})
    {'model_type': 'gpt2', 'n_layer': 2}
    >>> checked_config({"backbone_config": None, "backbone": "any/name"})
    Traceback (most recent call last):
    normscope.models.config_rules.ConfigError: config.json: backbone must be described in backbone_config, \
got the name 'any/name': nothing is loaded by name
    """
    checked: dict[str, Any] = _checked(config, "", 0)
    return checked


def key_of(config: dict[str, Any], text: str) -> str | None:
    """The key under which a config holds a text that contains this one, or is contained in it; None if none does."""
    for key, value in _texts(config, ""):
        if value == text:
            return key
    for key, value in _texts(config, ""):
        if len(value) > 2 and (value in text or text in value):
            return key
    return None


def _checked(value: Any, path: str, depth: int) -> Any:
    if depth > DEEPEST:
        raise ConfigError(path, f"must not be nested more than {DEEPEST} deep")
    if isinstance(value, list):
        return [_checked(item, path, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__float__"} and value["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(value["__float__"])  # a number that JSON lacks, as transformers stores it
    kept = {}
    for name, item in value.items():
        key = str(name)
        place = f"{path}.{key}" if path else key
        if key in TABLES:
            kept[name] = item
        elif not _is_left_out(key, item, place):
            _require_description(key, item, place)
            _require_few_layers(key, item, place)
            kept[name] = _checked(item, place, depth + 1)
    return kept


def _is_left_out(key: str, value: Any, place: str) -> bool:
    if key.removesuffix("_internal").endswith("implementation"):
        for _, name in _texts(value, place):
            if name not in library.implementations():
                raise ConfigError(
                    place, f"must be one that transformers ships, got {quoted(name)}: no other code is fetched or run"
                )
        return True
    if library.own_attributes().get(key):
        raise ConfigError(place, "must not be set: it is a method of every configuration of transformers")
    return key in NOTES or key in library.own_attributes()


def _require_description(key: str, value: Any, place: str) -> None:
    if not isinstance(value, str) or not value:
        return
    if key.endswith("backbone") and not BARE_NAME.fullmatch(value):
        raise ConfigError(
            place, f"must be described in {key}_config, got the name {quoted(value)}: nothing is loaded by name"
        )
    if key == "model_type" and value == "timm_wrapper":
        raise ConfigError(place, f"must be a model of transformers, got {quoted(value)}, which passes on to timm")
    if key == "quant_method" and value not in library.quantizers():
        raise ConfigError(place, f"must be one that transformers ships, got {quoted(value)}")


def _require_few_layers(key: str, value: Any, place: str) -> None:
    modules = most_modules()
    most = max(1, modules // MODULES_PER_LAYER)
    counts = value if isinstance(value, list) else [value]
    if LAYERS.search(key) and any(isinstance(count, (int, float)) and count > most for count in counts):
        raise ConfigError(
            place,
            f"must be at most {most}, got {quoted(value)}: a model may have {modules} modules, {FLAG} allows more",
        )


def _texts(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Every text in a value, with the keys that lead to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, path)
