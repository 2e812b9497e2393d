"""Runs of experiments: interrupted and resumed, in one process or several, every experiment in miniature."""

import importlib
import json
import re
import signal
import subprocess
import sys
import time

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student
from scipy.stats import ttest_rel
from typer.testing import CliRunner

from lab_data import write_all
from normscope.cli import app
from normscope.errors import PieceError
from normscope.results.result import load_bytes, type_named
from normscope_lab.engine import statistics
from normscope_lab.engine.cell_state import CellState
from normscope_lab.engine.experiment import as_result, experiment_named, names
from normscope_lab.engine.runs import reproduce
from normscope_lab.engine.statistics import mean_interval, paired_difference
from normscope_lab.experiments import translation
from normscope_lab.training.key_inputs import shares, unselectable

MAJORITY = {"samples": 60, "length": 20, "classes": 5, "batch": 8, "steps": 4, "epoch": 2, "every": 1}
SMALL = {
    "random-keys": {"keys": [4, 18], "channels": [3, 13], "runs": 4},
    "majority": MAJORITY,
    "majority-3d": MAJORITY,
    "language-model": {"vocabulary": 260, "length": 24, "steps": 4, "epoch": 2, "sequences": 2},
    "bert-no-norm": {"vocabulary": 280, "epochs": 2},
    "random-labels": {
        "datasets": ["mnist", "cifar10"],
        "images": 20,
        "side": 2,
        "width": 8,
        "depth": 2,
        "groups": [2],
        "epochs": [2],
        "learning_rates": [1e-2, 1e-3],
        "choosing_seeds": 1,
    },
    "conv-net": {
        "widths": [8, 16],
        "side": 8,
        "batch": 12,
        "learning_rates": [0.05],
        "epochs": 2,
    },
    "vit": {
        "width": 16,
        "layers": 1,
        "hidden": 8,
        "group_channels": [4, 8],
        "patch": 8,
        "batch": 12,
        "epochs": 2,
        "choosing_seeds": 1,
    },
    "translation": {
        "vocabulary": 280,
        "width": 16,
        "layers": 1,
        "hidden": 8,
        "group_channels": [4, 8],
        "batch": 10,
        "epochs": 2,
        "beam": 2,
        "choosing_seeds": 1,
    },
}
ONE_STEP = {  # what is left of the published set-up is its networks, optimizers and batches
    "majority": {"samples": 100, "steps": 1, "epoch": 1, "every": 1},
    "majority-3d": {"samples": 100, "steps": 1, "epoch": 1, "every": 1},
    "language-model": {"batch": 1, "steps": 1, "epoch": 1, "sequences": 1},
    "bert-no-norm": {"epochs": 1},
    "random-labels": {"epochs": [1], "learning_rates": [1e-3], "batches": [128], "side": 2},
    "conv-net": {"epochs": 1, "learning_rates": [0.05], "side": 8},
    "vit": {"epochs": 1, "group_channels": [8]},
    "translation": {"epochs": 1, "group_channels": [8]},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("data"))


@pytest.fixture
def scored(monkeypatch):
    """Translations are scored by their length where sacrebleu is not installed."""
    try:
        import sacrebleu  # noqa: F401
    except ImportError:
        monkeypatch.setattr(translation, "require_sacrebleu", lambda: None)
        monkeypatch.setattr(translation, "bleu", lambda answers, references: float(sum(map(len, answers)) % 100))


def small(name, out, data, **others):
    given = {"workers": 1, "seeds": 2, "changes": SMALL[name], **others}
    return reproduce(name, out, data=data if experiment_named(name).data else None, **given)


def test_every_experiment_has_a_miniature():
    others = {"eps-selectable", "hessian", "lssr", "network-depth", "norm-outputs", "norm-training"}
    assert set(SMALL) | others == set(names())  # those: test_lab_claims.py
    assert set(ONE_STEP) == set(SMALL) - {"random-keys"}


@pytest.mark.parametrize("name", SMALL)
def test_an_experiment_writes_rows_findings_and_pictures(name, tmp_path, data, scored):
    result = small(name, tmp_path / "run", data)
    written = json.loads((tmp_path / "run" / "findings.json").read_text(encoding="utf-8"))
    jsonschema.validate(written, result.json_schema())
    assert written == json.loads(json.dumps(result.to_dict()))
    rows = (tmp_path / "run" / "results.csv").read_text(encoding="utf-8").splitlines()
    assert "seed" in rows[0]
    assert len(rows) > 1
    assert not list((tmp_path / "run" / "cells").glob("*.state"))
    for picture in (*result.pictures, *result.pages):
        assert (tmp_path / "run" / picture).stat().st_size > 1000
    assert "Different here" in str(result)  # a miniature is never what the paper did
    assert load_bytes(result.to_bytes(), "run") == result


