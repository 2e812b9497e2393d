"""Write the tables of docs/scale.md and docs/selectable-speed.md anew, from the runs in docs/results.

python tools/speed_tables.py docs
"""

import json
import re
import sys
from pathlib import Path

from normscope.results.describe import tables_of
from normscope.results.result import _from_payload
from normscope_lab.bench.timing import duration, times
from normscope_lab.results.keys_speed import KeysSpeed, KeysTiming
from normscope_lab.results.scale_speed import ScaleSpeed

Rows = list[list[str]]  # the first has the headings
PAGES = {"scale.md": "scale.json", "selectable-speed.md": "keys.json"}
ALTERNATIVES = ["keys", "n × d", "never selected", "normscope"]
ALTERNATIVES += ["published", "ratio", "timed", "HiGHS", "ratio", "timed"]


def tables(run: ScaleSpeed | KeysSpeed) -> list[Rows]:
    """All tables of a run; that of the sets of keys has a column for each figure, wider than a terminal is."""
    shown = [[[column.heading for column in each.columns], *each.cells] for each in tables_of(run, brief=True)]
    if isinstance(run, KeysSpeed):
        shown[0] = [ALTERNATIVES, *map(_set_of_keys, run.timings)]
    return shown


def written(text: str, run: ScaleSpeed | KeysSpeed) -> str:
    """The page with the tables of a run, each in place of the one with the same headings."""
    for rows in tables(run):
        head, *others = map(line, rows)
        new = "\n".join([head, f"|{'---|' * len(rows[0])}", *others]) + "\n"
        text, count = re.subn(rf"{re.escape(head)}\n(\|.*\n)*", lambda _, new=new: new, text)
        if count != 1:
            raise SystemExit(f"the page must have one table that begins with {head}, and has {count}")
    return text


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def kept(docs: Path, name: str) -> ScaleSpeed | KeysSpeed:
    """A run of docs/results."""
    run = _from_payload(json.loads((docs / "results" / name).read_text(encoding="utf-8")), {})
    assert isinstance(run, ScaleSpeed | KeysSpeed)
    return run


def _set_of_keys(row: KeysTiming) -> list[str]:
    size = f"{row.keys:,} × {row.channels}" if row.sets == 1 else f"{row.sets:,} sets"
    cells = [row.kind, size, f"{row.lost:,}", duration(row.normscope_seconds)]
    if (way := row.published) is None:
        cells += ["", "", ""]
    else:
        cells += [duration(way.seconds), times(way.ratio), f"{way.programs_timed} of {way.programs:,}"]
    return [*cells, duration(row.highs.seconds), times(row.highs.ratio), str(row.highs.programs_timed)]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for page, results in PAGES.items():
        path = folder / page
        path.write_text(written(path.read_text(encoding="utf-8"), kept(folder, results)), encoding="utf-8")
