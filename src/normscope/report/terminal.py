"""A result on a terminal, and as CSV: made from the columns that its type describes."""

import csv
import io
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from normscope.results.describe import Shown, tables_of
from normscope.results.result import Result, named

WIDTH = 100  # columns, where the output is not a terminal
WIDEST = 40  # characters of a text before it is wrapped, where a table has all columns
BETWEEN = 2  # characters between two columns


def as_text(result: Result, *, everything: bool = False) -> str:
    """The text of `print(result)`."""
    console = Console(width=WIDTH, file=io.StringIO())
    show(result, console, everything=everything)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().rstrip("\n")


def show(result: Result, console: Console, *, everything: bool = False) -> None:
    """What stands out first; then tables with the main columns, or with all; or as the type shows itself."""
    if result.shown_by is not None and not everything:
        named(result.shown_by)(result, console)
        return
    for remark in result.remarks():
        console.print(Text(f"• {printable(remark)}"))
    for shown in tables_of(result, brief=not everything):
        for part in _parts(shown, console.width if everything else None):
            console.print(part)


def as_csv(result: Result) -> str:
    """The first table of a result, with all its columns."""
    headings, rows = plain_rows(result)
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([headings, *rows] if headings else [])
    return file.getvalue()


def plain_rows(result: Result) -> tuple[list[str], list[list[Any]]]:
    """Headings and rows of the first table, with all columns; other values than numbers and text as on the terminal."""
    shown = next(iter(tables_of(result, brief=False)), None)
    if shown is None:
        return [], []
    rows = zip(shown.values, shown.cells, strict=True)
    return [column.heading for column in shown.columns], [
        [_csv_value(value, cell) for value, cell in zip(values, cells, strict=True)] for values, cells in rows
    ]


def printable(text: str) -> str:
    """One line without control characters, so that names in it can't move the cursor or change colours.

    >>> printable("a\\x1b[2Jb")
    'a�[2Jb'
    """
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _parts(shown: Shown, width: int | None) -> list[RenderableType]:
    """One table; with all columns, split into as many tables as this width needs, with the meanings of the columns."""
    if not shown.values:
        return [Text(shown.table.empty)] if shown.table.empty else []
    rows = shown.cells[: shown.table.most] if width is None else shown.cells
    widths = [_width(shown, rows, place) for place in range(len(shown.columns))]
    parts: list[RenderableType] = []
    for places in [list(range(len(widths)))] if width is None else _fitting(widths, width):
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.title = None if parts else Text(printable(shown.title))
        for place in places:
            heading = Text(shown.columns[place].heading)
            if shown.numeric[place]:  # as wide as its figures and the longest word of its heading; names get the rest
                table.add_column(heading, justify="right", width=widths[place])
            else:
                table.add_column(heading, overflow="fold")
        for cells in rows:
            table.add_row(*(Text(printable(cells[place])) for place in places))
        parts.append(table)
    if width is not None:
        parts += [Text(f"  {column.heading}: {column.meaning}") for column in shown.columns]
    more = len(shown.values) - len(rows)
    return [*parts, Text(f"and {more:,} more: --all shows them")] if more > 0 else parts


def _width(shown: Shown, rows: list[list[str]], place: int) -> int:
    """The width of a column, so that neither its cells nor a word of its heading is cut; long texts are wrapped."""
    widest = max(len(text) for text in (*shown.columns[place].heading.split(), *(row[place] for row in rows)))
    return widest if shown.numeric[place] else min(widest, WIDEST)


def _fitting(widths: list[int], width: int) -> list[list[int]]:
    """The columns in groups that fit beside the first, which each group repeats.

    >>> _fitting([10, 20, 20, 20], 60)
    [[0, 1, 2], [0, 3]]
    """
    groups, used = [[0]], widths[0] + BETWEEN
    for place in range(1, len(widths)):
        if used + widths[place] + BETWEEN > width and len(groups[-1]) > 1:
            groups.append([0])
            used = widths[0] + BETWEEN
        groups[-1].append(place)
        used += widths[place] + BETWEEN
    return groups


def _csv_value(value: Any, cell: str) -> Any:
    if value is None or value == ():
        return ""
    if isinstance(value, str | int | float):
        return value
    return float(value) if hasattr(value, "__float__") else cell