@pytest.mark.parametrize("name", [name for name in SMALL if name != "random-keys"])
def test_an_experiment_stopped_after_an_epoch_ends_as_one_that_was_not(name, tmp_path, data, scored, monkeypatch):
    small(name, tmp_path / "whole", data, seeds=1)
    save = CellState.save

    def save_and_stop(state, values, done):
        save(state, values, done)
        if done < 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(CellState, "save", save_and_stop)
    interruptions = 0
    while True:
        try:
            small(name, tmp_path / "parts", data, seeds=1)
            break
        except KeyboardInterrupt:
            interruptions += 1
    cells = [
        path
        for path in (tmp_path / "parts" / "cells").glob("*.json")
        if path.name.count("best-linear") + path.name.count("logistic") == 0
    ]
    assert interruptions == len(cells)
    assert (tmp_path / "parts" / "results.csv").read_bytes() == (tmp_path / "whole" / "results.csv").read_bytes()


@pytest.mark.parametrize("name", ONE_STEP)
def test_the_published_set_up_starts(name, tmp_path, data, scored):
    result = small(name, tmp_path / "run", data, preset="paper", seeds=1, changes=ONE_STEP[name])
    published = as_result(experiment_named(name).settings("paper", data))
    kept = set(published) - set(ONE_STEP[name]) - {"data"}
    assert all(result.settings[setting] == published[setting] for setting in kept)
    assert result.findings


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_that_was_killed_is_resumed_to_the_same_result(workers, tmp_path):
    changes = {**MAJORITY, "steps": 60, "epoch": 1}
    program = (
        "from pathlib import Path; from normscope_lab.engine.runs import reproduce\n"
        "if __name__ == '__main__':\n"
        f"    reproduce('majority', Path('parts'), seeds=1, workers={workers}, changes={changes!r})"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    child = subprocess.Popen([sys.executable, "program.py"], cwd=tmp_path)
    cells = tmp_path / "parts" / "cells"
    try:
        while not list(cells.glob("*.state")):
            assert child.poll() is None, "the run ended before it could be killed"
            time.sleep(0.002)
    finally:
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    time.sleep(0.5)  # workers end with their parent
    unfinished = [CellState(cells, state.stem).load()["epochs"] for state in cells.glob("*.state")]
    assert any(0 < epochs < 60 for epochs in unfinished)
    for out in ("parts", "whole"):
        reproduce("majority", tmp_path / out, seeds=1, workers=1, changes=changes)
    assert (tmp_path / "parts" / "results.csv").read_bytes() == (tmp_path / "whole" / "results.csv").read_bytes()


def test_parallel_processes_give_what_one_gives(tmp_path):
    for workers in (1, 2):
        reproduce("majority", tmp_path / str(workers), seeds=1, workers=workers, changes=MAJORITY)
    assert (tmp_path / "1" / "results.csv").read_bytes() == (tmp_path / "2" / "results.csv").read_bytes()


def test_a_folder_of_another_run_is_refused(tmp_path):
    reproduce("random-keys", tmp_path / "run", workers=1, changes=SMALL["random-keys"])
    with pytest.raises(ValueError, match="another run, with settings"):
        reproduce("random-keys", tmp_path / "run", workers=1, changes={**SMALL["random-keys"], "runs": 5})
    with pytest.raises(ValueError, match="another run, with experiment"):
        reproduce("majority", tmp_path / "run", workers=1, changes=MAJORITY)
    with pytest.raises(ValueError, match="holds no run"):
        reproduce("random-keys", tmp_path, workers=1)


def test_what_an_experiment_does_not_know_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match=r"can be changed are samples, .*got 'stepps'"):
        reproduce("majority", tmp_path / "run", changes={"stepps": 3})
    with pytest.raises(ValueError, match=r"steps must be above 0 and like 2000, got 3.5"):
        reproduce("majority", tmp_path / "run", changes={"steps": 3.5})
    with pytest.raises(ValueError, match="can be changed are"):
        reproduce("language-model", tmp_path / "run", data=data, changes={"data": {}})
    with pytest.raises(ValueError, match="needs --data"):
        reproduce("vit", tmp_path / "run")
    with pytest.raises(ValueError, match="must be one of"):
        reproduce("majorety", tmp_path / "run")
    with pytest.raises(ValueError, match="preset must be"):
        reproduce("majority", tmp_path / "run", preset="slow")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("vit", {"heads": 3}, "width must be a multiple of heads, got 64 and 3"),
        ("vit", {"epochs": 0}, "epochs must be above 0 and like 36, got 0"),
        ("translation", {"group_channels": [8, 20]}, "width must be a multiple of group_channels, got 96 and 20"),
        ("translation", {"warmup": -1}, "warmup must be above 0 and like 500, got -1"),
        ("random-labels", {"groups": [4, 3]}, "width must be a multiple of groups, got 64 and 3"),
        ("random-labels", {"datasets": ["letters"]}, "datasets must be of cifar10, mnist, got letters"),
        ("conv-net", {"widths": [8, 20]}, "widths must be multiples of 8, got 20"),
        ("majority", {"steps": 150}, "steps must be a multiple of epoch, got 150 and 100"),
        ("majority", {"every": 30}, "epoch must be a multiple of every, got 100 and 30"),
        ("majority-3d", {"width": 4}, "width must be 3, as it is drawn in space, got 4"),
        ("hessian", {"channels": [30]}, "channels must be multiples of 4, 12 or more, got 30"),
        ("random-keys", {"keys": []}, r"keys must be above 0 and like \[3, 6.*, got \[\]"),
        ("network-depth", {"search": [1]}, "merge and search must be 3 samples or more, got 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(name, changes, message, tmp_path, data):
    with pytest.raises(ValueError, match=message):
        reproduce(name, tmp_path / "run", data=data, changes=changes)
    assert not (tmp_path / "run").exists()


def test_data_that_does_not_fit_is_refused(tmp_path, data):
    with pytest.raises(ValueError, match="images must be those of CIFAR-10"):
        small("vit", tmp_path / "vit", data / "mnist")
    with pytest.raises(FileNotFoundError, match="must have the folders cifar10 and mnist"):
        small("random-labels", tmp_path / "labels", data / "cifar10")
    (tmp_path / "one" / "cifar10").mkdir(parents=True)
    (tmp_path / "one" / "cifar10" / "small.npz").write_bytes((data / "cifar10" / "small.npz").read_bytes())
    with pytest.raises(PieceError, match="must have the folder mnist"):
        small("random-labels", tmp_path / "one-set", tmp_path / "one")
    with pytest.raises(ValueError, match="vocabulary must be 256 or more, to hold all bytes, got 100"):
        reproduce("language-model", tmp_path / "words", data=data, workers=1, changes={"vocabulary": 100})
    (tmp_path / "sst2").mkdir()
    for name, labels in (("train", "0011"), ("dev", "0022")):
        lines = [f"a film\t{label}" for label in labels]
        (tmp_path / "sst2" / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ValueError, match="got 0, 1 to train with and 0, 2 to test with"):
        small("bert-no-norm", tmp_path / "bert", tmp_path / "sst2")
    with pytest.raises(ValueError, match="--seeds must be 1, got 2"):
        reproduce("norm-outputs", tmp_path / "outputs", seeds=2)


def test_cells_with_grids_of_one_place_are_drawn_and_judged(tmp_path):
    result = reproduce("hessian", tmp_path / "hessian", workers=1, seeds=1, changes={"channels": [12], "inputs": 5})
    assert [finding.verdict for finding in result.findings] == ["holds"] * 3
    changes = {"keys": [4], "channels": [5], "runs": 3}
    (only,) = reproduce("random-keys", tmp_path / "keys", workers=1, changes=changes).findings
    assert only.differences.startswith("keys 4 (the paper: 3, 4, 5")


def test_a_run_tells_how_far_it_is(tmp_path):
    told = []
    reproduce(
        "random-keys",
        tmp_path / "run",
        workers=1,
        changes=SMALL["random-keys"],
        progress=lambda done, finished, cells: told.append((done, finished, cells)),
    )
    assert told == [(0.0, 0, 2), (0.5, 1, 2), (1.0, 2, 2)]


def test_a_run_whose_output_goes_to_a_file_tells_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("normscope_lab.cli.reproduce"), "LINE_SECONDS", 0.0)
    given = [f"--set={name}={value}" for name, value in SMALL["random-keys"].items()]
    command = ["reproduce", "random-keys", "--workers=1", "--out", str(tmp_path / "run"), *given]
    first, again = (CliRunner().invoke(app, command) for _ in range(2))
    assert first.stderr == "random-keys: 1 of 2 cells, 50%, 0 min left\n"
    assert again.stderr == ""


