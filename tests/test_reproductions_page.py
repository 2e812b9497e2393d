"""docs/reproductions.md is made of the results that are kept beside it."""

import importlib.util
import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from normscope_lab.engine.experiment import names
from normscope_lab.engine.runs import reproduce
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


@pytest.mark.parametrize("folder", sorted(path.name for path in KEPT.iterdir()))
def test_every_kept_finding_follows_from_the_kept_rows(tool, folder):
    found = json.loads((KEPT / folder / "findings.json").read_text(encoding="utf-8"))
    assert tool.findings(KEPT / folder) == found["findings"]


def test_the_table_has_the_strongest_runs_of_each_experiment_and_the_page_has_all(tool):
    page = (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")
    table, rest = page.split("\n## Claims\n")[1].split("\n## Runs\n")
    found = {path.parent.name: json.loads(path.read_text(encoding="utf-8")) for path in KEPT.glob("*/findings.json")}
    assert all(f"\n## {name}\n" in rest for name in found)
    for name, run in found.items():
        others = [other for other in found.values() if other["experiment"] == run["experiment"]]
        weaker = any(
            (other["preset"] == "paper", len(other["seeds"])) > (run["preset"] == "paper", len(run["seeds"]))
            for other in others
        )
        assert (f"([{name}](#{name})) |" in table) is not weaker
        assert (f" [{name}](#{name})" in table.split("with fewer seeds")[1]) is weaker


def test_runs_without_a_result_are_listed_with_their_command(tool):
    page = (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")
    missing = [run for run in tool.PLANNED if not (KEPT / run.name).exists()]
    assert all(f"| {run.name} | {run.decides} |" in page for run in missing)
    assert {run.command.split()[0] for run in tool.PLANNED} <= set(names())
    assert tool.commands(Path("/runs")).count("-o /runs/") == len(tool.PLANNED)


def test_commands_are_shown_without_the_folders_of_one_machine(tool):
    command = "normscope reproduce vit --data there/data -o there/runs/vit --set 'epochs=[1, 2]'"
    assert tool.short(command) == "normscope reproduce vit --data data -o vit --set 'epochs=[1, 2]'"


def test_a_command_whose_settings_have_changed_since_is_told_apart(tool):
    config = json.loads((KEPT / "majority-long" / "config.json").read_text(encoding="utf-8"))
    assert tool.holds_today(config)
    assert not tool.holds_today({**config, "seeds": [0, 1]})
    assert not tool.holds_today({**config, "settings": {**config["settings"], "batch": 300}})
    assert not tool.holds_today({**config, "command": f"{config['command']} --set groups=4"})  # no setting now


def test_a_run_that_is_interrupted_goes_on_from_what_was_kept_of_it(tool, tmp_path):
    """Its cells are not computed again, and its rows are those of a run that was not interrupted."""
    changes = {"keys": [8, 12], "channels": [2], "runs": 5}
    whole = tmp_path / "whole"
    reproduce("random-keys", whole, changes=changes, workers=1)
    run, docs = tmp_path / "random-keys-two", tmp_path / "docs"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("findings.json", "results.csv", "*.png"))
    first, *others = sorted((run / "cells").glob("*.json"))
    for cell in others:
        cell.unlink()
    tool.pause(run, docs)
    shutil.rmtree(run)
    tool.resume(docs, run)
    assert [path.name for path in (run / "cells").iterdir()] == [first.name]
    before = (run / "cells" / first.name).stat().st_mtime_ns
    reproduce("random-keys", run, changes=changes, workers=1)
    assert (run / "cells" / first.name).stat().st_mtime_ns == before
    assert (run / "results.csv").read_bytes() == (whole / "results.csv").read_bytes()
    tool.keep(run, docs / "results" / "reproductions")
    assert not (docs / "results" / "unfinished" / run.name).exists()


def test_what_can_not_be_kept_or_resumed_is_said(tool, tmp_path):
    (tmp_path / "run" / "cells").mkdir(parents=True)
    with pytest.raises(SystemExit, match="has no finished cell"):
        tool.pause(tmp_path / "run", tmp_path)
    (tmp_path / "run" / "findings.json").write_text("{}")
    with pytest.raises(SystemExit, match="is finished"):
        tool.pause(tmp_path / "run", tmp_path)
    with pytest.raises(SystemExit, match="nothing of a run vit is kept"):
        tool.resume(tmp_path, tmp_path / "vit")
