"""Every run in docs/results is what its command prints, and says how to make it again."""

import json
from pathlib import Path

import jsonschema
import pytest

from normscope.results.result import type_named

DOCS = Path(__file__).parent.parent / "docs"
KEPT = ["around", "axes", "fold", "inspect", "keys", "keys-agreement", "lng", "memorize", "scale", "vocab"]


@pytest.mark.parametrize("name", KEPT)
def test_every_kept_run_is_what_the_command_prints(name):
    run = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.validate(run, type_named(run["type"]).json_schema(), cls=jsonschema.Draft202012Validator)
    assert f"normscope bench {name} --json" in (DOCS / "benchmarks.md").read_text(encoding="utf-8")
