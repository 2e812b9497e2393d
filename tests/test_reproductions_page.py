"""docs/reproductions.md is made of the results that are kept beside it."""

import csv
import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest

from normscope_lab.engine.experiment import experiment_named
from normscope_lab.results.reproduction import Reproduction

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "docs" / "results" / "reproductions"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("reproductions", ROOT / "tools" / "reproductions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tool_writes_from_the_results(tool):
    assert (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8") == tool.page(KEPT)


@pytest.mark.parametrize("folder", sorted(path.name for path in KEPT.iterdir()))
def test_every_kept_run_is_whole(folder):
    found = json.loads((KEPT / folder / "findings.json").read_text(encoding="utf-8"))
    config = json.loads((KEPT / folder / "config.json").read_text(encoding="utf-8"))
    jsonschema.validate(found, Reproduction.json_schema())
    assert folder.startswith(found["experiment"])
    assert config["settings"] == found["settings"]
    assert config["command"].startswith("normscope reproduce")
    assert len(config["commit"]) == 40
    assert all((KEPT / folder / picture).exists() for picture in found["pictures"])


def test_a_kept_finding_follows_from_the_kept_rows():
    folder = KEPT / "hessian-quick"
    found = json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    with (folder / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update({name: float(row[name]) for name in ("channels", "groups", "least", "median", "bound")})
    again = experiment_named("hessian").findings(found["settings"], rows)
    assert [finding.ours for finding in again] == [finding["ours"] for finding in found["findings"]]
