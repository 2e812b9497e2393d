"""How a result describes itself: the type of a field or property carries its heading, meaning and format.

    @dataclass(frozen=True)
    class LayerRange:
        layer: Annotated[str, Column("layer", "The linear layer.")]
        high: Annotated[float | None, Column("highest output", "No output is above this, whatever the input.", ".4g")]

The dataclass stays plain. Terminal, notebook, page, CSV and JSON Schema are made from these notes and nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}
NOT_IN_JSON = "not in the JSON"  # Annotated[Floats, NOT_IN_JSON]: arrays are saved in the same file, modules are not
MISSING = "–"


@dataclass(frozen=True)
class Column:
    """On a field or property of a row.

    >>> Column("size", "How large it is.", ",").text(12345), Column("size", "How large it is.").text(None)
    ('12,345', '–')
    """

    heading: str
    meaning: str  # one sentence: legend, tooltip, description in the JSON Schema
    format: str | Callable[[Any], str] = ""
    brief: bool = True  # False: on a terminal only with --all; eight brief columns at most

    def text(self, value: Any) -> str:
        if value is None or value == ():
            return MISSING
        return self.format(value) if callable(self.format) else format(value, self.format)


@dataclass(frozen=True)
class Table:
    """On a field or property of a result that holds rows. In the texts, {0.model} stands for a field of the result."""

    title: str
    empty: str = ""  # shown instead of a table without rows
    most: int | None = None  # rows on a terminal and in a notebook; None: all
    brief: bool = True  # False: on a terminal only with --all


@dataclass(frozen=True)
class InRow:
    """On a field of a row: the columns of its value join that row; if `brief` names some, only these are brief."""

    brief: tuple[str, ...] | None = None


IN_ROW = InRow()  # Annotated[Landing | None, IN_ROW]


@dataclass(frozen=True)
class Shown:
    """A table as it is shown: columns, the values of every row, and their texts."""

    table: Table
    title: str
    columns: tuple[Column, ...]
    numeric: tuple[bool, ...]
    values: list[list[Any]]

    @property
    def cells(self) -> list[list[str]]:
        return [[column.text(value) for column, value in zip(self.columns, row, strict=True)] for row in self.values]


def members(owner: type) -> dict[str, Any]:
    """The members in the JSON: the types of fields, then of properties, with their notes."""
    hints = get_type_hints(owner, include_extras=True)
    for base in reversed(owner.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, property) and not name.startswith("_"):
                hints[name] = get_type_hints(value.fget, include_extras=True)["return"]
    kept = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    return {name: hint for name, hint in kept.items() if NOT_IN_JSON not in _notes(hint)}


def annotated(owner: type, kind: type) -> Iterator[tuple[str, Any, Any]]:
    """Members with a note of this kind: name, note, type."""
    for name, hint in members(owner).items():
        yield from ((name, note, get_args(hint)[0]) for note in _notes(hint) if isinstance(note, kind))


def columns_of(row: type) -> Iterator[tuple[tuple[str, ...], Column, Any]]:
    """The columns of a row, including those of nested values: attribute path, note and type."""
    for name, hint in members(row).items():
        for note in _notes(hint):
            if isinstance(note, Column):
                yield (name,), note, get_args(hint)[0]
            elif isinstance(note, InRow):
                for path, column, kind in columns_of(without_none(get_args(hint)[0])):
                    brief = column.brief and (note.brief is None or path[0] in note.brief)
                    yield (name, *path), replace(column, brief=brief), kind


def tables_of(result: Any, *, brief: bool) -> Iterator[Shown]:
    """Every table of a result, brief columns first, or only these; columns without values are left out."""
    for name, table, rows in annotated(type(result), Table):
        if brief and not table.brief:
            continue
        columns = [each for each in columns_of(get_args(rows)[0]) if each[1].brief or not brief]
        columns.sort(key=lambda each: not each[1].brief)
        values = [[_at(row, path) for path, _, _ in columns] for row in getattr(result, name)]
        used = [
            place for place in range(len(columns)) if not values or any(row[place] not in (None, ()) for row in values)
        ]
        yield Shown(
            table=table,
            title=table.title.format(result),
            columns=tuple(columns[place][1] for place in used),
            numeric=tuple(_is_number(without_none(columns[place][2])) for place in used),
            values=[[row[place] for place in used] for row in values],
        )


def schema(hint: Any) -> dict[str, Any]:  # noqa: PLR0911  (a line for each kind of type)
    """The JSON Schema of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        meanings = [note.meaning for note in hint.__metadata__ if isinstance(note, Column)]
        return schema(inner[0]) | ({"description": meanings[0]} if meanings else {})
    if origin in (Union, UnionType):
        return {"anyOf": [schema(each) for each in inner]}
    if origin is tuple:
        return {"type": "array", "items": schema(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(inner[1])}
    if origin is Literal:
        return {"enum": list(inner)}
    if isinstance(hint, type) and is_dataclass(hint):
        parts = {name: schema(each) for name, each in members(hint).items()}
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}
    return {"type": JSON_TYPES[hint]}


def without_none(hint: Any) -> Any:
    """The type of a value that is not None.

    >>> without_none(float | None), without_none(int)
    (<class 'float'>, <class 'int'>)
    """
    if get_origin(hint) in (Union, UnionType):
        return next(each for each in get_args(hint) if each is not NoneType)
    return hint


def _is_number(kind: Any) -> bool:
    """Whether a type is a number, or is shown as one, such as quantiles."""
    return kind is not bool and hasattr(kind, "__float__")


def _notes(hint: Any) -> tuple[Any, ...]:
    notes: tuple[Any, ...] = getattr(hint, "__metadata__", ())
    return notes


def _at(row: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        row = None if row is None else getattr(row, name)
    return row
