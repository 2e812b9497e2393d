"""The benchmark of the fused norms: what it measures, and that the published figures are those of its run."""

import json
import statistics
from pathlib import Path

import jsonschema
import pytest
import torch
from typer.testing import CliRunner

from normscope.cli import app
from normscope_lab.bench.lng_bench import BOTH, FORWARD, QUICK, group_counts, run
from normscope_lab.bench.timing import duration, gpu_time, interleaved

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module", autouse=True)
def memory_as_it_is():
    """malloc is not told anything here: it would hold for all tests that follow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("normscope_lab.bench.lng_bench.keep_memory", lambda: False)
        yield


@pytest.fixture(scope="module")
def measured():
    before = torch.get_num_threads()
    result = run(QUICK)
    assert torch.get_num_threads() == before
    return result


def test_the_command_prints_json_alone():
    done = CliRunner().invoke(app, ["bench", "lng", "--quick", "--json"])
    assert done.exit_code == 0
    assert {row["rows"] for row in json.loads(done.stdout)["timings"]} == {8}


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device must be cpu here, got cuda: torch finds no GPU"):
        run(QUICK, device="cuda")
    with pytest.raises(ValueError, match="device must be cpu or cuda, got 'mps'"):
        run(QUICK, device="mps")


def test_the_clock_of_a_gpu_waits_for_its_work(monkeypatch):
    waited = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waited.append(len(waited)))
    times = interleaved({"nothing": lambda: None, "more": lambda: waited.append(-1)}, 3, {}, gpu_time)
    assert [each for each in waited if each >= 0] == sorted(each for each in waited if each >= 0)
    assert len(waited) == 3 * (2 + 2 + 1)
    assert all(seconds >= 0 for seconds in times.values())


def test_every_way_is_measured_and_fits_the_schema(measured):
    stored = json.loads(json.dumps(measured.to_dict(), allow_nan=False))
    jsonschema.validate(stored, measured.json_schema(), cls=jsonschema.Draft202012Validator)
    ways = {(timing.passes, timing.way, timing.groups) for timing in measured.timings}
    for passes in (FORWARD, BOTH):
        assert (passes, "F.layer_norm", 1) in ways
        assert (passes, "normscope RMSNorm", 1) in ways
        for groups in group_counts(96)[1:]:
            assert {(passes, way, groups) for way in ("normscope LN-G", "F.group_norm")} <= ways
    assert (FORWARD, "copy_", 1) in ways


def test_ratios_are_over_layer_norm_on_the_same_tensor(measured):
    for timing in measured.timings:
        (reference,) = (
            other for other in measured.timings if other.way == "F.layer_norm" and other.passes == timing.passes
        )
        assert timing.ratio == pytest.approx(timing.median_seconds / reference.median_seconds)
        assert timing.least_ratio == pytest.approx(timing.least_seconds / reference.least_seconds)


def test_tables_fit_a_terminal(measured):
    text = str(measured)
    assert "normscope LN-G" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 100


def read(name):
    return json.loads((DOCS / "results" / name).read_text(encoding="utf-8"))


def published_rows(timings):
    """The rows of the table in docs/lng.md, from a run."""
    for rows, channels in ((4096, 768), (8192, 1024)):
        for dtype in ("float32", "bfloat16"):
            for passes in (FORWARD, BOTH):
                where, counts = (rows, channels, dtype, passes), group_counts(channels)
                ways = [("normscope LayerNorm", 1), *(("normscope LN-G", groups) for groups in counts[1:])]
                ways += [("normscope RMSNorm", 1), ("copy_", 1)]
                ways += [(way, counts[-1]) for way in ("F.layer_norm of groups", "F.group_norm")] + [("F.rms_norm", 1)]
                ratios = [timings.get((*where, *way)) for way in ways]
                cells = ["" if row is None else f"{row['ratio']:.2f}" for row in ratios]
                yield f"| {rows} × {channels} | {dtype} | {passes} | {' | '.join(cells)} |"


@pytest.fixture(scope="module")
def kept():
    """The timings of the run in docs/results."""
    return {
        (row["rows"], row["channels"], row["dtype"], row["passes"], row["way"], row["groups"]): row
        for row in read("lng.json")["timings"]
    }


def test_the_published_figures_are_those_of_the_run(kept):
    text = (DOCS / "lng.md").read_text(encoding="utf-8")
    rows = list(published_rows(kept))
    assert len(rows) == 8
    for row in rows:
        assert row in text
    ways = ("normscope LN-G", 192), ("F.layer_norm", 1)
    for passes in (FORWARD, BOTH):
        ours, theirs = (duration(kept[1, 768, "float32", passes, *way]["median_seconds"]) for way in ways)
        assert f"{ours} against {theirs}" in text


TARGETS = {  # ratio to F.layer_norm in g = 1, 8, 64 and d/4 groups
    ("float32", FORWARD): (1.05, 1.05, 1.4, 1.5),
    ("bfloat16", FORWARD): (1.1, 1.1, 1.8, 1.8),
    ("float32", BOTH): (1.1, 1.0, 1.2, 1.25),
    ("bfloat16", BOTH): (1.1, 1.0, 1.2, 1.25),
}


@pytest.mark.parametrize(("rows", "channels"), [(4096, 768), (8192, 1024)])
def test_the_published_run_reaches_what_was_set_out_for(kept, rows, channels):
    for (dtype, passes), most in TARGETS.items():
        for groups, limit in zip(group_counts(channels), most, strict=True):
            way = "normscope LN-G" if groups > 1 else "normscope LayerNorm"
            assert kept[rows, channels, dtype, passes, way, groups]["ratio"] <= limit
        assert kept[rows, channels, dtype, FORWARD, "normscope RMSNorm", 1]["ratio"] <= 0.9


def test_the_table_of_the_swapped_vit_is_that_of_the_run():
    text, stored = (DOCS / "lng.md").read_text(encoding="utf-8"), read("swap-vit.json")
    runs = stored["runs"]
    alone = {run["seed"]: run["test_accuracy"] for run in runs if run["groups"] == 1}
    counts = sorted({run["groups"] for run in runs})
    assert len(runs) == len(alone) * len(counts)
    for groups in counts:
        those = [run for run in runs if run["groups"] == groups]
        before, after = (
            statistics.median(run[f"nonlinearity_{when}"] for run in those) for when in ("before", "after")
        )
        loss, right = (statistics.mean(run[name] for run in those) for name in ("training_loss", "test_accuracy"))
        gains = [100 * (run["test_accuracy"] - alone[run["seed"]]) for run in those]
        against = f"{min(gains):+.1f} to {max(gains):+.1f}" if groups > 1 else ""
        cells = f"{before:.2g} | {after:.2g} | {loss:.3f} | {right:.1%} | {against}"
        assert f"| {groups} | {stored['width'] // groups} | {cells} |" in text
