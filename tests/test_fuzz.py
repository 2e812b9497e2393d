"""Damaged and hostile files: a sample of the campaign of tools/fuzz.py, and that the campaign finds what it should."""

import contextlib
import importlib.util
import json
import os
import re
import sys
from pathlib import Path

import pytest

from normscope.errors import InputError

ROOT = Path(__file__).parents[1]


def load_tool():
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "tools" / "fuzz.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["fuzz"] = module  # dataclasses look for it there
    spec.loader.exec_module(module)
    return module


fuzz = load_tool()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(fuzz.READERS))
def test_every_reader_ends_damaged_files_in_a_result_or_one_line(name):
    cases = round(2 * fuzz.READERS[name].share)
    found = fuzz.campaign(name, cases, seed=0)
    assert found.findings == {}
    assert found.read + found.refused == found.cases == cases


def ends_badly(how):
    """A reader that goes wrong whenever its file is damaged."""

    def read(path):
        if path.read_bytes() != b"valid":
            how()

    return fuzz.Reader("bad", lambda folder: [fuzz.write(folder / "file", b"valid")], read, 1)


def refuse_at_length():
    raise InputError("x" * 700)


def refuse_in_two_lines():
    raise InputError("one\ntwo")


def go_on_forever():
    while True:
        pass


@pytest.mark.parametrize(
    ("how", "what"),
    [
        (lambda: {}["x"], "KeyError elsewhere"),
        (b"\xff".decode, "UnicodeDecodeError"),
        (refuse_at_length, "a message of 1 lines and 700 characters"),
        (refuse_in_two_lines, "a message of 2 lines"),
        (lambda: bytearray(3 * 10**9), "MemoryError"),
        (go_on_forever, "more than 0.1 s"),
        (lambda: os._exit(3), "the process died"),
    ],
)
def test_what_goes_wrong_is_found_with_its_case(monkeypatch, how, what):
    monkeypatch.setitem(fuzz.READERS, "bad", ends_badly(how))
    if how is go_on_forever:  # others may take longer on a machine with other work
        monkeypatch.setattr(fuzz, "SECONDS", 0.1)
    found = fuzz.campaign("bad", 4, seed=0)
    assert [bool(re.match(what, each)) for each in found.findings] == [True]
    assert found.read + found.refused + sum(map(len, found.findings.values())) == 4


def test_a_case_depends_on_reader_seed_and_number_alone(tmp_path):
    [target] = fuzz.prepare_safetensors(tmp_path)

    def case(seed, number):
        return fuzz.damaged(target.read_bytes(), target.name, fuzz.Random(f"safetensors {seed} {number}"))

    assert case(1, 5) == case(1, 5)
    assert len({case(1, number) for number in range(50)}) > 40
    assert case(2, 5) != case(1, 5)


@pytest.mark.parametrize("change", [fuzz.change_metadata, fuzz.change_tensor])
def test_tensor_files_are_changed_in_what_the_format_does_not_check(tmp_path, change):
    from safetensors.numpy import load

    [target, _] = fuzz.prepare_network(tmp_path)
    content = target.read_bytes()
    changed = {change(content, fuzz.Random(number)) for number in range(60)}
    assert len(changed - {content}) > 30
    readable = 0
    for each in changed:
        with contextlib.suppress(Exception):
            load(each)
            readable += 1
    assert readable > 0.9 * len(changed)


def test_the_page_has_the_counts_of_the_campaign():
    runs = json.loads((ROOT / "docs" / "results" / "fuzz.json").read_text(encoding="utf-8"))["runs"]
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert fuzz.table(ROOT / "docs" / "results" / "fuzz.json") in page
    assert {run["reader"] for run in runs} == set(fuzz.READERS)
    assert all(run["findings"] == {} and run["read"] + run["refused"] == run["cases"] for run in runs)
