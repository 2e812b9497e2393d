"""A result as a terminal shows it, and as CSV: made from what its type says about its columns."""

import csv
import io
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from normscope.results.describe import Shown, tables_of
from normscope.results.result import Result

WIDTH = 100  # columns, where the output is no terminal


def as_text(result: Result, *, everything: bool = False) -> str:
    """What `print(result)` gives."""
    console = Console(width=WIDTH, file=io.StringIO())
    show(result, console, everything=everything)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def show(result: Result, console: Console, *, everything: bool = False) -> None:
    """Tables with the columns that matter, or with all; then the sentences on what stands out."""
    for shown in tables_of(result, brief=not everything):
        for part in _parts(shown, legend=everything):
            console.print(part)
    for remark in result.remarks():
        console.print(Text(f"• {printable(remark)}"))


def as_csv(result: Result) -> str:
    """The first table of a result, with all its columns; a value that is no number or text as the terminal shows it."""
    shown = next(iter(tables_of(result, brief=False)), None)
    if shown is None:
        return ""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([column.heading for column in shown.columns])
    for values, cells in zip(shown.values, shown.cells, strict=True):
        writer.writerow([_csv_value(value, cell) for value, cell in zip(values, cells, strict=True)])
    return file.getvalue()


def printable(text: str) -> str:
    """One line that can't move the cursor or change colours, whatever names of files or tensors are in it.

    >>> printable("a\\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _parts(shown: Shown, *, legend: bool) -> list[RenderableType]:
    if not shown.values:
        return [Text(shown.table.empty)] if shown.table.empty else []
    table = Table(title=Text(printable(shown.title)), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    if legend:
        table.caption = Text(
            "; ".join(f"{column.heading}: {_lower(column.meaning)}" for column in shown.columns if column.meaning)
        )
    most = shown.table.most
    rows = shown.cells[:most]
    for place, (column, numeric) in enumerate(zip(shown.columns, shown.numeric, strict=True)):
        if numeric:  # as wide as its figures and the longest word of its heading; names get the rest
            width = max(len(text) for text in (*column.heading.split(), *(row[place] for row in rows)))
            table.add_column(Text(column.heading), justify="right", width=width)
        else:
            table.add_column(Text(column.heading), overflow="fold")
    for cells in rows:
        table.add_row(*(Text(printable(cell)) for cell in cells))
    more = 0 if most is None else len(shown.values) - most
    return [table, Text(f"and {more:,} more: --json lists all")] if more > 0 else [table]


def _lower(sentence: str) -> str:
    """A sentence as part of another one."""
    start = sentence[:2]
    return (sentence if start[1:].isupper() else sentence[:1].lower() + sentence[1:]).rstrip(".")


def _csv_value(value: Any, cell: str) -> Any:
    if value is None:
        return ""
    return value if isinstance(value, str | int | float) else cell
