"""Settings of `normscope check`: options of the command line over [tool.normscope.check] of pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

from normscope.checks import quoted
from normscope.errors import InputError

KINDS = {"select": list, "ignore": list, "severity": str, "seconds": int | float}
WORDS = {"select": "a list of rules", "ignore": "a list of rules", "severity": "a string", "seconds": "a number"}


def settings(folder: Path, **given: Any) -> dict[str, Any]:
    """The settings that were given, and for the others those of the pyproject.toml in this folder."""
    return {**_configured(folder / "pyproject.toml"), **{name: value for name, value in given.items() if value}}


def _configured(file: Path) -> dict[str, Any]:
    """The section of a file; empty if there is no file, or no section in it."""
    if not file.is_file():
        return {}
    try:
        content: Any = tomllib.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{file} can't be read: {error}") from None
    for name in ("tool", "normscope", "check"):
        content = content.get(name, {})
        if not isinstance(content, dict):
            raise InputError(f"{file}: {name} must be a table, got {quoted(content)}")
    for name, value in content.items():
        where = f"{file}: {quoted(name)} of [tool.normscope.check]"
        if name not in KINDS:
            raise InputError(f"{where} is no setting: they are {', '.join(KINDS)}")
        right = isinstance(value, KINDS[name]) and not isinstance(value, bool)
        if not right or (isinstance(value, list) and not all(isinstance(each, str) for each in value)):
            raise InputError(f"{where} must be {WORDS[name]}, got {quoted(value)}")
    return dict(content)


def explanation(given: str) -> str:
    """The page of a rule, or of all."""
    from normscope.check_model import chosen_rules

    rules = chosen_rules(None if given == "all" else [given], None)
    return "\n\n".join(f"{number} {rule.name}\n\n{rule.page}{_decided_by(rule)}" for number, rule in rules.items())


def _decided_by(rule: Any) -> str:
    from normscope.rules.prose import number

    if rule.threshold is None:
        return ""
    side = "below" if rule.threshold.below else "above"
    return f"\n\nDecided by: {rule.threshold.what}, {side} {number(rule.threshold.value)}."