def test_other_data_is_another_run(tmp_path, data):
    other = write_all(tmp_path / "data")
    (other / "wikitext2" / "text.txt").write_text("a b c d e f " * 3000, encoding="utf-8")
    small("language-model", tmp_path / "run", data)
    with pytest.raises(ValueError, match="another run, with settings"):
        small("language-model", tmp_path / "run", other)


def test_translation_says_what_it_misses_before_it_trains(tmp_path, data, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"normscope\[lab\]"):
        small("translation", tmp_path / "run", data)


def test_a_run_without_scipy_is_refused_before_it_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(statistics, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install \"normscope\[lab\]\""):
        reproduce("random-keys", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bleu_is_100_for_the_references_themselves():
    pytest.importorskip("sacrebleu")
    lines = ["a man runs with his dog", "the child sees a red house"]
    assert translation.bleu(lines, lines) == pytest.approx(100)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12), st.integers(0, 2**32 - 1))
def test_intervals_are_those_of_students_t(values, seed):
    values = np.array(values) + np.random.default_rng(seed).normal(size=len(values))
    found = mean_interval(values.tolist())
    low, high = student.interval(0.95, len(values) - 1, values.mean(), values.std(ddof=1) / np.sqrt(len(values)))
    assert (found.low, found.high) == pytest.approx((low, high))


