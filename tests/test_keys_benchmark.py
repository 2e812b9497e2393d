"""normscope bench keys: a small run fits its schema and adds up, and the document says what the full run says."""

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner

from normscope.cli import app
from normscope_lab.bench import keys_bench as keys
from normscope_lab.bench import requirements
from normscope_lab.bench.key_sets import KINDS
from normscope_lab.bench.timing import duration, times
from normscope_lab.results.keys_speed import KeysSpeed

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def quick():
    return keys.run(keys.QUICK)


def test_every_set_of_the_plan_is_measured_and_every_key_accounted_for(quick):
    assert [(row.kind, row.keys, row.channels) for row in sets_of(quick)] == list(keys.QUICK.sets)
    for row in sets_of(quick):
        assert row.certificates_hold
        assert row.published.reflected + row.published.programs == row.keys
        assert row.published.reflections_timed == row.highs.programs == row.keys
        assert row.highs.programs_timed == keys.QUICK.programs
        assert 0 < row.published.programs_timed <= keys.QUICK.programs


def test_ratios_are_times_over_ours_and_no_verdict_differs(quick):
    for timing in quick.timings:
        for other in (timing.published, timing.highs):
            assert other.ratio == pytest.approx(other.seconds / timing.normscope_seconds)
            assert other.seconds >= other.reflection_seconds
            assert (other.failures, other.disagreements) == (0, 0)


def test_the_heads_take_the_others_as_often_as_one_set_of_each_kind(quick):
    rows = {(row.kind, row.keys): row for row in sets_of(quick)}
    expected = 2 * rows["anisotropic", 64].published.seconds + rows["heavy-tailed", 64].published.seconds
    heads = quick.timings[-2]
    assert heads.published.seconds == pytest.approx(expected)
    assert (heads.kind, heads.sets, heads.keys, heads.channels) == ("heads", 3, 192, 8)


def test_the_grid_counts_every_problem_and_scales_the_others_up_to_all(quick):
    grid = quick.timings[-1]
    assert (grid.kind, grid.sets, grid.channels) == ("grid", 2 * 3 * 4, None)
    assert grid.keys == 4 * 3 * (3 + 4)
    assert grid.highs.programs_timed == 3 + 4  # one set of the first cell, one of the fifth
    assert grid.highs.programs == (3 + 4) * grid.sets / 2


def test_the_full_plan_has_the_sets_that_its_heads_are_made_of():
    assert {("anisotropic", 1024, 64), ("heavy-tailed", 1024, 64)} <= set(keys.FULL.sets)
    assert {kind for kind, _, _ in keys.FULL.sets} <= set(KINDS)
    sizes, widths, runs = keys.FULL.grid
    assert len(sizes) * len(widths) * runs == 75_400


def test_larger_sets_than_the_licence_allows_are_compared_with_open_programs_only():
    plan = dataclasses.replace(keys.QUICK, programs=1)
    row = keys._time_set("Gaussian", 2048, 2, plan)
    assert row.published is None
    assert (row.highs.programs, row.highs.programs_timed) == (2048, plan.rounds)


def test_the_command_prints_json_that_fits_its_schema_and_draws(tmp_path):
    picture = tmp_path / "growth.svg"
    done = CliRunner().invoke(app, ["bench", "keys", "--quick", "--json", "--picture", str(picture)])
    assert done.exit_code == 0
    jsonschema.validate(json.loads(done.stdout), KeysSpeed.json_schema(), cls=jsonschema.Draft202012Validator)
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_the_picture_shows_growth_with_the_keys_and_leaves_out_what_was_not_run(quick):
    *others, last = sets_of(quick)
    figure = dataclasses.replace(quick, timings=(*others, dataclasses.replace(last, published=None))).plot()
    _, by_keys = figure.axes
    points = {line.get_label(): len(line.get_xdata()) for line in by_keys.lines}
    assert points == {"normscope, d = 8": 2, "published procedure, d = 8": 1, "HiGHS, one program per key, d = 8": 2}


def test_the_table_fits_a_hundred_columns_and_says_what_was_timed(quick):
    shown, row = str(quick), quick.timings[0]
    assert f"{row.published.programs_timed}/{row.published.programs}" in shown
    assert times(row.highs.ratio) in shown
    assert duration(row.normscope_seconds) in shown
    assert "Every certificate held." in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_without_the_solvers_one_line_names_what_to_install(monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs scipy and gurobipy: pip install normscope\[bench\]"):
        keys.run(keys.QUICK)


def test_every_certificate_of_the_published_run_held_and_no_verdict_differed():
    text = (DOCS / "selectable-speed.md").read_text(encoding="utf-8")
    run = json.loads((DOCS / "results" / "keys.json").read_text(encoding="utf-8"))
    timings = run["timings"]
    others = [timing[way] for timing in timings for way in ("published", "highs") if timing[way]]
    assert all(timing["certificates_hold"] for timing in timings)
    assert sum(other["disagreements"] + other["failures"] for other in others) == 0
    for name in ("scipy", "gurobipy"):
        assert f"{name} {run[name]}" in text


def test_the_counts_of_the_document_are_those_of_the_agreement():
    text = (DOCS / "selectable-speed.md").read_text(encoding="utf-8")
    run = json.loads((DOCS / "results" / "keys-agreement.json").read_text(encoding="utf-8"))
    assert run["holds"]
    assert run["compared"] >= 20_000
    assert f"{run['compared']:,} keys compared, {len(run['disagreements'])} judged differently" in text


def sets_of(result):
    return [timing for timing in result.timings if timing.sets == 1]
