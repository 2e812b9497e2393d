"""What all tables share: how results find theirs, how a table is begun, how values and names are written."""

from functools import singledispatch
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.markup import escape as escape_markup
from rich.table import Table

LONGEST = 24  # characters of one


@singledispatch
def tables(result: Any) -> list[RenderableType]:
    """What a terminal shows of a result: tables, and words where some figures stand out."""
    raise TypeError(f"no table for {type(result).__name__}")


def new_table(title: str, caption: str, *text_columns: str) -> Table:
    """A table with a title, a caption under it, and columns of text; columns of figures are added to it."""
    table = Table(title=escape(title), caption=caption, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for heading in text_columns:
        table.add_column(heading, overflow="fold")
    return table


def counted(norms: int) -> str:
    """So many LayerNorms."""
    return f"{norms} LayerNorm" + "s" * (norms != 1)


def duration(seconds: float) -> str:
    """Seconds in the unit that reads best, to two or three digits."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def escape(name: str) -> str:
    """A name from a checkpoint as a terminal may show it: no markup, no control characters."""
    return escape_markup("".join(character if character.isprintable() else "�" for character in name))


def readable(text: str) -> str:
    """A token in quotes, blanks and control characters made visible, cut to fit.

    >>> print(readable(" the"), readable("\\x1b[2J"), readable("\\u202e"))
    ' the' '\\x1b[2J' '\\u202e'
    """
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}…")
