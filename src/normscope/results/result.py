"""What all results share: a repr, tables, a dictionary, a file.

A file is in safetensors format. Its metadata has `format` ("normscope result 1") and `result`, which is what `to_dict`
returns and `--json` prints; its tensors are the arrays of the result, named by their path in it.
"""

import json
import os
import re
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from normscope.checks import first_line, quoted
from normscope.errors import InputError
from normscope.results.describe import NOT_IN_JSON, members, schema, without_none

FORMAT = "normscope result 1"
ENDINGS = (".safetensors",)
FOLDER_FILE = "folding.json"  # in a folder, beside weights
PACKAGES = "normscope.results"  # the group of entry points that name packages with a file for each type
_TYPES: dict[str, type["Result"]] = {}


@dataclass(frozen=True, repr=False)
class Result:
    """Base class of all results. `kind` is also the name of the file that defines the type.

    The strings name a function as "module:function", which is imported when needed: `checked_by` takes the result
    and checks its certificates, `plotted_by` draws it, `remarked_by` returns sentences on what stands out in it;
    `reread_by` takes the result and those options of `normscope.verify` that it names, and reads what the check needs;
    `shown_by` prints the result on a terminal where tables would be hard to read; `panels_by` describes its panels in
    the report, where they are not in a file of its kind in `normscope.report.panels`.
    """

    kind: ClassVar[str]
    schema_version: ClassVar[int]
    checked_by: ClassVar[str | None]
    plotted_by: ClassVar[str | None]
    remarked_by: ClassVar[str | None]
    reread_by: ClassVar[str | None]
    shown_by: ClassVar[str | None]
    panels_by: ClassVar[str | None]

    def __init_subclass__(
        cls,
        *,
        kind: str,
        schema_version: int = 1,
        checked_by: str | None = None,
        plotted_by: str | None = None,
        remarked_by: str | None = None,
        reread_by: str | None = None,
        shown_by: str | None = None,
        panels_by: str | None = None,
    ) -> None:
        cls.kind, cls.schema_version, cls.shown_by, cls.panels_by = kind, schema_version, shown_by, panels_by
        cls.checked_by, cls.plotted_by, cls.remarked_by, cls.reread_by = checked_by, plotted_by, remarked_by, reread_by
        _TYPES[kind] = cls

    @property
    def holds(self) -> bool | None:
        """Whether every certificate was checked and is right; None where nothing was certified."""
        return None

    def failure(self) -> str | None:
        """Why a command that shows it ends with exit code 1; None if it does not."""
        return "a certificate did not hold when it was checked" if self.holds is False else None

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values: what `--json` prints and `json_schema` describes."""
        return {"type": self.kind, "schema_version": self.schema_version, **_plain(self)}

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """A JSON Schema of `to_dict`, made from the types and notes of the fields."""
        own = schema(cls)
        head = {"type": {"const": cls.kind}, "schema_version": {"const": cls.schema_version}}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": cls.__name__,
            "description": " ".join((cls.__doc__ or "").split()),
            **own,
            "properties": head | own["properties"],
            "required": [*head, *own["required"]],
        }

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the result, arrays included, to a .safetensors file; one that exists is replaced only by force."""
        from normscope.files import require_writable, write_atomically

        target = Path(path)
        require_writable(target, force=force, endings=ENDINGS)
        write_atomically(self.to_bytes(), target)

    def to_bytes(self) -> bytes:
        """The bytes that `save` writes: the same for the same result."""
        from safetensors.numpy import save

        text = json.dumps(self.to_dict(), allow_nan=False)
        content = save(dict(_arrays(self, self.kind)))
        size = int.from_bytes(content[:8], "little")
        # Metadata is written here: the library's order would differ from run to run.
        parts = {"__metadata__": {"format": FORMAT, "result": text}, **json.loads(content[8 : 8 + size])}
        header = json.dumps(parts, separators=(",", ":")).encode()
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + content[8 + size :]

    def plot(self) -> Any:
        """A picture, as a matplotlib figure."""
        if self.plotted_by is None:
            raise InputError(f"{type(self).__name__} has no picture: print it, or save it")
        return named(self.plotted_by)(self)

    def remarks(self) -> list[str]:
        """Sentences on what stands out, most important first."""
        return [] if self.remarked_by is None else list(named(self.remarked_by)(self))

    def __str__(self) -> str:
        from normscope.report.terminal import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        """Tables for notebooks."""
        from normscope.report.notebook import as_html

        return as_html(self)


def named(place: str) -> Any:
    """The function that a string names.

    >>> named("math:sqrt")(4.0)
    2.0
    """
    module, _, function = place.partition(":")
    return getattr(import_module(module), function)


def load(path: str | os.PathLike[str]) -> Result:
    """Load a saved result, without live modules.

    Parameters
    ----------
    path
        A file written by `save` or by a command with -o, or the folder of a folded model.

    Returns
    -------
    Result
        A result of the saved type. Its certificates are not checked: `normscope.verify` does that.

    >>> import tempfile
    >>> import normscope as ns
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ns.selectable([[0.0], [1.0], [3.0]]).save(f"{folder}/keys.safetensors")
    ...     ns.load(f"{folder}/keys.safetensors")
    Selection(3 keys of 1 channels: 2 selectable, 1 never selected)
    """
    place = Path(path)
    return _load_folder(place) if place.is_dir() else load_bytes(place.read_bytes(), str(path))


