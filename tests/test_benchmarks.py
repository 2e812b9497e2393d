"""Every benchmark in small, its result and its command; documents say what the kept runs say."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from normscope.cli import app
from normscope.errors import InputError
from normscope.results.result import load, load_bytes
from normscope_lab.bench import (
    around_bench,
    fold_bench,
    fold_time_bench,
    memorize_bench,
    ranges_bench,
    scale_bench,
    unit_costs,
    vocab_bench,
)
from normscope_lab.bench.memorize_bench import Task
from normscope_lab.bench.timing import duration, times
from normscope_lab.results.around_widths import factor
from normscope_lab.results.scale_speed import UnitCost

DOCS = Path(__file__).parent.parent / "docs"


def read(name):
    return json.loads((DOCS / "results" / name).read_text(encoding="utf-8"))


def whole(result):
    """A result that fits its schema, its file and a terminal."""
    jsonschema.validate(result.to_dict(), result.json_schema(), cls=jsonschema.Draft202012Validator)
    assert load_bytes(result.to_bytes(), "saved") == result
    assert max(map(len, str(result).splitlines())) <= 100
    return result


def test_fold_measures_every_model_in_turn():
    result = whole(fold_bench.run(fold_bench.QUICK))
    assert [row.variant for row in result.passes] == 2 * ["original", "folded", "rms, torch", "rms, fused"]
    assert all(row.speed == 1.0 for row in result.passes if row.variant == "original")


@pytest.mark.slow
def test_the_time_of_folding_is_that_of_imports_torch_export_and_the_rest():
    result = whole(fold_time_bench.run([], None, 1, lambda things, what: things))
    (row,) = result.runs
    assert (row.norms, row.rounds, row.ratio, result.peer) == (9, 1, None, None)
    assert 0 < row.export_seconds < row.cpu_seconds
    assert 0 < row.import_seconds < row.cpu_seconds
    assert row.rest_seconds == row.cpu_seconds - row.import_seconds - row.export_seconds


@pytest.mark.slow
def test_a_peer_that_cannot_run_is_named():
    with pytest.raises(InputError, match=r"ended with exit code 1: .*transformer_lens"):
        fold_time_bench.run([], Path(sys.executable), 1, lambda things, what: things)


def test_around_compares_three_intervals_that_no_attack_passes():
    result = whole(around_bench.run(around_bench.QUICK))
    sources = [row.source for row in result.widths]
    assert sources == 4 * ["random LayerNorm"] + 4 * ["random RMSNorm"] + 4 * ["demo model"]
    assert result.holds
    for row in result.widths:
        assert row.attacked <= 1 + 1e-9 <= min(row.interval, row.linear, row.capped) + 2e-9
        assert 0 < row.share < 1


def test_memorize_sums_up_its_runs():
    result = whole(memorize_bench.run((20,), (Task(12, classes=3, method="merge"),), seeds=2))
    found = [(task.samples, task.paper_bound, task.seeds, task.all_certified) for task in result.tasks]
    assert found == [(20, 18, 2, True), (12, 9, 2, True)]
    assert result.holds


@pytest.mark.slow
def test_scale_compares_engines_and_measures_memory():
    result = whole(scale_bench.run(scale_bench.QUICK, ["local"]))
    works = {"4 heads": 4, "16 heads": 16, "grid, 4 cells": 4}
    assert [(run.engine, run.workers, run.work, run.pieces, run.same) for run in result.runs] == [
        (engine, workers, work, pieces, True)
        for engine in ("local", "apart")
        for workers in (1, 2)
        for work, pieces in works.items()
    ]
    by_two = [run for run in result.runs if run.workers == 2]
    assert all((run.sent > 0) == (run.received > 0) == (run.engine == "local") for run in by_two)
    seconds = {(run.engine, run.work): run.seconds for run in result.runs if run.workers == 1}
    assert all(run.speedup == seconds[run.engine, run.work] / run.seconds for run in result.runs)
    assert [row.what for row in result.memory] == 2 * ["inspect --text"] + 2 * ["inspect"]
    assert min(row.peak for row in result.memory) > 1e7
    assert result.holds
    assert {row.question for row in result.units} == {row.question for row in result.estimates}


def test_estimates_are_units_times_their_cost():
    rows = {"inspect": 3.0, "inspect --text": 1e-3, "the model itself": 1e-11, "keys": 0.5, "ranges": 1e-8}
    rows |= {"vocab": 1e-12, "verify of vocab": 1e-12}
    found = {
        row.question: row
        for row in unit_costs.estimated(tuple(UnitCost(name, "unit", 7, seconds) for name, seconds in rows.items()))
    }
    assert found["ranges"].hours == pytest.approx(405.85 * 10 / 3600, rel=1e-3)
    assert found["keys"].units == pytest.approx(126 * 8 * 1e9 / 1024)
    assert found["keys"].hours == pytest.approx(found["keys"].core_hours / 512)
    assert found["the model itself"].units == pytest.approx(405.85e9 * 1e9, rel=1e-3)
    assert found["inspect --text"].core_hours == pytest.approx(253e9 * 1e-3 / 3600)


def test_vocab_measures_search_and_check():
    result = whole(vocab_bench.run(tokens=300, channels=12))
    (row,) = result.runs
    assert row.check_holds
    assert row.own_direction_wins <= row.wins <= 300
    assert (row.tokens, row.channels) == (300, 12)


def test_axes_are_saved_drawn_and_printed(tmp_path):
    picture, saved = tmp_path / "growth.svg", tmp_path / "axes.safetensors"
    command = ["bench", "axes", "--size", "32", "--size", "64", "--json", "--picture", str(picture), "-o", str(saved)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    result = json.loads(done.stdout)
    assert whole(load(saved)).to_dict() == result
    measured = [(row["size"], row["quantity"]) for row in result["comparisons"]]
    assert measured == [(32, "lengths"), (64, "lengths"), (32, "axes"), (64, "axes")]
    for row in result["comparisons"]:
        assert row["ratio"] == pytest.approx(row["dense_seconds"] / row["normscope_seconds"])
    (first,) = result["first_call"]
    assert first["cached_seconds"] < first["compiling_seconds"]
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_inspect_finds_161_norms_in_a_checkpoint_of_70b_shape():
    command = [sys.executable, "-m", "normscope", "bench", "inspect", "--json"]
    (row,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["runs"]
    assert (row["norms"], row["parameters"]) == (161, 70_553_706_496)
    assert row["peak_megabytes"] < 1500


def test_the_figures_of_axes_are_those_of_the_run():
    text, run = (DOCS / "benchmarks.md").read_text(encoding="utf-8"), read("axes.json")
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
    for seconds in run["first_call"][0].values():
        assert duration(seconds) in text


def test_the_figures_of_around_are_those_of_the_run():
    text, run = (DOCS / "around.md").read_text(encoding="utf-8"), read("around.json")
    for row in run["widths"]:
        cells = [row["source"], str(row["size"]), f"{row['radius']:g}", f"{row['share']:.3g}"]
        cells += [factor(row[way]) for way in ("interval", "linear", "capped")]
        assert f"| {' | '.join(cells)} |" in text
    for row in run["times"]:
        cells = [str(row["size"]), *(duration(row[f"{way}_seconds"]) for way in ("exact", "interval", "linear"))]
        cells += [times(row["interval_ratio"]), times(row["linear_ratio"])]
        assert f"| {' | '.join(cells)} |" in text
    attacks, least = 2 * sum(row["cases"] for row in run["widths"]), min(row["attacked"] for row in run["widths"])
    assert run["holds"]
    assert f"No attack passes any of the three, of {attacks:,}" in text
    assert f"reach {100 * least:.2f}% of the exact width" in text


def test_the_figures_of_inspect_are_those_of_the_run():
    text = " ".join((DOCS / "benchmarks.md").read_text(encoding="utf-8").split())
    (run,) = read("inspect.json")["runs"]
    assert f"{run['parameters']:,} parameters" in text
    assert f"{run['norms']} norms" in text
    assert f"{run['cpu_seconds']:.1f} s of CPU time" in text
    assert f"{run['peak_megabytes']:.0f} MB of memory" in text
    parts = [run[f"{part}_seconds"] for part in ("torch", "import", "export", "rest")]
    assert f"| {' | '.join(duration(part) for part in parts)} |" in text


def test_the_figures_of_fold_time_are_those_of_the_run():
    text, run = (DOCS / "folding.md").read_text(encoding="utf-8"), read("fold-time.json")
    assert run["peer"] in text
    for row in run["runs"]:
        parts = [f"{part}_seconds" for part in ("cpu", "import", "export", "rest", "peer", "peer_import")]
        cells = [*(duration(row[part]) for part in parts), f"{row['ratio']:.2f}"]
        assert f"| {' | '.join(cells)} |" in text


def test_the_times_of_fold_before_and_now_are_those_of_the_run():
    text, run = (DOCS / "folding.md").read_text(encoding="utf-8"), read("fold-before.json")
    assert f"commit `{run['before']}`" in text
    for model, taken in run["cpu_seconds"].items():
        before, now = (duration(statistics.median(taken[when])) for when in ("before", "now"))
        assert f"| {model} | {before} | {now} |" in text


def test_the_figures_of_memorize_are_those_of_the_run():
    text = (DOCS / "memorize.md").read_text(encoding="utf-8")
    for task in read("memorize.json")["tasks"]:
        certified = "all" if task["all_certified"] else "not all"
        cells = [task["method"], task["dtype"], task["samples"], task["classes"], task["paper_bound"]]
        cells += [f"{task['median_depth']:g}", certified, task["least_float_right"], f"{task['median_seconds']:.1f} s"]
        assert f"| {' | '.join(map(str, cells))} |" in text


def test_the_figures_of_vocab_are_those_of_the_run():
    (run,) = read("vocab.json")["runs"]
    text = " ".join((DOCS / "vocab.md").read_text(encoding="utf-8").split())
    for figure in (
        f"{run['tokens']:,} × {run['channels']}",
        f"own directions take {run['own_direction_seconds']:.0f} s of CPU time",
        f"{run['own_direction_wins']:,} tokens can win",
        f"take {run['rest_seconds']:.0f} s more",
        f"every certificate takes {run['check_seconds']:.0f} s",
        f"{run['own_direction_megabytes']:.0f} MB with own directions, and at {run['peak_megabytes']:,.0f} MB",
    ):
        assert figure in text
    assert run["check_holds"]
    assert run["own_direction_seconds"] <= 60


def test_ranges_are_measured_on_the_models_that_are_given():
    result = whole(ranges_bench.run([], large=False, bar=lambda things, what: things))
    assert [row.model for row in result.runs] == ["the demo model"]
    kinds = {row.kind: row for row in result.tightness}
    assert kinds["layer behind a norm"].worst < 1 + 1e-6
    assert kinds["one head"].worst < 1 + 1e-6
    for kind in ("plain MLP, drawn at random", "plain MLP, largest of each layer"):
        assert 1 <= kinds[kind].median < 1.7 < kinds[kind].intervals


def test_the_page_on_ranges_says_what_the_kept_run_says():
    text, run = (DOCS / "ranges.md").read_text(encoding="utf-8"), read("ranges.json")

    def ratio(value):
        return f"1 + {value - 1:.0e}" if value < 1.00001 else f"{value:.2f}"

    for row in run["tightness"]:
        intervals = "" if row["intervals"] is None else f"{row['intervals']:.0f}"
        cells = [row["kind"], str(row["count"]), ratio(row["median"]), ratio(row["worst"]), intervals]
        assert f"| {' | '.join(cells)} |" in text
    for row in run["runs"]:
        cells = [str(row["tensors"]), f"{row['cpu_seconds']:.0f} s", f"{row['peak_megabytes']:.0f} MB"]
        assert f"| {' | '.join(cells)} |" in text
