"""normscope memorize: what it reads, what it refuses, what it prints and writes."""

import json
import re
from importlib.resources import files
from io import StringIO
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import normscope.report.tables  # noqa: F401  (registers all tables)
from normscope import load_network
from normscope.cli import app
from normscope.report.tables import tables
from normscope.studies.labelled_table import read_labelled_table
from normscope.studies.memorize import memorize

DOCS = Path(__file__).parent.parent / "docs"


def schema(name):
    return json.loads((files("normscope") / "schemas" / f"{name}.json").read_text(encoding="utf-8"))


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
        ("x,kind\n", None, "must hold samples under its heading"),
        ("a\nb\n", None, "a column of labels and one of numbers or more, got 1"),
        ("x,y,k\n1,,a\n", None, "line 2, column y: there must be a finite number, got nothing"),
        ("x,y,k\n1,2,a\n1,nan,a\n", None, "line 3, column y: there must be a finite number, got 'nan'"),
        ("x,y,k\n1,2,\n", None, "line 2, column k: there must be a label, got nothing"),
        ("x,y,k\n1,2\n", None, "line 2: there must be 3 columns as above, got 2"),
        ("x,k\n1,a\n", "z", "--label must name a column .* or be its number from 1 to 2, got 'z'; .* x, k"),
        ("x,k\n1,a\n2,b\n1,b\n", None, r"equal ones in lines of .*: 2 \(a\) and 4 \(b\)"),
        ("x,k\n1,a\n2,a\n", None, "two or more classes, got only a"),
    ],
)
def test_a_file_that_can_not_be_memorised_is_refused_with_the_place(tmp_path, text, label, message):
    with pytest.raises(ValueError, match=message):
        memorize(text_file(tmp_path / "t.csv", text), label)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="must be a UTF-8 text file of columns"):
        memorize(tmp_path / "t.csv")


def test_json_follows_its_schema(tmp_path):
    done = command(random_file(tmp_path / "t.csv"), "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    jsonschema.validate(found, schema("memorize"))
    assert found["certificate"]["holds"]
    assert (found["paper_bound"], found["width"], found["label_column"]) == (28, 3, "3")


def test_the_network_and_the_picture_are_written_once(tmp_path):
    file, net, picture = random_file(tmp_path / "t.csv", classes=3), tmp_path / "n.safetensors", tmp_path / "p.png"
    done = command(file, "-o", net, "--picture", picture)
    assert done.exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    table = read_labelled_table(file)
    assert load_network(net).predict(table.samples).tolist() == table.labels
    before = net.read_bytes()
    again = command(file, "-o", net)
    assert isinstance(again.exception, FileExistsError)
    assert net.read_bytes() == before
    assert command(file, "-o", net, "--picture", picture, "--force", "--seed", "1").exit_code == 0
    assert net.read_bytes() != before


@pytest.mark.parametrize("method", ["fold", "merge"])
def test_verify_shows_again_that_a_network_gives_every_sample_its_label(tmp_path, method):
    file, net = random_file(tmp_path / "t.csv", count=40, classes=3), tmp_path / "n.safetensors"
    command(file, "-o", net, "--method", method)

    def verified(*samples):
        return CliRunner().invoke(app, ["verify", str(net), *map(str, samples)])

    done = verified(file)
    assert done.exit_code == 0
    shown = {
        "fold": "the weights that the module stores; the module is right on",
        "merge": r"exact weights of \d+ bits; the module stores them rounded to float64, and is right on",
    }[method]
    said = rf"all 40 samples get their labels, shown with \d+ bits for {shown} \d+ in a batch, \d+ one by one\n"
    assert re.fullmatch(said, done.stdout)
    lines = file.read_text(encoding="utf-8").splitlines()
    a, b, label = lines[6].split(",")
    for changed, reason in (
        (f"{a},{b},{(int(label) + 1) % 3}", "1 of 40 samples are not shown to get their labels: first line 7 of "),
        (f"{a},{b},green", "the network has no class 'green', which"),
    ):
        done = verified(text_file(tmp_path / "other.csv", "\n".join([*lines[:6], changed, *lines[7:]])))
        assert done.exit_code == 1
        assert reason in done.stdout
    assert "takes 2 channels" in verified(text_file(tmp_path / "other.csv", "1,0\n2,1\n")).stdout
    assert "name the file that it has memorised" in str(verified().exception)
    assert "needs no samples" in str(CliRunner().invoke(app, ["verify", str(file), str(file)]).exception)


def test_the_table_shows_depth_certificate_and_the_way_of_the_labels(tmp_path):
    result = memorize(random_file(tmp_path / "t.csv", count=40))
    text = StringIO()
    console = Console(file=text, width=100)
    for part in tables(result):
        console.print(part)
    shown = text.getvalue()
    assert f"{result.network.depth} LayerNorms of width 3 (projection merge needs up to 38" in shown
    assert "40 of 40 samples in exact arithmetic" in shown
    last = shown.rstrip().splitlines()[-1].split()
    assert last[0] == str(result.network.depth)
    assert last[1] in (
        "o" * result.labels.count("0") + "x" * result.labels.count("1"),
        "x" * result.labels.count("1") + "o" * result.labels.count("0"),
    )
    assert max(map(len, shown.splitlines())) <= 100


def test_the_published_data_sets_are_those_of_the_run():
    text = (DOCS / "memorize.md").read_text(encoding="utf-8")
    for row in json.loads((DOCS / "results" / "memorize-data.json").read_text(encoding="utf-8"))["rows"]:
        cells = [row["data"], row["samples"], row["classes"], row["method"], row["paper_bound"], row["depth"]]
        cells += [f"{row['certified']} of {row['samples']}", row["float_right"], f"{row['seconds']:.0f} s"]
        assert f"| {' | '.join(map(str, cells))} |" in text