def load_bytes(content: bytes, name: str) -> Result:
    """The result in the content of a file of that name."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as arrays_in

    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size]) if 0 < size <= len(content) - 8 else {}
        notes = header.get("__metadata__", {}) if isinstance(header, dict) else {}
        if not isinstance(notes, dict) or notes.get("format") != FORMAT:
            raise InputError(f"{name} must be a result saved by normscope, but is not")
        payload = json.loads(notes["result"])
        arrays = arrays_in(content)
    except (SafetensorError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{name} can't be read as a result: {first_line(error)}") from None
    try:
        return _from_payload(payload, arrays)
    except InputError as error:
        raise InputError(f"{name} can't be read as a result: {error}") from None


def _load_folder(folder: Path) -> Result:
    """The result stored as JSON beside the weights of a model."""
    file = folder / FOLDER_FILE
    try:
        return _from_payload(json.loads(file.read_bytes()), {})
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} can't be read as a result: {first_line(error)}") from None


def type_named(kind: str) -> type[Result]:
    """The type of a kind: already registered, or in a file of that name in one of the packages of results."""
    if kind not in _TYPES and re.fullmatch(r"[a-z][a-z_]*", kind):
        packages = ["normscope.results", *(entry.value for entry in entry_points(group=PACKAGES))]
        for package in dict.fromkeys(packages):
            try:
                import_module(f"{package}.{kind}")
            except ModuleNotFoundError:
                continue
            break
    if kind not in _TYPES:
        raise InputError(f"type must be a kind of result, got {quoted(kind)}")
    return _TYPES[kind]


def _from_payload(payload: Any, arrays: dict[str, Any]) -> Result:
    if not isinstance(payload, dict) or not isinstance(payload.get("type"), str):
        raise InputError("it has no type")
    kind = type_named(payload["type"])
    if payload.get("schema_version") != kind.schema_version:
        raise InputError(
            f"schema_version must be {kind.schema_version}, got {quoted(payload.get('schema_version'))}: "
            "save it again with this version of normscope"
        )
    left = dict(arrays)
    result: Result = _built(kind, payload, left, kind.kind)
    if left:
        raise InputError(f"array {quoted(next(iter(left)))} is not part of a {kind.kind}")
    if result.to_dict() != payload:  # derived values must agree with the file
        said = {name for name, value in result.to_dict().items() if payload.get(name) != value} | (
            payload.keys() - result.to_dict().keys()
        )
        raise InputError(f"{quoted(min(said, default='a value'))} does not follow from the rest of the file")
    return result


def _plain(value: Any) -> Any:
    """A value in JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _plain(getattr(value, name)) for name in members(type(value))}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def _built(hint: Any, value: Any, arrays: dict[str, Any], path: str) -> Any:  # noqa: PLR0911
    """A value of this type from its JSON form; its arrays are taken out of `arrays`."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        left_out = NOT_IN_JSON in hint.__metadata__
        return _from_arrays(inner[0], arrays, path) if left_out else _built(inner[0], value, arrays, path)
    if origin in (Union, UnionType):
        return _one_of(inner, value, arrays, path)
    if origin is tuple and isinstance(value, list):
        return tuple(_built(inner[0], each, arrays, f"{path}.{place}") for place, each in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {name: _built(inner[1], each, arrays, f"{path}.{name}") for name, each in value.items()}
    if origin is Literal and value in inner:
        return value
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        return _built_dataclass(hint, value, arrays, path)
    if hint is float and (type(value) is float or (type(value) is int and abs(value) < 2**1023)):
        return float(value)
    if hint in (str, bool, int) and type(value) is hint:
        return value
    raise InputError(f"{path} must be {getattr(hint, '__name__', hint)}, got {quoted(value)}")


def _from_arrays(hint: Any, arrays: dict[str, Any], path: str) -> Any:
    """A value that is not in the JSON: an array, or a dataclass of arrays; None if the file has none of it."""
    kind = without_none(hint)
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return arrays.pop(path, None)
    if not any(name.startswith(f"{path}.") for name in arrays):
        return None
    hints = get_type_hints(kind)
    return kind(**{part.name: _from_arrays(hints[part.name], arrays, f"{path}.{part.name}") for part in fields(kind)})


def _one_of(hints: tuple[Any, ...], value: Any, arrays: dict[str, Any], path: str) -> Any:
    if value is None and NoneType in hints:
        return None
    errors = []
    for hint in hints:
        try:
            return _built(hint, value, arrays, path)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def _built_dataclass(hint: type, value: dict[str, Any], arrays: dict[str, Any], path: str) -> Any:
    hints, given = get_type_hints(hint, include_extras=True), {}
    for each in fields(hint):
        note = getattr(hints[each.name], "__metadata__", ())
        if each.name not in value and NOT_IN_JSON not in note:
            raise InputError(f"{path}.{each.name} is missing")
        given[each.name] = _built(hints[each.name], value.get(each.name), arrays, f"{path}.{each.name}")
    return hint(**given)


def _arrays(value: Any, path: str) -> list[tuple[str, Any]]:
    """All arrays in a value, by their path."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return [(path, np.ascontiguousarray(value))]
    if is_dataclass(value) and not isinstance(value, type):
        return [pair for each in fields(value) for pair in _arrays(getattr(value, each.name), f"{path}.{each.name}")]
    if isinstance(value, tuple):
        return [pair for place, each in enumerate(value) for pair in _arrays(each, f"{path}.{place}")]
    if isinstance(value, dict):
        return [pair for name, each in value.items() for pair in _arrays(each, f"{path}.{name}")]
    return []
