"""The figures in docs/benchmarks.md are those of the runs in docs/results."""

import json
from pathlib import Path

from normscope.report.tables import duration

DOCS = Path(__file__).parent.parent / "docs"


def test_the_axes_figures_are_those_of_the_run():
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    run = json.loads((DOCS / "results" / "axes.json").read_text(encoding="utf-8"))
    rows = {(row["quantity"], row["size"]): row for row in run["comparisons"]}
    for size in (768, 4096, 8192):
        cells = [str(size)]
        for quantity in ("lengths", "axes"):
            row = rows[quantity, size]
            cells += [duration(row["dense_seconds"]), duration(row["normscope_seconds"]), f"{row['ratio']:.0f}×"]
        assert f"| {' | '.join(cells)} |" in text
    growth = {point["size"]: point for point in run["growth"]}
    for size in (16384, 32768):
        assert duration(growth[size]["distinct_seconds"]) in text
    assert duration(growth[32768]["bfloat16_seconds"]) in text
    for seconds in run["first_call"].values():
        assert duration(seconds) in text


def test_the_inspect_figures_are_those_of_the_run():
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    run = json.loads((DOCS / "results" / "inspect.json").read_text(encoding="utf-8"))
    assert f"{run['parameters']:,} parameters" in text
    assert f"{run['norms']} norms" in text
    assert f"{run['cpu_seconds']:.1f} s of CPU time" in text
    assert f"{run['peak_megabytes']:.0f} MB of memory" in text
