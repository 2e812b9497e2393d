"""Write the tables of docs/scale.md anew, from docs/results/scale.json.

python tools/scale_tables.py docs
"""

import json
import re
import sys
from pathlib import Path

from normscope.results.describe import tables_of
from normscope.results.result import _from_payload


def written(text: str, run: object) -> str:
    """The page with the tables of a run, each in place of the one with the same headings."""
    for shown in tables_of(run, brief=True):
        head = _line([column.heading for column in shown.columns])
        rows = [head, f"|{'---|' * len(shown.columns)}", *map(_line, shown.cells)]
        text, count = re.subn(rf"{re.escape(head)}\n(\|.*\n)*", lambda _, rows=rows: "\n".join(rows) + "\n", text)
        if count != 1:
            raise SystemExit(f"docs/scale.md must have one table that begins with {head}, and has {count}")
    return text


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    page = docs / "scale.md"
    kept = _from_payload(json.loads((docs / "results" / "scale.json").read_text(encoding="utf-8")), {})
    page.write_text(written(page.read_text(encoding="utf-8"), kept), encoding="utf-8")
