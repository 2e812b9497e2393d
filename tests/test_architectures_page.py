"""docs/architectures.md is made of the results beside it; a few of its architectures are looked at anew."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
QUICK = ("wav2vec2", "mixtral", "falcon")  # sound, experts, layers whose outputs are added to in place
SLOW = ("siglip2", "t5gemma", "convnext")  # two towers, a decoder, images


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("architectures_tool", ROOT / "tools" / "architectures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tool_writes_from_the_results(tool):
    rows = json.loads((ROOT / "docs" / "results" / "architectures.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8") == tool.page(rows)


def test_no_published_output_passes_its_bound():
    rows = json.loads((ROOT / "docs" / "results" / "architectures.json").read_text(encoding="utf-8"))
    assert len(rows) > 60
    assert {row["architecture"]: row["soundness"]["largest"] for row in rows if row["soundness"]["largest"] > 1} == {}


@pytest.mark.parametrize("architecture", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_no_output_of_a_model_with_large_weights_passes_its_bound(tool, architecture, monkeypatch):
    monkeypatch.setattr(tool, "SEEDS", (5,))
    found = tool.soundness(architecture)
    assert found["layers"] > 3
    assert found["outputs"] > 1000
    assert 0.5 < found["largest"] < 1 + 1e-5


def test_a_bound_that_is_false_shows(tool):
    import torch

    rows, low, high = torch.tensor([[1.0, -4.0]]).double(), *torch.tensor([[-2.0, -5.0], [2.0, -3.0]]).double()
    assert tool.share(rows, low, high) == 0.8
    assert tool.share(rows, low, high - 0.5) == pytest.approx(0.8)
    assert tool.share(rows - 2, low, high) == pytest.approx(2.0)
    assert tool.share(rows, low * 0.1, high) > 1
