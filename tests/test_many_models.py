"""The same question about many models: one table, an index of reports, failures as rows, interrupted runs resumed."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pyarrow.parquet
import pytest
import torch
from safetensors.torch import save_file

from normscope import demo_model
from normscope.engine import open_engine
from normscope.errors import InputError
from normscope.many_models import ask_many
from normscope.models.listed_models import listed
from normscope.studies.inspect import inspect


@pytest.fixture
def models(tmp_path):
    """Three files with norms, and one that is no model."""
    for number in range(3):
        gain = torch.linspace(0.5, 1.5 + number, 8)
        save_file({"ln.weight": gain, "ln.bias": torch.zeros(8)}, tmp_path / f"model-{number}.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    return tmp_path


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_models_are_named_by_patterns_and_lists(models, monkeypatch):
    monkeypatch.chdir(models)
    files = [f"model-{number}.safetensors" for number in range(3)]
    (models / "all.txt").write_text(f"# ours\n{files[2]}\n\n{files[0]}\n", encoding="utf-8")
    shutil.copy("all.txt", "names")
    assert list(map(str, listed(["model-*.safetensors"]))) == files
    assert list(map(str, listed(["all.txt"]))) == list(map(str, listed(["@names"]))) == [files[2], files[0]]
    assert list(map(str, listed([files[1], "model-*", "all.txt"]))) == [files[1], files[0], files[2]]
    (models / "more.txt").write_bytes(
        b"\xef\xbb\xbf" + f"{files[1]}\r\n{files[0]}\r\n".encode()
    )  # as Windows writes it
    assert list(map(str, listed(["*.txt"]))) == [files[2], files[0], files[1]]
    assert listed([files[0]]) is None
    assert listed([]) is None
    (models / "[odd]").mkdir()
    assert listed(["[odd]"]) is None  # it exists, so it is a name and no pattern
    for given in (["none-*"], [files[0], "none-*"]):
        with pytest.raises(InputError, match=r"no file or folder fits the pattern none-\*"):
            listed(given)
    (models / "empty.txt").write_text("\n# nothing\n", encoding="utf-8")
    with pytest.raises(InputError, match="must have the path of a model in every line"):
        listed(["empty.txt"])


def test_a_model_that_fails_is_a_row_and_the_rest_stands(run_here, models, monkeypatch):
    monkeypatch.chdir(models)
    found = run_here("inspect", "*.safetensors", "-o", "all.csv", "--workers", "1", "--json")
    assert found.returncode == 1
    assert "1 of 4 models failed" in found.stderr
    told = json.loads(found.stdout)["models"]
    assert [row["norms"] for row in told] == [None, 1, 1, 1]
    rows = rows_of("all.csv")
    assert [row["model"] for row in rows] == ["broken.safetensors", *(f"model-{n}.safetensors" for n in range(3))]
    assert "broken.safetensors" in rows[0]["failed"]
    assert all(row["failed"] == "" and float(row["longest axis"]) > 0 for row in rows[1:])


def test_models_that_failed_are_asked_again_by_the_same_command(run_here, models, monkeypatch):
    monkeypatch.chdir(models)
    given = ["inspect", "*.safetensors", "-o", "all.csv", "--workers", "1"]
    assert run_here(*given).returncode == 1
    assert len(list((models / "all.csv.parts").glob("*.json"))) == 3
    other = run_here("inspect", "model-*", "-o", "all.csv", "--workers", "1")
    assert "all.csv exists" in other.stderr  # the table is about other models
    (models / "broken.safetensors").write_bytes((models / "model-0.safetensors").read_bytes())
    monkeypatch.setattr("normscope.many_models.inspect", lambda path, **_: asked.append(path.name) or inspect(path))
    asked = []
    again = run_here(*given)
    assert again.returncode == 0, again.stderr
    assert asked == ["broken.safetensors"]
    assert [row["failed"] for row in rows_of("all.csv")] == [""] * 4
    assert not (models / "all.csv.parts").exists()
    assert "all.csv exists" in run_here(*given).stderr  # it is whole


def test_a_table_that_was_changed_since_is_not_replaced(models):
    paths, out = sorted(models.glob("*.safetensors")), models / "all.csv"
    with open_engine("local", 1) as engine:
        assert ask_many("inspect", paths, out=out, engine=engine).failed == 1
        out.write_text("mine", encoding="utf-8")
        with pytest.raises(FileExistsError, match=r"all.csv exists"):
            ask_many("inspect", paths, out=out, engine=engine)
        ask_many("inspect", paths, out=out, engine=engine, force=True)
    assert len(rows_of(out)) == 4


def test_other_processes_give_the_same_table_and_parquet_the_same_values(models):
    paths = sorted(models.glob("*.safetensors"))
    for workers, ending in ((1, "csv"), (1, "parquet"), (2, "csv")):
        with open_engine("local", workers) as engine:
            ask_many("inspect", paths, out=models / f"{workers}.{ending}", engine=engine)
    assert (models / "1.csv").read_bytes() == (models / "2.csv").read_bytes()
    table, rows = pyarrow.parquet.read_table(models / "1.parquet"), rows_of(models / "1.csv")
    assert table.column_names == list(rows[0])
    assert table["longest axis"].to_pylist() == [float(each) if (each := row["longest axis"]) else None for row in rows]


def test_reports_have_an_index_and_an_interrupted_run_is_resumed(models, monkeypatch):
    monkeypatch.chdir(models)
    for name in ("one & only", "two"):
        shutil.copytree(demo_model(), models / name)
    program = (
        "from pathlib import Path\nfrom normscope.engine import open_engine\n"
        "from normscope.many_models import ask_many\n"
        "with open_engine('local', 1) as engine:\n"
        "    ask_many('report', [Path('one & only'), Path('two')], out=Path('pages'), engine=engine,\n"
        "             options={'seconds': 0.0})\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen([sys.executable, "-c", program], env=environment)
    parts = models / "pages" / ".parts"
    while not list(parts.glob("*.json")):
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.005)
    child.send_signal(signal.SIGKILL)
    child.wait()
    [kept] = parts.glob("*.json")
    first = models / "pages" / "one-only.html"
    written = first.stat().st_mtime_ns
    paths = [models / "one & only", models / "two"]
    with pytest.raises(InputError, match="holds a run with other options"):
        ask_many("report", paths, out=models / "pages", options={"seconds": 1.0})
    with open_engine("local", 1) as engine:
        result = ask_many("report", paths, out=models / "pages", options={"seconds": 0.0}, engine=engine)
    assert first.stat().st_mtime_ns == written, f"{kept} was there"
    assert [row.page for row in result.models] == ["one-only.html", "two.html"]
    index = (models / "pages" / "index.html").read_text(encoding="utf-8")
    assert 'href="one-only.html"' in index
    assert "one &amp; only" in index
    assert sorted(os.listdir(models / "pages")) == ["index.html", "models.csv", "one-only.html", "two.html"]


def stop_after_one(things, what):
    """A progress function that stops as Ctrl-C does, when one model is finished."""
    yield next(iter(things))
    raise KeyboardInterrupt


def test_a_run_whose_output_goes_to_a_file_tells_how_many_are_done(run_here, models, monkeypatch):
    monkeypatch.chdir(models)
    given = ["inspect", "model-*", "-o", "all.csv", "--force", "--workers", "1"]
    assert run_here(*given).stderr == "wrote all.csv\n"  # it took less than a minute
    monkeypatch.setattr("normscope.cli.options.LINE_SECONDS", 0.0)
    told = run_here(*given).stderr.splitlines()
    assert told == [*(f"normscope: inspect: {n} of 3, 0 min left" for n in (1, 2, 3)), "wrote all.csv"]


@pytest.mark.parametrize(
    ("question", "asked", "out", "kept"),
    [("inspect", "inspect", "all.csv", "all.csv.parts"), ("report", "write_report", "pages", "pages/.parts")],
)
def test_ctrl_c_says_from_what_the_same_command_resumes(question, asked, out, kept, run_here, models, monkeypatch):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.chdir(models)
    monkeypatch.setattr(f"normscope.many_models.{asked}", interrupted)
    found = run_here(question, "model-0.safetensors", "model-1.safetensors", "-o", out, "--workers", "1")
    assert found.returncode == 130
    assert found.stderr == f"normscope: interrupted; the same command resumes from {kept}\n"


def test_ctrl_c_where_nothing_was_kept_promises_nothing(run_here, models, monkeypatch):
    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.chdir(models)
    monkeypatch.setattr("normscope.studies.inspect.inspect", interrupted)
    found = run_here("inspect", "model-0.safetensors", "-o", "one.safetensors")
    assert (found.returncode, found.stderr) == (130, "")


def test_a_folder_whose_file_was_written_anew_is_asked_again(models):
    folders = [models / name for name in ("a", "b")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        shutil.copy(models / f"model-{number}.safetensors", folder / "model.safetensors")
    with open_engine("local", 1) as engine:
        with pytest.raises(KeyboardInterrupt):
            ask_many("inspect", folders, out=models / "all.csv", engine=engine, progress=stop_after_one)
        before = folders[0].stat().st_mtime_ns
        (folders[0] / "model.safetensors").write_bytes((models / "model-2.safetensors").read_bytes())
        assert folders[0].stat().st_mtime_ns == before, "only the time of the file changes, not that of its folder"
        ask_many("inspect", folders, out=models / "all.csv", engine=engine)
        ask_many("inspect", folders, out=models / "anew.csv", engine=engine)
    assert (models / "all.csv").read_bytes() == (models / "anew.csv").read_bytes()


def test_one_table_is_never_of_two_texts(models):
    text = models / "text.txt"
    text.write_text("To be, or not to be", encoding="utf-8")
    folders = [models / name for name in ("a", "b")]
    for folder in folders:
        shutil.copytree(demo_model(), folder)
    with open_engine("local", 1) as engine:
        asked = {"out": models / "all.csv", "engine": engine, "options": {"text": text}}
        with pytest.raises(KeyboardInterrupt):
            ask_many("inspect", folders, **asked, progress=stop_after_one)
        text.write_text("that is the question", encoding="utf-8")
        with pytest.raises(InputError, match="other options, text or version"):
            ask_many("inspect", folders, **asked)


def test_a_resumed_run_of_other_models_gives_no_page_a_second_time(models):
    paths = [models / "a" / "gpt", models / "x" / "other", models / "b" / "gpt"]
    for path in paths:
        shutil.copytree(demo_model(), path)
    with open_engine("local", 1) as engine:
        asked = {"out": models / "pages", "engine": engine, "options": {"seconds": 0.0}}
        with pytest.raises(KeyboardInterrupt):
            ask_many("report", paths[:2], **asked, progress=stop_after_one)
        result = ask_many("report", [paths[2], paths[0]], **asked)
    assert [row.page for row in result.models] == ["gpt.html", "gpt-2.html"]
    assert [row.path for row in result.models] == [str(paths[2]), str(paths[0])]


def test_options_that_do_not_fit_are_refused(run_here, models, monkeypatch):
    monkeypatch.chdir(models)
    several, one = ["model-0.safetensors", "model-1.safetensors"], ["model-0.safetensors"]
    for arguments, message in (
        (["inspect", *several, "--picture", "a.png"], "--picture and --sarif take one model"),
        (["inspect", *one, "--workers", "2"], "need several models"),
        (["inspect", *one, "-o", "a.csv"], "a.csv must end in .safetensors for one model"),
        (["check", *several, "-o", "a.txt"], "a.txt must end in .csv, .parquet or .safetensors"),
        (["report", *several, "-o", "a.html"], "a.html must be a folder for the reports of 2 models"),
    ):
        found = run_here(*arguments)
        assert (found.returncode, message in found.stderr) == (2, True), found.stderr