@given(st.integers(0, 2**32 - 1))
def test_paired_differences_are_those_of_the_paired_test(seed):
    one, other = np.random.default_rng(seed).normal(size=(2, 6))
    expected = ttest_rel(one, other).confidence_interval(0.95)
    found = paired_difference(one.tolist(), other.tolist())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.above() is (True if expected.low > 0 else False if expected.high < 0 else None)


def test_one_seed_shows_nothing():
    assert paired_difference([3.0], [1.0]).above() is None
    with pytest.raises(ValueError, match="as many values"):
        paired_difference([1.0, 2.0], [1.0])


def test_the_page_that_turns_offers_no_upload(tmp_path):
    result = small("majority-3d", tmp_path / "run", None)
    (page,) = result.pages
    assert '"showSendToCloud": false' in (tmp_path / "run" / page).read_text(encoding="utf-8")


def test_the_command_lists_all_experiments():
    done = CliRunner().invoke(app, ["reproduce", "--list"])
    assert all(f"\n {name} " in done.output for name in names())
    listed = json.loads(CliRunner().invoke(app, ["reproduce", "--list", "--json"]).stdout)
    jsonschema.validate(listed, type_named("experiments_list").json_schema())
    assert [each["name"] for each in listed["experiments"]] == list(names())


def test_the_command_changes_settings(tmp_path):
    given = [f"--set={name}={value}" for name, value in SMALL["random-keys"].items()]
    done = CliRunner().invoke(app, ["reproduce", "random-keys", "--out", str(tmp_path / "run"), "--json", *given])
    assert SMALL["random-keys"].items() <= json.loads(done.stdout)["settings"].items()
    done = CliRunner().invoke(app, ["reproduce", "random-keys", "--out", str(tmp_path / "other"), "--set", "runs"])
    assert "NAME=VALUE" in str(done.exception)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("name", "unknown"), [("language_model", 2), ("majority", 9), ("bert_no_norm", 0)])
def test_a_seed_that_diverges_is_said_and_shows_nothing(name, unknown, tmp_path, data, monkeypatch):
    home = "training.majority_task" if name == "majority" else f"experiments.{name}"
    module = importlib.import_module(f"normscope_lab.{home}")
    descend = module.descend

    def diverging(loss, optimizer, schedule):
        value = descend(loss, optimizer, schedule)
        if torch.initial_seed() == 1:
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.data.fill_(float("nan"))
        return value

    monkeypatch.setattr(module, "descend", diverging)
    findings = small(name.replace("_", "-"), tmp_path / "run", data).findings
    assert all(re.match(r"diverged: .*, seed 1; ", finding.differences) for finding in findings)
    assert [finding.verdict for finding in findings if "unknown amount" in finding.ours] == [
        "cannot be decided here"
    ] * unknown


def test_where_all_networks_diverged_nothing_is_judged():
    lost = unselectable([np.full((1, 4, 2), np.nan)])
    assert lost["keys"] == 0
    with pytest.raises(ValueError, match="layer 1 has no keys"):
        shares([{"layer": 1, **lost}], 1)
