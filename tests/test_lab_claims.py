"""Experiments that measure instead of training for long: in miniature, and what would make their claims fail."""

import shutil

import numpy as np
import pytest

from normscope.capacity import scatter
from normscope.data import demo_model
from normscope.norm import Norm
from normscope_lab.engine.experiment import experiment_named
from normscope_lab.engine.runs import reproduce
from normscope_lab.experiments.conv_net import LOGISTIC, best_at_an_end
from normscope_lab.experiments.lssr import DATA
from normscope_lab.training.group_sizes import drawn_sizes
from normscope_lab.training.majority_task import VARIANTS
from normscope_lab.training.norm_quantiles import model_path, norm_row

SMALL = {
    "eps-selectable": {"ratios": [0.01, 1.0, 100.0], "counts": [64, 128], "sets": 10},
    "hessian": {"channels": [12, 24], "inputs": 20},
    "lssr": {"samples": 40, "width": 4, "epochs": 2, "steps": 20},
    "network-depth": {"merge": [12], "search": [12, 40], "depths": [1, 2]},
}


@pytest.mark.parametrize("name", [*SMALL, "norm-outputs"])
def test_the_claims_hold_in_miniature(name, tmp_path):
    seeds = 1 if name == "norm-outputs" else 2
    result = reproduce(name, tmp_path / "run", workers=1, seeds=seeds, changes=SMALL.get(name, {}))
    verdicts = [finding.verdict for finding in result.findings]
    assert verdicts[0] == "holds"
    assert set(verdicts) <= ({"holds", "not shown"} if name == "lssr" else {"holds"})  # two seeds decide little
    for picture in result.pictures:
        assert (tmp_path / "run" / picture).read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "run" / "results.csv").read_text(encoding="utf-8").count("\n") > 3


def judged(name, rows, **settings):
    """Verdicts of an experiment on given rows."""
    experiment = experiment_named(name)
    return [
        finding.verdict for finding in experiment.findings({**experiment.settings("quick", None), **settings}, rows)
    ]


def test_a_ratio_below_its_bound_is_seen():
    row = {"seed": 0, "inputs": "Gaussian", "channels": 12, "least": 5.0, "median": 6.0}
    rows = [{**row, "groups": 1, "least": 1.0, "bound": 1.0}, {**row, "groups": 3, "bound": 1.8}]
    assert judged("hessian", rows, channels=[12]) == ["holds"] * 3
    rows[1]["least"] = 1.2
    assert judged("hessian", rows, channels=[12]) == ["holds", "does not hold", "does not hold"]
    rows[1]["least"] = 0.9
    assert judged("hessian", rows, channels=[12]) == ["does not hold"] * 3


def test_a_linear_network_below_the_limit_is_seen():
    rows = [
        {"seed": seed, "data": data, "variant": variant, "step": 10, "ssr": reached, "lssr": 0.5}
        for seed in range(3)
        for data in DATA
        for variant, reached in (("linear network", 0.5), ("LN-Net", 0.1))
    ]
    settings = {"epochs": 1, "steps": 10}
    assert judged("lssr", rows, **settings) == ["holds"] * 4
    rows[0]["ssr"] = 0.49
    assert judged("lssr", rows, **settings)[0] == "does not hold"


def test_a_labelling_that_is_not_certified_is_seen():
    rows = [
        {"seed": 0, "kind": kind, "samples": 100, "depth": depth, "certified": 100}
        for kind, depth in (("merge", 98), ("search", 10))
    ]
    shattered = {"seed": 0, "kind": "shatter", "depth": 2, "points": 5, "labellings": 32, "certified": 32}
    settings = {"merge": [100], "search": [100], "depths": [2]}
    assert judged("network-depth", [*rows, shattered], **settings) == ["holds"] * 3
    assert judged("network-depth", [*rows, {**shattered, "certified": 31}], **settings)[2] == "does not hold"
    rows[0]["depth"] = 99
    assert judged("network-depth", [*rows, shattered], **settings)[0] == "does not hold"
    rows[1]["certified"] = 99
    assert judged("network-depth", [*rows, shattered], **settings)[:2] == ["does not hold"] * 2


def test_an_output_outside_the_ellipsoid_is_seen():
    norm = Norm(gain=[1.0, 2.0, 3.0, 4.0])
    inputs = np.random.default_rng(0).normal(size=(20, 4))
    row = {"model": "demo", "norm": "norm", **norm_row(norm, inputs, norm(inputs))}
    assert judged("norm-outputs", [row]) == ["holds"] * 3
    assert judged("norm-outputs", [row, {**row, "radius_largest": 1.01}])[0] == "does not hold"
    rounded = {**row, **norm_row(norm, inputs, norm(inputs).astype(np.float32).astype(float))}
    assert 1e-9 < rounded["rounding"] < 1e-6
    assert judged("norm-outputs", [row, {**row, "radius_largest": 1 + 1e-7, "rounding": 1e-7}])[0] == "holds"
    assert judged("norm-outputs", [row, {**row, "radius_largest": 1.01, "rounding": 0.02}])[0] == "does not hold"
    assert judged("norm-outputs", [row, {**row, "off_plane": 0.1}])[1] == "does not hold"
    assert judged("norm-outputs", [row, {**row, "near": 0.4}])[2] == "does not hold"


