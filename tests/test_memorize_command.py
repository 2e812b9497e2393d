"""normscope memorize: what it reads, what it refuses, what it prints and writes."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from typer.testing import CliRunner

import normscope as ns
from normscope.cli import app
from normscope.models.labelled_table import read_labelled_table
from normscope.results.memorized import Memorized
from normscope.studies.memorize import memorize_file

DOCS = Path(__file__).parent.parent / "docs"


def text_file(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def random_file(path, count=30, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    columns = zip(*rng.random((2, count)), rng.integers(0, classes, count), strict=True)
    lines = [f"{a},{b},{label}" for a, b, label in columns]
    return text_file(path, "\n".join(lines))


def command(*arguments):
    return CliRunner().invoke(app, ["memorize", *map(str, arguments)])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("x,y,kind\n1,2,a\n3,4,b\n", None),
        ("1,2,a\n3,4,b", None),
        ("kind;x;y\na;1;2\n\nb;3;4\n", "kind"),
        ("a\t1\t2\nb\t3\t4\n", "1"),
        ('\ufeffx,"kind",y\n1,"a",2\n3,b, 4\n', "2"),
    ],
)
def test_columns_are_read_with_a_heading_or_without(tmp_path, text, label):
    table = read_labelled_table(text_file(tmp_path / "t.csv", text), label)
    assert table.samples.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert table.labels == ["a", "b"]


def test_names_and_lines_are_those_of_the_file(tmp_path):
    table = read_labelled_table(text_file(tmp_path / "t.csv", "x,kind,y\n1,a,2\n\n3,b,4\n"), "kind")
    assert (table.columns, table.label, table.lines) == (["x", "y"], "kind", [2, 4])
    assert read_labelled_table(text_file(tmp_path / "n.csv", "1,0\n2,1\n")).label == "2"


@pytest.mark.parametrize(
    ("text", "label", "message"),
    [
        ("", None, "it is empty"),
        ("x,kind\n", None, "must hold samples below its header row"),
        ("a\nb\n", None, "a column of labels and at least one of numbers, got 1"),
        ("x,y,k\n1,,a\n", None, "line 2, column y: expected a finite number, got nothing"),
        ("x,y,k\n1,2,a\n1,nan,a\n", None, "line 3, column y: expected a finite number, got 'nan'"),
        ("x,y,k\n1,2,\n", None, "line 2, column k: expected a label, got nothing"),
        ("x,y,k\n1,2\n", None, "line 2: expected 3 columns, as in the first line, got 2"),
        ("x,k\n1,a\n", "z", "--label must name a column .* or be its number from 1 to 2, got 'z'; .* x, k"),
        ("x,k\n1,a\n2,b\n1,b\n", None, r"equal ones in lines of .*: 2 \(a\) and 4 \(b\)"),
        ("x,k\n1,a\n2,a\n", None, "two or more classes, got only a"),
    ],
)
def test_a_file_that_can_not_be_memorised_is_refused_with_the_place(tmp_path, text, label, message):
    with pytest.raises(ValueError, match=message):
        memorize_file(text_file(tmp_path / "t.csv", text), label)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="must be a UTF-8 text file of columns"):
        memorize_file(tmp_path / "t.csv")


def test_json_follows_its_schema(tmp_path):
    done = command(random_file(tmp_path / "t.csv"), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    jsonschema.validate(found, Memorized.json_schema())
    assert (found["type"], found["holds"], found["certified"], found["count"]) == ("memorized", True, 30, 30)
    assert (found["paper_depth"], found["width"], found["label_column"]) == (28, 3, "3")
    assert [each["label"] for each in found["classes"]] == ["0", "1"]


def test_the_network_and_the_picture_are_written_once(tmp_path):
    file, net, picture = random_file(tmp_path / "t.csv", classes=3), tmp_path / "n.safetensors", tmp_path / "p.png"
    done = command(file, "-o", net, "--picture", picture)
    assert done.exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = read_labelled_table(file)
    assert ns.load(net).network.predict(table.samples).tolist() == ns.load(net).labels.tolist() == table.labels
    before = net.read_bytes()
    again = command(file, "-o", net)
    assert isinstance(again.exception, FileExistsError)
    assert net.read_bytes() == before
    assert command(file, "-o", net, "--picture", picture, "--force", "--seed", "1").exit_code == 0
    assert net.read_bytes() != before


@pytest.mark.parametrize("method", ["search", "merge"])
def test_verify_shows_again_that_a_network_gives_every_sample_its_label(tmp_path, method):
    file, net = random_file(tmp_path / "t.csv", count=40, classes=3), tmp_path / "n.safetensors"
    command(file, "-o", net, "--method", method)
    shown = {
        "search": "the weights that the module stores; the module is right on",
        "merge": r"exact weights of \d+ bits; the module stores them rounded to float64, and is right on",
    }[method]
    said = rf"all 40 samples get their labels, shown with \d+ bits for {shown} \d+ in floats"
    for found in (ns.verify(net), ns.verify(net, against=file), ns.verify(net, against=str(file), label="3")):
        assert found.holds
        assert re.fullmatch(said, found.reason)


def test_a_result_is_held_against_a_file_of_samples(tmp_path):
    file, net = random_file(tmp_path / "t.csv", count=40, classes=3), tmp_path / "n.safetensors"
    command(file, "-o", net, "--dtype", "float32")
    lines = file.read_text(encoding="utf-8").splitlines()
    a, b, label = lines[6].split(",")
    other = (int(label) + 1) % 3
    differ = "of 40 samples differ from those that were certified"
    for changed, reason in (
        ([*lines[:6], f"{a},{b},{other}", *lines[7:]], f"line 7 of .* has label '{other}'; 1 {differ}"),
        ([*lines[:6], f"{a},{b},green", *lines[7:]], f"line 7 of .* has label 'green'; 1 {differ}"),
        ([*lines[:6], f"{a},{b}9,{label}", *lines[7:]], None),  # beyond the digits of float32
        ([*lines[:6], f"{a},1e99,{label}", *lines[7:]], f"line 7 of .* has another sample; 1 {differ}"),
        ([lines[1], lines[0], *lines[2:]], f"line 1 of .* has another sample; 2 {differ}"),
        (lines[:-1], "was certified on 40 samples of 2 channels, and .* has 39 of 2"),
        (["1,0", "2,1"], "was certified on 40 samples of 2 channels, and .* has 2 of 1"),
    ):
        found = ns.verify(net, against=text_file(tmp_path / "other.csv", "\n".join(changed)))
        assert found.holds == (reason is None)
        assert reason is None or re.search(reason, found.reason)


def test_the_table_shows_classes_the_way_of_the_labels_and_the_depth(tmp_path):
    result = memorize_file(random_file(tmp_path / "t.csv", count=40))
    shown = str(result)
    flat = " ".join(shown.split())
    assert f"{result.depth} LayerNorms of width 3: projection merge needs up to 38" in flat
    assert "40 of 40 samples are certified in exact arithmetic" in flat
    ones, twos = (each.samples for each in result.classes)
    assert (ones, twos) == tuple((result.labels == label).sum() for label in ("0", "1"))
    last = result.stages[-1]
    assert (last.layer, last.runs, last.labels) == (result.depth, 2, "o" * ones + "x" * twos)
    assert f"{last.layer}     2  {last.labels}" in shown
    assert [stage.runs for stage in result.stages] == sorted((stage.runs for stage in result.stages), reverse=True)
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 100


def test_the_way_of_the_samples_ends_with_each_class_in_one_piece(tmp_path):
    for method in ("search", "merge"):
        result = memorize_file(random_file(tmp_path / "t.csv", count=30, classes=3), method=method)
        assert result.journey.shape == (result.depth + 1, 30)
        assert (result.journey.min(), result.journey.max()) == (0.0, 1.0)
        numbers = result.label_numbers[np.argsort(result.journey[-1], kind="stable")]
        assert (np.diff(numbers) >= 0).all()
        figure = result.plot()
        assert f"found by {method}" in figure.get_suptitle()


def test_the_published_data_sets_are_those_of_the_run():
    text = (DOCS / "memorize.md").read_text(encoding="utf-8")
    for row in json.loads((DOCS / "results" / "memorize-data.json").read_text(encoding="utf-8"))["rows"]:
        cells = [row["data"], row["samples"], row["classes"], row["method"], row["paper_bound"], row["depth"]]
        cells += [f"{row['certified']} of {row['samples']}", row["float_right"], f"{row['seconds']:.0f} s"]
        assert f"| {' | '.join(map(str, cells))} |" in text
