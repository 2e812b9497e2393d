import json
import subprocess
import sys
from importlib.resources import files

import jsonschema
import numpy as np
import pytest

from normscope.data import bundled_norms
from oracles import dense_lengths


def run(*arguments):
    command = [sys.executable, "-m", "normscope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")


@pytest.fixture(scope="module")
def inspected():
    done = run("inspect", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_inspect_prints_json_that_fits_its_schema(inspected):
    schema = json.loads((files("normscope") / "schemas" / "inspect.json").read_text(encoding="utf-8"))
    jsonschema.validate(inspected, schema, cls=jsonschema.Draft202012Validator)
    assert inspected["schema_version"] == 1


def test_inspect_gives_the_lengths_of_dense_svd(inspected):
    norms = bundled_norms()
    assert [row["name"] for row in inspected["norms"]] == list(norms)
    for row in inspected["norms"]:
        norm = norms[row["name"]]
        assert (row["kind"], row["size"], row["groups"]) == (norm.kind, norm.size, norm.groups)
        if norm.scales:
            lengths = dense_lengths(norm)[: row["dimension"]]
            measured = [row["axis_max"], row["axis_median"], row["axis_min"]]
            assert measured == pytest.approx([lengths[0], np.median(lengths), lengths[-1]], rel=1e-10)
            participation = (lengths**2).sum() ** 2 / (lengths**4).sum()
            assert row["participation_ratio"] == pytest.approx(participation, rel=1e-10)
        else:
            assert row["axis_max"] is row["axis_median"] is row["axis_min"] is row["participation_ratio"] is None
    dead = next(row for row in inspected["norms"] if row["name"] == "five_dead")
    assert (dead["zero_gains"], dead["dimension"]) == (5, 768 - 5)


def test_inspect_prints_a_table_of_at_most_100_columns():
    done = run("inspect")
    assert done.returncode == 0
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    for name in bundled_norms():
        assert name in done.stdout


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_inspect_draws_a_picture(tmp_path, ending, start):
    picture = tmp_path / f"geometry.{ending}"
    done = run("inspect", "--picture", picture)
    assert done.returncode == 0
    assert picture.read_bytes().startswith(start)
    assert picture.stat().st_size > 10_000
    assert [path.name for path in tmp_path.iterdir()] == [picture.name]


def test_a_picture_is_not_replaced_unless_asked(tmp_path):
    picture = tmp_path / "geometry.png"
    picture.write_bytes(b"mine")
    done = run("inspect", "--picture", picture)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"normscope: {picture} exists: choose another name, or give --force to replace it\n"
    assert picture.read_bytes() == b"mine"
    assert run("inspect", "--picture", picture, "--force").returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("geometry.gif", "must end in .pdf or .png or .svg, got '.gif'"),
        ("geometry", "must end in .pdf or .png or .svg, got 'no ending'"),
        ("nowhere/geometry.png", "does not exist: create it first"),
    ],
)
def test_a_path_that_can_not_be_written_is_one_line_and_exit_code_2(tmp_path, name, message):
    done = run("inspect", "--picture", tmp_path / name)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("normscope: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bench_axes_measures_and_fits_its_schema(tmp_path):
    picture = tmp_path / "growth.svg"
    done = run("bench", "axes", "--size", 32, "--size", 64, "--json", "--picture", picture)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    schema = json.loads((files("normscope") / "schemas" / "bench_axes.json").read_text(encoding="utf-8"))
    jsonschema.validate(result, schema, cls=jsonschema.Draft202012Validator)
    assert [(row["size"], row["quantity"]) for row in result["comparisons"]] == [
        (32, "lengths"),
        (64, "lengths"),
        (32, "axes"),
        (64, "axes"),
    ]
    for row in result["comparisons"]:
        assert row["ratio"] == pytest.approx(row["dense_seconds"] / row["normscope_seconds"])
    assert result["first_call"]["cached_seconds"] < result["first_call"]["compiling_seconds"]
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_version_and_help():
    import normscope

    assert run("--version").stdout.strip() == normscope.__version__
    assert "inspect" in run("--help").stdout
    assert "axes" in run("bench", "--help").stdout