def test_the_size_of_inputs_gives_the_radius_of_outputs():
    norm = Norm(gain=[1.0, 2.0, 3.0, 4.0], eps=1e-2)
    inputs = np.random.default_rng(0).normal(size=(50, 4))
    row = norm_row(norm, inputs, norm(inputs))
    for level in ("least", "median", "largest"):
        ratio = row[f"ratio_{level}"]
        assert row[f"radius_{level}"] == pytest.approx(ratio / np.sqrt(ratio**2 + 1), rel=1e-3)
    inverse = 1 / np.array([1.0, 2.0, 3.0, 4.0])
    assert row["dead_along_ones"] == pytest.approx(inverse.sum() / np.linalg.norm(inverse) / 2)


def test_models_are_the_demo_model_paths_or_packages(tmp_path):
    assert model_path("demo") == demo_model()
    assert model_path(str(tmp_path)) == tmp_path
    with pytest.raises(ValueError, match="installed packages that hold a model, got numpy"):
        model_path("numpy")


def test_norms_along_training_are_those_of_the_checkpoints(tmp_path):
    for step in (0, 2, 10):
        (tmp_path / "kept").mkdir(exist_ok=True)
        shutil.copytree(demo_model(), tmp_path / "kept" / f"step-{step}")
    result = reproduce("norm-training", tmp_path / "run", data=tmp_path / "kept", workers=1)
    assert result.settings["steps"] == (0, 2, 10)
    assert [finding.verdict for finding in result.findings] == ["holds", "does not hold", "does not hold"]  # all alike
    with pytest.raises(FileNotFoundError, match="must have folders step-N"):
        reproduce("norm-training", tmp_path / "other", data=tmp_path, workers=1)


def test_outputs_that_eps_leaves_unselectable_are_seen():
    row = {"seed": 0, "count": 64, "keys": 100, "unselectable": 0, "certificates_hold": 1}
    rows = [
        {**row, "variant": "eps = 0"},
        {**row, "variant": "with eps", "ratio": 0.1, "unselectable": 8},
        {**row, "variant": "with eps", "ratio": 10.0},
        {**row, "variant": "Gaussian keys", "unselectable": 9},
    ]
    settings = {"ratios": [0.1, 10.0], "counts": [64]}
    assert judged("eps-selectable", rows, **settings) == ["holds"] * 3
    rows[0]["unselectable"], rows[2]["unselectable"], rows[3]["unselectable"] = 1, 1, 40
    assert judged("eps-selectable", rows, **settings) == ["does not hold"] * 3


def test_xor_is_what_no_linear_map_can_cluster():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 50)
    corners = DATA["XOR"](rng, labels)
    assert ((corners.sum(axis=1) % 2).astype(int) == labels).all()
    assert scatter(corners, labels).ssr > 0.8


@pytest.mark.parametrize(
    ("rates", "said"), [([0.02, 0.05, 0.1], "0.02 or 0.1, for 2 of 3 networks"), ([0.05], ""), ([0.01, 0.05, 0.2], "")]
)
def test_a_best_rate_at_an_end_of_those_tried_is_said(rates, said):
    found = {"LN": 0.1, "BN": 0.02, "GroupNorm of 8 channels": 0.05, LOGISTIC: min(rates)}
    rows = [{"activation": "without ReLU", "norm": norm, "rate": rate, "seed": 100} for norm, rate in found.items()]
    if not said:
        rows = [{**row, "rate": 0.05} for row in rows if row["norm"] != LOGISTIC]
    assert "".join(best_at_an_end(rows, rates)).endswith(said)
    assert bool(best_at_an_end(rows, rates)) is bool(said)


def test_accuracies_of_majority_are_compared_at_the_published_share_of_the_steps():
    """Not where our own runs happen to reach a loss; rows of other steps change nothing."""
    experiment = experiment_named("majority")
    settings = {**experiment.settings("quick", None), "steps": 1700, "epoch": 100}
    rows = [
        {"seed": seed, "variant": variant, "step": step, "loss": 1.0, "angle": 45.0, "test_accuracy": right}
        for seed in range(3)
        for variant, accuracy in zip(VARIANTS, (0.9, 0.8, 0.7, 0.6), strict=True)
        for step, right in ((100, 0.1), (500, accuracy + seed / 1000), (1700, 0.2))
    ]
    (found,) = (finding for finding in experiment.findings(settings, rows) if "accuracy" in finding.claim)
    assert found.ours.startswith("0.901 with, 0.601 without at 500 of 1,700 steps; by 0.3 [0.3, 0.3]; ")
    assert found.ours.count("projection alone") == 2
    assert found.ours.endswith("keys of length 1/√d: by 0.1 [0.1, 0.1]")


@pytest.mark.parametrize(("sizes", "panels"), [([2, 4], 3), ([2], 2)])
def test_what_was_chosen_is_drawn_only_where_something_was(sizes, panels):
    rows = [
        {"stage": stage, "seed": seed, "variant": variant, "channels": size, "epoch": epoch, "loss": 1.0, "score": 0.5}
        for stage in ("choosing", "judging")
        for seed in (0, 1)
        for variant, size in (("LN", 0), ("LN-G", 2))
        for epoch in (1, 2)
    ]
    settings = {"group_channels": sizes, "epochs": 2}
    figure = drawn_sizes(rows, settings, "loss", ("score", "chosen by"), ("score", "judged by"))
    assert len(figure.axes) == panels
    assert len(figure.axes[-1].lines[0].get_xdata()) == 2  # seeds, of the last epoch alone
