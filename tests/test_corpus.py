"""Texts in files, folders, .jsonl and .parquet: read piece by piece, the same batches as from memory."""

import json
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import normscope as ns
from normscope.errors import InputError
from normscope.models.corpus import Corpus, cut
from normscope.models.load import text_batches
from normscope.models.subject import Subject

TEXTS = ["To be, or not to be, that is the question:", "Whether 'tis nobler in the mind to suffer", "…\nThe slings"]


def cut_at_once(text, size):
    """The same of a text in memory."""
    start, blocks = 0, []
    while len(text) - start > size:
        end = start + size
        space = max(text.rfind(" ", start + 1, end), text.rfind("\n", start + 1, end))
        blocks.append(text[start : space if space > start else end])
        start = space if space > start else end
    return [*blocks, text[start:]]


@given(pieces=st.lists(st.text("ab \n", max_size=30)), size=st.integers(2, 20))
def test_blocks_do_not_depend_on_how_a_text_is_read(pieces, size):
    assert list(cut(pieces, size)) == cut_at_once("".join(pieces), size)


@pytest.fixture
def corpus(tmp_path):
    """The same three texts in every form."""
    rows = [{"id": number, "words": text} for number, text in enumerate(TEXTS)]
    lines = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "texts.jsonl").write_text(f"{lines}\n\n", encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "texts.parquet")
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    for place, text in zip(("deep/a.txt", "deep/b.md", "z.txt"), TEXTS, strict=True):
        (tmp_path / "folder" / place).write_text(text, encoding="utf-8")
    (tmp_path / "folder" / "picture.png").write_bytes(b"\xff")
    return tmp_path


def batches_of(text):
    return [batch["input_ids"] for batch in text_batches(ns.demo_model(), text)]


@pytest.mark.parametrize("name", ["texts.jsonl", "texts.parquet", "folder", "folder/**/*.[tm][xd]*", "t*.jsonl"])
def test_every_form_gives_the_batches_of_the_same_texts(name, corpus):
    found, wanted = batches_of(Corpus(corpus / name, column="words")), batches_of(TEXTS)
    assert len(found) == len(wanted)
    assert all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))
    subject = Subject(ns.demo_model(), text=Corpus(corpus / name, column="words"))
    assert subject.text == Subject(ns.demo_model(), text=TEXTS).text
    assert list(subject.words) == TEXTS


def test_a_long_file_and_its_lines_are_read_as_from_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.models.corpus.BLOCK", 50)
    text = "\n\n".join(f"{line} \x0c again {line}" for line in TEXTS * 3)
    path = tmp_path / "long.txt"
    path.write_text(text, encoding="utf-8")
    for found, wanted in ((path, text), (Corpus(path, lines=True), text.splitlines())):
        pairs = zip(Subject(ns.demo_model(), text=found).batches(), batches_of(wanted), strict=True)
        assert all(torch.equal(one["input_ids"], other) for one, other in pairs)


def test_memory_does_not_grow_with_a_corpus(tmp_path):
    line = json.dumps({"text": "word " * 200}) + "\n"
    (tmp_path / "long.jsonl").write_text(line * 20_000, encoding="utf-8")
    (tmp_path / "long.txt").write_text("word " * 4_000_000, encoding="utf-8")
    for name, size in (("long.jsonl", (20_000, 20_000_000)), ("long.txt", (1, 20_000_000))):
        tracemalloc.start()
        assert Corpus(tmp_path / name).size() == size
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2e6


def test_a_study_runs_on_a_corpus(corpus, run_here):
    found = run_here("inspect", "--text", corpus / "texts.parquet", "--column", "words", "--json")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["text"] == f"3 texts of {sum(map(len, TEXTS))} characters"
    assert (
        json.loads(found.stdout)["norms"]
        == json.loads(run_here("inspect", "--text", corpus / "texts.jsonl", "--column", "words", "--json").stdout)[
            "norms"
        ]
    )


@pytest.mark.parametrize("command", ["vocab", "fold"])
def test_every_command_that_takes_such_a_text_takes_its_column(command, corpus, run_here):
    found = run_here(command, "--text", corpus / "texts.jsonl", "--column", "words", "--json")
    assert found.returncode == 0, found.stderr
    without = run_here(command, "--text", corpus / "texts.jsonl")
    assert without.returncode == 2
    assert "name the column with --column" in without.stderr


@pytest.mark.parametrize("text", [[], ["--text", "sample"]])
def test_a_column_of_nothing_is_refused(text, run_here):
    found = run_here("inspect", *text, "--column", "words")
    assert found.returncode == 2
    assert "--column needs --text with .jsonl or .parquet files" in found.stderr


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "so"}\n{"words": "so"}', "a.jsonl, line 2: must be an object with a text at 'text'"),
        ("a.jsonl", b'{"text": 3}', "line 1: 'text' must be a text, got int '3'"),
        ("a.jsonl", b'{"text": "so"}\n{"text": null}', "line 2: 'text' must be a text, got none"),
        ("a.jsonl", b'{"text": "so \\ud800"}', r"line 1: 'text' must be a text, got half of a character, U\+D800"),
        ("a.jsonl", b'{"text": "so \xff"}', "a.jsonl must be UTF-8 text, got byte 0xff at 13"),
        ("a.txt", b"s" * (2**16 - 1) + b"\xc3\xa4\xff", "a.txt must be UTF-8 text, got byte 0xff at 65537"),
        ("a.txt", b"s" * 2**16 + b"\xc3", "a.txt must be UTF-8 text, got byte 0xc3 at 65536"),
        ("a.jsonl", b"[1]", "line 1: must be an object with a text at 'text', got 'list'"),
        ("a.jsonl", b"so\n", "line 1: must be JSON"),
        ("a.jsonl", b'{"text": \n{}', "line 1: must be JSON: Expecting value: line 1 column 9"),  # its own line
        ("a.jsonl", b"[" * 100_000, "line 1: must be JSON"),
        ("a.parquet", b"PAR1 so", "a.parquet is not a readable .parquet file"),
        ("a.txt", b"so \xff", r"a.txt must be UTF-8 text, got byte 0xff at 3"),
    ],
)
def test_bad_files_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        Subject(ns.demo_model(), text=tmp_path / name)


@pytest.mark.parametrize(
    ("value", "message"), [(None, "must be a text, got none"), (b"so \xff", "must be UTF-8 text, got byte 0xff")]
)
def test_a_bad_row_of_a_parquet_file_is_named(value, message, tmp_path):
    column = pyarrow.array([b"so", value], pyarrow.binary())
    rows = pyarrow.StringArray.from_buffers(2, *column.buffers()[1:], column.buffers()[0])
    pyarrow.parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=rf"a.parquet, row 2: 'text' {message}"):
        Subject(ns.demo_model(), text=tmp_path / "a.parquet")


def test_what_is_not_there_is_named(corpus):
    (corpus / "empty").mkdir()
    for path, message in (
        (corpus / "empty", "must have files that end in .txt, .md, .jsonl, .parquet, and has none"),
        (corpus / "none-*.txt", "no file fits the pattern"),
        (corpus / "texts.parquet", "must have a column 'text', got 'id, words': give --column"),
    ):
        with pytest.raises(InputError, match=message.replace("*", r"\*")):
            Subject(ns.demo_model(), text=path)
    with pytest.raises(FileNotFoundError):
        Subject(ns.demo_model(), text=Path("none.txt"))
    (corpus / "blank.txt").write_text(" \n", encoding="utf-8")
    with pytest.raises(InputError, match="the text is empty"):
        next(iter(Subject(ns.demo_model(), text=corpus / "blank.txt").batches()))
