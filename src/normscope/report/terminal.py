"""A result on a terminal, and as CSV: made from the columns that its type describes."""

import csv
import io
import re
from collections.abc import Sequence
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
SHORTEST = 12  # characters that a name may be shortened to
LEGIBLE = 20  # characters that a name keeps where other columns can have a table of their own
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")  # of a layer, in the name of a module


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
        fit = console.width if console.is_terminal and not everything else None
        for part in _parts(shown, console.width if everything else None, fit):
            if isinstance(part, Table) and fit is None and not everything:
                _keep_names_whole(part, shown, console.width)
            console.print(part, crop=False)


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


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Names of modules, those that are longer than a width cut in the middle; the number of the layer stays.

    Where two names would become equal, all stay as they are.

    >>> short_names(["model.layers.7.input_layernorm", "model.layers.7.post_attention_layernorm", "model.norm"], 30)
    ['model.layers.7.input_layernorm', 'model.layers.7…ntion_layernorm', 'model.norm']
    >>> short_names(["model.layers.7.input_layernorm", "model.layers.7.post_attention_layernorm", "model.norm"], 22)
    ['…7.input_layernorm', '…7.post_atte…layernorm', 'model.norm']
    """
    for rule in (_cut_after_number, _cut_around_number):
        short = {name: name if len(name) <= width else rule(name, width) for name in names}
        if len(set(short.values())) == len(short) and all(len(name) <= width for name in short.values()):
            return [short[name] for name in names]
    return list(names)


def _cut_after_number(name: str, width: int) -> str:
    """a.b.7…end"""
    found = list(NUMBER.finditer(name))
    start = name[: found[-1].end()] if found else name[: width // 2]
    return f"{start}…{name[len(name) - max(1, width - len(start) - 1) :]}"


def _cut_around_number(name: str, width: int) -> str:
    """…7.start…end"""
    found = list(NUMBER.finditer(name))
    start = f"…{found[-1].group()}." if found else ""
    rest = name[found[-1].end() + 1 :] if found else name
    room = width - len(start)
    if len(rest) <= room:
        return start + rest
    end = max(1, (room - 1) // 2)
    return f"{start}{rest[: max(1, room - 1 - end)]}…{rest[len(rest) - end :]}"


def _with_short_names(
    shown: Shown, rows: list[list[str]], places: list[int], width: int
) -> tuple[list[list[str]], dict[int, int]]:
    """The cells of a table of some columns, in which names leave room for the others, where they can.

    And the room for each column of texts, which are wrapped between words: a name among these fits it too.
    """
    names = [place for place in places if _are_names(shown, rows, place)]
    others = [place for place in places if place not in names]
    widths, rooms = _wide_headings(shown, rows), dict[int, int]()
    room = width - BETWEEN * len(places) - sum(widths[place] for place in others)
    if room < LEGIBLE * len(names):  # headings of texts are wrapped too, as those of figures always are
        widths = [_width(shown, rows, place) for place in range(len(widths))]
        rooms = {place: widths[place] for place in others if not shown.numeric[place]}
        room = width - BETWEEN * len(places) - sum(widths[place] for place in others)
    columns = [[row[place] for row in rows] for place in range(len(widths))]
    names.sort(key=lambda place: -max(map(len, columns[place])))
    while names:  # the shortest first: what it does not need is left for the others
        place = names.pop()
        share = max(SHORTEST, room // (len(names) + 1))
        columns[place] = short_names(columns[place], share)
        room -= min(share, max(map(len, columns[place])))
    texts = [place for place in places if any(" " in each for each in columns[place])]
    room += sum(widths[place] for place in texts)
    longest = {place: max(widths[place], *map(len, columns[place])) for place in texts}
    for left, place in zip(range(len(texts), 0, -1), sorted(texts, key=lambda place: longest[place]), strict=True):
        rooms[place] = min(longest[place], max(SHORTEST, room // left))
        room -= rooms[place]
        columns[place] = [_with_short_words(text, rooms[place]) for text in columns[place]]
    return [list(cells) for cells in zip(*columns, strict=True)], rooms


def _with_short_words(text: str, width: int) -> str:
    """A text in which names of modules fit a width.

    >>> _with_short_words("model.layers.7.post_attention_layernorm writes to its stream", 24)
    'model.layers.7…layernorm writes to its stream'
    """
    return " ".join(short_names([word], width)[0] if "." in word else word for word in text.split(" "))


def _wide_headings(shown: Shown, rows: list[list[str]]) -> list[int]:
    """The widths that columns get: names give way before the heading of a text is wrapped."""
    widths = [_width(shown, rows, place) for place in range(len(shown.columns))]
    return [
        each if numeric else max(each, len(column.heading))
        for each, numeric, column in zip(widths, shown.numeric, shown.columns, strict=True)
    ]


def short_title(title: str, width: int) -> str:
    """A title whose longest word, the path of a model, is cut at its start if it is too long for one line.

    >>> short_title("Norms of /a/long/way/to/a/model.gguf, folded", 36)
    'Norms of …ay/to/a/model.gguf, folded'
    """
    word = max(title.split(), key=len, default="")
    room = width - (len(title) - len(word))
    if len(word) <= room or room < SHORTEST:
        return title
    return title.replace(word, f"…{word[1 - room :]}", 1)


def _are_names(shown: Shown, cells: list[list[str]], place: int) -> bool:
    """Whether a column holds names of modules: no blanks, and dots in one of them."""
    text = [] if shown.numeric[place] else [row[place] for row in cells]
    return any("." in each for each in text) and not any(" " in each for each in text)


def _keep_names_whole(table: Table, shown: Shown, width: int) -> None:
    """Let a table of all main columns be wider than `width` if its names need it: no terminal has to show it."""
    rows = shown.cells[: shown.table.most]
    needed = least = BETWEEN * len(table.columns)  # with texts as wide as they are, and wrapped
    for place, (column, narrow) in enumerate(zip(table.columns, _least_widths(shown, rows), strict=True)):
        column.no_wrap = _are_names(shown, rows, place)
        whole = max(len(text) for text in (shown.columns[place].heading, *(row[place] for row in rows)))
        needed += whole if column.no_wrap else _width(shown, rows, place)
        least += whole if column.no_wrap else narrow
    table.width = needed if least > width else None
    if isinstance(table.title, Text):
        table.title.no_wrap, table.title.overflow = True, "ignore"


def _parts(shown: Shown, width: int | None, fit: int | None) -> list[RenderableType]:
    """One table, or as many as a width needs; `width`: with all columns and rows, and the meanings of the columns.

    `fit` is the width that names of modules, and the path in the title, are shortened for.
    """
    if not shown.values:
        return [Text(shown.table.empty)] if shown.table.empty else []
    rows = shown.cells[: shown.table.most] if width is None else shown.cells
    widths = [_width(shown, rows, place) for place in range(len(shown.columns))]
    groups = [list(range(len(widths)))]
    if width is not None:
        groups = _fitting(widths, width)
    elif fit is not None:
        groups = _fitting(_least_widths(shown, rows), fit)
    parts: list[RenderableType] = []
    for places in groups:
        cut, rooms = (rows, {}) if fit is None else _with_short_names(shown, rows, places, fit)
        table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        title = printable(shown.title)
        if fit is not None:  # a title is as wide as its table
            wide = _wide_headings(shown, cut)
            title = short_title(title, min(fit, sum(wide[place] for place in places) + BETWEEN * len(places)))
        table.title = None if parts else Text(title)
        for place in places:
            heading = Text(shown.columns[place].heading)
            if shown.numeric[place]:  # as wide as its figures and the longest word of its heading; names get the rest
                table.add_column(heading, justify="right", width=widths[place])
            else:
                table.add_column(heading, overflow="fold", max_width=rooms.get(place))
        for cells in cut:
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


def _least_widths(shown: Shown, rows: list[list[str]]) -> list[int]:
    """The widths that columns can be brought to: names are cut, texts are wrapped, figures stay."""
    least = []
    for place, each in enumerate(_wide_headings(shown, rows)):
        blanks = any(" " in row[place] for row in rows)
        names = _are_names(shown, rows, place)
        least.append(min(each, LEGIBLE if names else SHORTEST) if blanks or names else each)
    return least


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
