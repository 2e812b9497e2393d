"""A result in a notebook: plain HTML tables, made from the columns that its type describes."""

from html import escape

from normscope.results.describe import Shown, tables_of
from normscope.results.result import Result


def as_html(result: Result) -> str:
    """All tables of a result for a notebook, with meanings as tooltips; every string from a model is escaped."""
    return "".join(_shown(shown) for shown in tables_of(result, brief=True)) + "".join(
        f"<p>{escape(remark)}</p>" for remark in result.remarks()
    )


def _shown(shown: Shown) -> str:
    if not shown.values:
        return f"<p>{escape(shown.table.empty)}</p>" if shown.table.empty else ""
    headings = "".join(
        f'<th title="{escape(column.meaning)}" style="text-align:left">{escape(column.heading)}</th>'
        for column in shown.columns
    )
    most = shown.table.most
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>" for cells in shown.cells[:most])
    more = 0 if most is None else len(shown.values) - most
    rest = f"<p>and {more:,} more</p>" if more > 0 else ""
    return (
        f"<table><caption>{escape(shown.title)}</caption>"
        f"<thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>{rest}"
    )
