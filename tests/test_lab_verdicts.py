"""How differences between seeds become verdicts, what a design can see, and what is chosen before it is judged."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab_data import write_all
from normscope_lab.engine.experiment import experiment_named
from normscope_lab.engine.runs import reproduce
from normscope_lab.engine.statistics import holm, least_effect, mean_interval, power, seeds_needed
from normscope_lab.engine.verdicts import Compared, decided, not_inferior, planned


def findings(*samples, effect=None):
    claims = [Compared("a", "b", "c", mean_interval(sample), effect) for sample in samples]
    return decided(claims, "")


@pytest.mark.parametrize(
    ("sample", "effect", "verdict"),
    [
        ([1.0, 1.1, 0.9, 1.0], 0.5, "holds"),
        ([-1.0, -1.1, -0.9, -1.0], None, "does not hold"),
        ([0.1, -0.1, 0.12, -0.11], 2.0, "does not hold"),  # at most half of what was published
        ([1.0, -0.6, 0.2, 0.4], 2.0, "not shown"),
        ([1.0, -0.9, 0.2, 0.4], 0.5, "cannot be decided here"),
        ([1.0, -0.9, 0.2, 0.4], None, "not shown"),
        ([1.0], 0.5, "cannot be decided here"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_published_effect(sample, effect, verdict):
    (found,) = findings(sample, effect=effect)
    assert found.verdict == verdict
    assert bool(found.would_decide) == (verdict == "cannot be decided here")


@pytest.mark.parametrize(
    ("sample", "effect", "reason"),
    [
        ([1.0, 1.1, 0.9, 1.0], None, "the 95% interval over seeds is above 0; p = 0.00015"),
        ([-1.0, -1.1, -0.9, -1.0], None, "the 95% interval over seeds is below 0; p = 0.00015"),
        ([0.1, -0.1, 0.12, -0.11], 2.0, "contains 0 and ends below half of the published 2 points; p = 0.97"),
        ([1.0, -0.6, 0.2, 0.4], 2.0, "the 95% interval over seeds contains 0; p = 0.5"),
        ([1.0], 0.5, "one seed has no interval"),
        ([1.0, np.nan], 0.5, "no interval, as a seed diverged"),
    ],
)
def test_a_verdict_says_what_it_follows_from(sample, effect, reason):
    (found,) = decided([Compared("a", "b", "c", mean_interval(sample), effect, " points")], "")
    assert found.decided_by.split("; the published")[0].endswith(reason)


def test_claims_decided_together_need_more():
    sample = [1.0, 0.2, 0.5, 0.3, 1.2, 0.1]
    assert [found.verdict for found in findings(sample)] == ["holds"]
    others = [[1.0, -1.0, 0.5, -0.4, 0.3, 0.2]] * 2
    together = findings(sample, *others)[0]
    assert together.verdict == "not shown"
    assert together.decided_by.startswith("the 95% interval over seeds is above 0; p = 0.0")
    assert together.decided_by.endswith(" after Holm's correction for 3 claims")


def test_not_worse_by_a_margin_is_a_claim_of_its_own():
    near = mean_interval([0.1, -0.1, 0.05, -0.05])
    assert not_inferior("a", "b", near, 0.5, "", "").verdict == "holds"
    assert not_inferior("a", "b", near, 0.5, "", "").decided_by == (
        "the 95% interval over seeds is above −0.5, a margin fixed before the run"
    )
    assert not_inferior("a", "b", mean_interval([-1.0, -1.1, -0.9]), 0.5, "", "").verdict == "does not hold"
    wide = not_inferior("a", "b", mean_interval([-2.0, 2.0, 0.5]), 0.5, " points", "")
    assert wide.verdict == "cannot be decided here"
    assert "seeds" in wide.would_decide


def test_power_is_the_share_of_samples_whose_interval_is_above_0():
    draw = np.random.default_rng(0)
    samples = draw.normal(0.7, 1.0, (4000, 8))
    seen = np.mean([mean_interval(sample).low > 0 for sample in samples])
    assert power(0.7, 1.0, 8) == pytest.approx(seen, abs=0.02)
    assert planned("x", 0.7, 1.0, 8, "").startswith(f"x: power {power(0.7, 1.0, 8):.0%} for 0.7 with 8 seeds")


@given(st.floats(0.2, 3), st.floats(0.2, 3))
def test_seeds_and_effects_are_those_at_which_the_power_is_reached(effect, deviation):
    needed = seeds_needed(effect, deviation)
    assert power(effect, deviation, needed) >= 0.8
    assert needed == 2 or power(effect, deviation, needed - 1) < 0.8
    assert power(least_effect(deviation, 6), deviation, 6) == pytest.approx(0.8, abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_corrected_chances_are_those_of_the_definition(chances):
    order = np.argsort(chances, kind="stable")
    expected = np.empty(len(chances))
    for place, number in enumerate(order):
        expected[number] = max(min(1, (len(chances) - j) * chances[order[j]]) for j in range(place + 1))
    assert holm(chances) == pytest.approx(expected.tolist())


def test_a_size_is_chosen_on_some_seeds_and_judged_on_others(tmp_path):
    changes = {"width": 16, "layers": 1, "hidden": 8, "group_channels": [2, 4], "patch": 16, "epochs": 1}
    told = []
    data = write_all(tmp_path / "data")
    result = reproduce(
        "vit",
        tmp_path / "run",
        data=data,
        workers=1,
        seeds=2,
        changes={**changes, "choosing_seeds": 1},
        progress=lambda *progress: told.append(progress),
    )
    assert result.seeds == (100, 101)
    assert told[-1] == (1.0, 7, 7)
    cells = [json.loads(path.read_text(encoding="utf-8")) for path in (tmp_path / "run" / "cells").glob("*.json")]
    rows = [row for cell in cells for row in cell["rows"]]
    choosing = [row for row in rows if row["stage"] == "choosing"]
    judging = [row for row in rows if row["stage"] == "judging"]
    assert {row["seed"] for row in choosing} == {0}
    assert {row["seed"] for row in judging} == {100, 101}
    assert not any("test_accuracy" in row for row in choosing)
    best = max((row for row in choosing if row["channels"]), key=lambda row: row["validation_accuracy"])
    assert {row["channels"] for row in judging} == {0, best["channels"]}
    plan = json.loads((tmp_path / "run" / "config.json").read_text(encoding="utf-8"))["plan"]
    assert plan[0].startswith("LN-G classifies better: power")
    experiment = experiment_named("vit")
    settings = {**experiment.settings("quick", None), **changes}
    assert len(experiment.later(settings, [100, 101], [])) == 4


def test_a_size_is_chosen_by_the_last_epoch():
    """The one that is best at the end, not the one that was best on the way."""
    experiment = experiment_named("translation")
    settings = {**experiment.settings("quick", None), "group_channels": [8, 16], "epochs": 2}
    losses = {(8, 1): 3.0, (8, 2): 1.0, (16, 1): 1.5, (16, 2): 1.2}
    rows = [
        {"stage": "choosing", "variant": "LN-G", "channels": size, "seed": 0, "epoch": epoch, "validation_loss": loss}
        for (size, epoch), loss in losses.items()
    ]
    assert {cell.settings["channels"] for cell in experiment.later(settings, [100], rows)} == {0, 8}
