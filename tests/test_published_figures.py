"""Every run in docs/results is what its command prints, and says how to make it again."""

import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest

from normscope.results.result import type_named

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
KEPT = ["around", "axes", "fold", "inspect", "keys", "keys-agreement", "lng", "memorize", "scale", "vocab"]


@pytest.mark.parametrize("name", KEPT)
def test_every_kept_run_is_what_the_command_prints(name):
    run = json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))
    jsonschema.validate(run, type_named(run["type"]).json_schema(), cls=jsonschema.Draft202012Validator)
    assert f"normscope bench {name} --json" in (DOCS / "benchmarks.md").read_text(encoding="utf-8")


def speed_tables():
    spec = importlib.util.spec_from_file_location("speed_tables", ROOT / "tools" / "speed_tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["scale.md", "selectable-speed.md"])
def test_the_tables_of_a_page_are_those_that_the_tool_writes_from_the_kept_run(page):
    tool = speed_tables()
    run, text = tool.kept(DOCS, tool.PAGES[page]), (DOCS / page).read_text(encoding="utf-8")
    assert run.holds
    assert tool.written(text, run) == text
    last = tool.line(tool.tables(run)[-1][-1])
    changed = text.replace(last, last.replace("| ", "| 7", 1))
    assert changed != text
    assert tool.written(changed, run) == text


def test_costs_at_the_size_of_405b_follow_from_the_kept_run():
    run = json.loads((DOCS / "results" / "scale.json").read_text(encoding="utf-8"))
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    unit = {cost["question"]: cost["seconds"] for cost in run["units"]}
    count = {each["question"]: each["units"] for each in run["estimates"]}
    norms, parameters, tokens, width, neurons = 253, count["ranges"], 128_256, 16_384, 53_248
    assert count["inspect --text"] == norms * 1e9
    for what, value in (
        ("a norm, from the weights .*", f"{1e3 * unit['inspect'] / norms:.0f} ms"),
        ("a head, .*", f"{1e3 * unit['keys']:.0f} ms"),
        ("a token, its inputs of 253 norms", f"{norms * unit['inspect --text']:.2f} s"),
        ("a token, the model's own run", f"{parameters * unit['the model itself']:.1f} s"),
        ("a tensor, .*", f"{width * neurons * unit['ranges']:.0f} s"),
    ):
        assert re.search(rf"^\| {what} \| {re.escape(value)} \|$", text, re.MULTILINE), (what, value)
    words, table = " ".join(text.split()), width * tokens
    assert f"load average was {run['load']:.1f} when the run began" in words
    assert f"{2 * 768 / 20_000:.0%} where it was measured" in words
    assert f"{2 * width / tokens:.0%} for" in words
    assert (
        f"in float32, {4 * table / 1e9:.1f} GB, and its exact methods would need {5 * 8 * table / 1e9:.0f} GB" in words
    )


def test_what_is_said_of_the_large_vocabulary_is_in_the_kept_run():
    run = json.loads((DOCS / "results" / "vocab-large.json").read_text(encoding="utf-8"))
    words = " ".join((DOCS / "vocab.md").read_text(encoding="utf-8").split())
    wins = {row["wins"] for row in run["counts"]}
    assert len(wins) == 1  # the same by any vector and by outputs of the norm
    assert f"a table of {run['tokens']:,} × {run['channels']:,} in bfloat16" in words
    assert f"--ask {run['limit']:.0f} > docs/results/vocab-large.json" in words
    assert f"{min(wins):,} tokens ({min(wins) / run['tokens']:.1%}) were shown to win" in words
    assert f"in {run['cpu_seconds']:.0f} s of CPU time, and the process" in words
    assert f"peaked at {run['peak_megabytes'] / 1e3:.1f} GB" in words
    assert run["peak_megabytes"] < 8000


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_no_number_at_the_end_of_a_sentence_begins_a_list(page):
    """A line that begins with `32. ` is an item of a list; items are counted from 1."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    before = 0
    for item in map(int, re.findall(r"^ *(\d+)[.)] ", text, re.MULTILINE)):
        assert item in (1, before + 1), item
        before = item


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_no_page_has_a_marker_of_what_was_to_be_filled_in(page):
    """None of @@name@@, TODO, TBD, or what a merge leaves; in code and quotations they may stand."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.findall(r"@@\w*@*|\bTODO\b|\bTBD\b|\?\?\?|^(?:<{7}|={7}|>{7})(?: .*)?$", text, re.MULTILINE)
