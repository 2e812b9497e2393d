"""A run over a long text that is killed is resumed by the same command, with the same bytes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import normscope as ns
from normscope.data import sample_text
from normscope.errors import InputError
from normscope.norm import Norm
from normscope.studies import run_state
from normscope.studies.inspect import inspect
from normscope.studies.landing import LandingGatherer
from normscope.studies.run_state import put_back, state_of

KILLED = """
import os, signal, sys
from pathlib import Path
from normscope import demo_model
from normscope.cli import options
from normscope.cli import commands
from normscope.studies import run_state
run_state.SECONDS = run_state.SHARE = 0.0
def killing(things, what):
    for number, thing in enumerate(things):
        if what == "running the model" and number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        yield thing
commands.progress = killing
commands.inspect(model=[str(demo_model())], text=sys.argv[1], save=Path(sys.argv[2]))
"""


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    text = sample_text()
    for number in range(3):
        (folder / f"{number}.txt").write_text(text[1200 * number : 1200 * (number + 1)])
    return folder


def test_a_killed_command_is_resumed_with_the_same_bytes(tmp_path, corpus, run_here):
    whole, target = tmp_path / "whole.safetensors", tmp_path / "resumed.safetensors"
    assert run_here("inspect", "--text", str(corpus), "-o", str(whole)).returncode == 0
    done = subprocess.run([sys.executable, "-c", KILLED, corpus, target], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    parts = tmp_path / "resumed.safetensors.parts"
    assert parts.exists()
    assert not target.exists()
    batches = torch.load(parts, weights_only=True)[1]
    assert batches == 3
    assert run_here("inspect", "--text", str(corpus), "-o", str(target)).returncode == 0
    assert target.read_bytes() == whole.read_bytes()
    assert not parts.exists()
    assert not list(tmp_path.glob("*.parts"))


@pytest.fixture
def begun(tmp_path, corpus, monkeypatch):
    """A run that was interrupted."""
    monkeypatch.setattr(run_state, "SECONDS", 0.0)
    monkeypatch.setattr(run_state, "SHARE", 0.0)

    def interrupting(things, what):
        for number, thing in enumerate(things):
            if what == "running the model" and number == 2:
                raise KeyboardInterrupt
            yield thing

    with pytest.raises(KeyboardInterrupt):
        inspect(ns.demo_model(), text=corpus, parts=tmp_path / "parts", progress=interrupting)
    return tmp_path / "parts"


def test_only_what_is_left_is_run(begun, corpus, monkeypatch):
    ran = []
    original = run_state.RunState.save_if_due
    monkeypatch.setattr(
        run_state.RunState, "save_if_due", lambda self, done, what: (ran.append(done), original(self, done, what))
    )
    resumed = inspect(ns.demo_model(), text=corpus, parts=begun)
    assert min(ran) == 3
    assert resumed.to_bytes() == inspect(ns.demo_model(), text=corpus).to_bytes()


def test_a_changed_text_or_other_options_are_refused_in_one_line(begun, corpus):
    with pytest.raises(InputError, match="holds a run with another model, text, options or version: repeat that run"):
        inspect(ns.demo_model(), text=corpus, parts=begun, dtype="float64")
    (corpus / "0.txt").write_text("something else")
    with pytest.raises(InputError, match="or remove the file to begin again"):
        inspect(ns.demo_model(), text=corpus, parts=begun)
    begun.write_bytes(b"nothing")
    with pytest.raises(InputError, match="is damaged"):
        inspect(ns.demo_model(), text=corpus, parts=begun)
    with pytest.raises(InputError, match="parts need the path of a model and a text"):
        inspect(torch.nn.LayerNorm(3), inputs=torch.ones(2, 3), parts=Path("parts"))


@pytest.mark.parametrize("norm", [Norm(gain=np.ones(6)), Norm(gain=np.arange(6.0), project=False, groups=2)])
def test_a_gatherer_goes_on_from_its_state_as_if_it_had_not_stopped(norm):
    rng = np.random.default_rng(0)
    pieces = [rng.normal(size=(3000, 6)) for _ in range(4)]
    whole, first, second = LandingGatherer(norm), LandingGatherer(norm), LandingGatherer(norm)
    for piece in pieces:
        whole.add(piece)
    for piece in pieces[:2]:
        first.add(piece)
    put_back(second, state_of(first))
    for piece in pieces[2:]:
        second.add(piece)
    ours, theirs = whole.result(), second.result()
    assert ours == theirs
    np.testing.assert_array_equal(ours.points, theirs.points)
