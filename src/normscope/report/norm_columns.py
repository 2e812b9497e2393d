"""Results that do not describe themselves yet as tables of plain HTML."""

from collections.abc import Sequence
from html import escape
from math import isfinite

Value = str | int | float | None


def _table(caption: str, headings: Sequence[tuple[str, str]], rows: Sequence[Sequence[Value]]) -> str:
    head = "".join(f'<th scope="col" title="{escape(meaning)}">{escape(name)}</th>' for name, meaning in headings)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    start = f"<table><caption>{escape(caption)}</caption>"
    return f"{start}\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def shown(value: Value) -> str:
    """A cell as a reader sees it.

    >>> shown(None), shown(1e-05), shown(768), shown(2.718281828)
    ('–', '1e-05', '768', '2.718')
    """
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
