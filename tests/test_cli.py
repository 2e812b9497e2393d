"""The command line as a user meets it: its output, its exit code, the files it leaves; mostly in a new process."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
import torch

import normscope
from normscope.cli import commands
from normscope.cli.app import PANELS
from normscope.cli.options import progress, stages
from normscope.data import demo_model
from normscope.files import write_atomically
from normscope.results.result import type_named
from saved_results import arrays_of, with_arrays


def run(*arguments):
    command = [sys.executable, "-m", "normscope", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")


def schema(kind):
    return type_named(kind).json_schema()


def assert_refused(done, message):
    """One clear line on standard error, exit code 2, nothing on standard output."""
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("normscope: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def inspected(tmp_path_factory):
    """One run with everything: JSON and picture of the demo model on its sample text."""
    picture = tmp_path_factory.mktemp("inspected") / "geometry.svg"
    done = run("inspect", "--json", "--text", "sample", "--picture", picture)
    assert done.returncode == 0, done.stderr
    return done, picture


def test_inspect_prints_json_that_fits_its_schema_and_is_what_python_gives(inspected):
    result = json.loads(inspected[0].stdout)
    jsonschema.validate(result, schema("inspection"), cls=jsonschema.Draft202012Validator)
    without_text = normscope.inspect(demo_model()).to_dict()
    jsonschema.validate(without_text, schema("inspection"), cls=jsonschema.Draft202012Validator)
    for norm in result["norms"]:
        assert norm.pop("landing")["inputs"] > 1000
    for norm in without_text["norms"]:
        assert norm.pop("landing") is None
    assert result.pop("text") is not None
    assert without_text.pop("text") is None
    assert_alike(result, without_text)


def assert_alike(one, other):
    """The same values; numbers up to the last digits, which threads of another process may round otherwise."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, list) and isinstance(other, list):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_alike(left, right)
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-13, abs=1e-300)
    else:
        assert one == other


def test_inspect_writes_one_picture(inspected):
    done, picture = inspected
    assert done.stderr == f"wrote {picture}\n"
    assert "<svg" in picture.read_text(encoding="utf-8")
    assert list(picture.parent.iterdir()) == [picture]


def test_report_writes_one_page_that_fetches_nothing_and_prints_the_findings(tmp_path):
    page = tmp_path / "report.html"
    done = run("report", "--text", "sample", "-o", page, "--seconds", "1")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, f"wrote {page}")
    text = page.read_text(encoding="utf-8")
    assert "<script src" not in text
    assert "<link" not in text
    assert "default-src 'none'" in text
    *findings, last = done.stdout.splitlines()
    assert last.endswith("checks did not run. The page says why.")  # a second is too short for all
    assert last.removesuffix(" The page says why.") in text
    for line in findings:
        assert line[0] in "■▲●"
        assert line[2:].replace("'", "&#39;").replace('"', "&#34;") in text
    assert list(tmp_path.iterdir()) == [page]


def test_tables_are_at_most_100_columns_wide_and_name_every_norm():
    done = run("inspect", "--text", "sample")
    assert done.returncode == 0
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    for name in ("h.0.ln_1", "h.3.ln_2", "ln_f"):
        assert name in done.stdout
    assert "closeness" in done.stdout
    everything = run("inspect", "--text", "sample", "--all").stdout
    assert all(len(line) <= 100 for line in everything.splitlines())
    assert re.search(r"H in g groups +affine +input +input", everything)
    rows = list(csv.DictReader(run("inspect", "--text", "sample", "--csv").stdout.splitlines()))
    assert [row["norm"] for row in rows][::8] == ["transformer.h.0.ln_1", "transformer.ln_f"]
    assert float(rows[0]["closeness to surface"]) > 0.99


def test_ranges_prints_json_that_fits_its_schema_with_witnesses_near_their_bounds():
    done = run("ranges", "--tight", "1", "--json")
    assert done.returncode == 0
    result = json.loads(done.stdout)
    jsonschema.validate(result, schema("layer_ranges"), cls=jsonschema.Draft202012Validator)
    readers = {layer["layer"].rpartition(".")[2] for layer in result["layers"]}
    assert readers == {"c_attn", "c_proj", "c_fc", "lm_head"}
    exact = [layer for layer in result["layers"] if layer["grade"] == "exact"]
    assert len(exact) == 9
    assert all(1 <= layer["ratio"] <= 1 + 1e-6 for layer in exact)
    assert result["not_covered"] == []


def test_ranges_prints_tables_of_at_most_100_columns():
    done = run("ranges", "--tight", "0")
    assert done.returncode == 0
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    assert done.stdout.startswith("• float16: excluded for every tensor, whatever the input: none can overflow.")


@pytest.fixture
def model(tmp_path):
    """A copy of the demo model, to be spoilt."""
    return shutil.copytree(demo_model(), tmp_path / "model")


class Evil:
    """Pickled, it would create a file when read."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


def test_a_missing_path_is_refused(tmp_path):
    assert_refused(run("inspect", tmp_path / "nowhere"), "nowhere: no such file or folder")


def test_an_empty_folder_is_refused(tmp_path):
    assert_refused(run("inspect", tmp_path), str(tmp_path))


def test_a_truncated_file_is_refused(model):
    weights = model / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    assert_refused(run("inspect", model), "model.safetensors")


def test_a_header_that_lies_about_its_length_is_refused(model):
    weights = model / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes((2**40).to_bytes(8, "little") + data[8:])
    assert_refused(run("inspect", model), "model.safetensors")


def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path):
    mark, file = tmp_path / "ran", tmp_path / "model.pt"
    torch.save({"ln.weight": Evil(mark)}, file)
    assert_refused(run("inspect", file), "model.pt")
    assert not mark.exists()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gains_that_are_not_finite_are_refused(tmp_path, bad):
    file = tmp_path / "model.pt"
    torch.save({"ln.weight": torch.tensor([1.0, bad]), "ln.bias": torch.zeros(2)}, file)
    assert_refused(run("inspect", file), "gain must be finite, got 1 NaN or infinite of 2 values")


def test_shapes_that_do_not_fit_the_config_are_refused(model):
    config = model / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"n_embd": 128}))
    assert_refused(run("inspect", model), "has shape (64,), but config.json makes it (128,)")


def test_a_text_that_is_not_utf_8_is_refused(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"caf\xe9 au lait")
    assert_refused(run("inspect", "--text", file), "text.txt must be UTF-8 text, got byte 0xe9 at 3")


def test_a_text_that_is_missing_or_empty_is_refused(tmp_path):
    assert_refused(run("inspect", "--text", tmp_path / "nowhere.txt"), "nowhere.txt")
    for text in ("To be, or not to be", "To be " * 100):  # too long for the name of a file
        assert_refused(run("inspect", "--text", text), "--text takes a file, a folder, a pattern or 'sample', not")
    (tmp_path / "empty.txt").write_text("\n")
    assert_refused(run("inspect", "--text", tmp_path / "empty.txt"), "the text is empty")


def test_a_text_needs_a_model_that_runs(tmp_path):
    file = tmp_path / "model.pt"
    torch.save({"ln.weight": torch.ones(2)}, file)
    assert_refused(run("inspect", file, "--text", "sample"), "must be a folder with config.json")


def test_a_dtype_and_a_device_that_do_not_exist_are_refused(run_here):
    assert_refused(run_here("inspect", "--text", "sample", "--dtype", "int3"), "dtype must be one of float32, float64")
    assert_refused(
        run_here("inspect", "--text", "sample", "--device", "nowhere"),
        "device must be one that torch can use here, got 'nowhere'",
    )


@pytest.mark.parametrize(("command", "option"), [("report", "-o"), ("inspect", "--picture")])
def test_an_existing_file_is_not_replaced_unless_asked(tmp_path, command, option):
    file = tmp_path / ("report.html" if command == "report" else "picture.png")
    file.write_bytes(b"mine")
    asked = [command, option, file, *(["--seconds", "0"] if command == "report" else [])]
    assert_refused(run(*asked), f"{file} exists: choose another name, or give --force to replace it")
    assert file.read_bytes() == b"mine"
    assert run(*asked, "--force").returncode == 0
    assert file.read_bytes() != b"mine"


@pytest.mark.parametrize(
    ("option", "name", "message"),
    [
        ("--picture", "picture.gif", "must end in .pdf or .png or .svg, got '.gif'"),
        ("--picture", "picture", "must end in .pdf or .png or .svg, got no ending"),
        ("--out", "report.txt", "must end in .html or .htm, got '.txt'"),
        ("--out", "nowhere/report.html", "does not exist: create it first"),
    ],
)
def test_a_path_that_can_not_be_written_is_refused_before_any_work(tmp_path, option, name, message):
    assert_refused(run("report" if option == "--out" else "inspect", option, tmp_path / name), message)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_a_file_is_refused_even_by_force(run_here, tmp_path):
    folder = tmp_path / "report.html"
    folder.mkdir()
    assert_refused(run_here("report", "-o", folder, "--force"), f"{folder} must be the name of a file")


def test_a_folder_that_is_not_writable_is_refused_before_any_work(run_here, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "access", lambda *_: False)  # not by chmod: it does not hold for root
    message = f"{tmp_path / 'report.html'} can't be written: the folder {tmp_path} is not writable"
    assert_refused(run_here("report", tmp_path / "nowhere", "-o", tmp_path / "report.html"), message)


def test_a_file_that_can_not_be_written_after_all_is_named_and_leaves_nothing(monkeypatch, tmp_path):
    def full_disk(*_):
        raise OSError(28, "No space left on device", "temporary name")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match=r"page\.html can't be written: No space left on device$"):
        write_atomically(b"page", tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_that_a_folder_takes_can_be_written(tmp_path):
    file = tmp_path / ("n" * 250 + ".html")
    write_atomically(b"page", file)
    assert file.read_bytes() == b"page"


def test_nothing_is_left_when_there_is_no_picture(run_here, tmp_path):
    weights = tmp_path / "model.pt"
    torch.save({"ln.weight": torch.ones(2), "ln.bias": torch.zeros(2)}, weights)
    done = run_here("inspect", weights, "-o", tmp_path / "result.safetensors", "--picture", tmp_path / "picture.svg")
    assert_refused(done, "a picture needs a norm")
    assert list(tmp_path.iterdir()) == [weights]


@pytest.mark.parametrize("option", [("--device", "nowhere"), ("--dtype", "int3"), ("--dtype", "float64")])
def test_a_device_or_dtype_without_a_text_is_refused(run_here, option):
    assert_refused(run_here("inspect", *option), "--device and --dtype need --text")


def test_control_characters_of_names_do_not_reach_the_terminal(run_here, tmp_path):
    done = run_here("inspect", tmp_path / "no\x1b[31m\nwhere\x07")
    assert_refused(done, "no?[31m?where?")


def test_a_reader_who_leaves_ends_the_process_quietly():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "normscope", "--version"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_terminal_without_unicode_gets_tables_all_the_same():
    command = [sys.executable, "-m", "normscope", "inspect"]
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, check=False, text=True, encoding="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "h.0.ln_1" in done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp is what torch has on Linux")
@pytest.mark.parametrize(("chosen", "spins"), [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_that_wait_soon_sleep_if_the_user_did_not_choose(chosen, spins):
    kept = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    shown = kept | {"OMP_DISPLAY_ENV": "verbose"} | chosen
    command = [sys.executable, "-m", "normscope", "inspect"]
    done = subprocess.run(command, env=shown, capture_output=True, check=True, text=True, encoding="utf-8")
    assert f"GOMP_SPINCOUNT = '{spins}'" in done.stderr


def test_version_and_help():
    assert run("--version").stdout.strip() == normscope.__version__
    overview = run("--help").stdout
    assert "inspect" in overview
    assert "ranges" in overview
    assert "axes" in run("bench", "--help").stdout


def test_help_shows_the_commands_in_panels_and_no_value_of_a_flag(run_here):
    assert sorted(name for names in PANELS.values() for name in names) == sorted(commands.__all__)
    overview = run_here("--help").stdout
    places = [overview.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert places[3] < overview.index(" reproduce ") < overview.index(" bench ") < places[4]
    assert "─ Commands ─" not in overview
    for arguments in ((), ("check",), ("bench",), ("bench", "axes")):
        printed = run_here(*arguments, "--help").stdout
        assert "Show this message and exit." in printed
        assert "<bool>" not in printed


def test_off_a_terminal_check_tells_when_a_stage_begins(run_here):
    done = run_here("check", "--select", "NS201", "--json")
    assert re.fullmatch(r"normscope: geometry of norms \(after \d+ s\)\n", done.stderr)
    assert json.loads(done.stdout)["clear"]


def test_stages_of_repeated_loops_are_told_once(capsys):
    tell = stages()
    for what in ("keys, batch 1", "tokens, nearest points", "keys, batch 2"):
        assert tell([1, 2], what) == [1, 2]
    told = [line.partition(" (after ")[0] for line in capsys.readouterr().err.splitlines()]
    assert told == ["normscope: keys", "normscope: tokens"]


def test_on_a_terminal_stages_are_bars(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert stages() is progress


def test_verify_checks_saved_certificates_again(tmp_path):
    file = tmp_path / "certificates.safetensors"
    normscope.selectable([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [1.0, 1.0]]).save(file)
    done = run("verify", file, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["holds"] is True
    jsonschema.validate(json.loads(done.stdout), type_named("verification").json_schema())
    file.write_bytes(with_arrays(file.read_bytes(), queries=-arrays_of(file.read_bytes())["queries"]))
    assert run("verify", file).returncode == 1
    assert_refused(run("verify", tmp_path / "nowhere.npz"), "nowhere.npz: no such file")
    assert_refused(run("verify", tmp_path), "or a folder that `normscope fold` wrote")
    file.write_bytes(b"no result at all")
    assert_refused(run("verify", file), "must be a result saved by normscope")
    assert_refused(run("inspect", "--text", tmp_path / "nowhere.txt"), "nowhere.txt: no such file or directory")


@pytest.fixture
def inputs(tmp_path):
    np.savez(tmp_path / "inputs.npz", input_ids=np.arange(12).reshape(2, 6))
    return tmp_path / "inputs.npz"


def test_every_command_that_calls_a_model_takes_inputs_from_a_file(run_here, inputs, tmp_path):
    done = run_here("inspect", "--inputs", inputs, "--json")
    result = json.loads(done.stdout)
    jsonschema.validate(result, schema("inspection"), cls=jsonschema.Draft202012Validator)
    assert [norm["landing"]["inputs"] for norm in result["norms"]] == [12] * 9
    assert result["placement"] == "pre-norm"
    done = run_here("keys", "--inputs", inputs, "--json")
    assert json.loads(done.stdout)["sequences"] == 2
    done = run_here("ranges", "--tight", "0", "--inputs", inputs, "--json")
    plain = json.loads(run_here("ranges", "--tight", "0", "--json").stdout)["layers"]
    found = json.loads(done.stdout)["layers"]
    assert [(row["low"], row["high"]) for row in found] == [(row["low"], row["high"]) for row in plain]
    assert all(0 < row["used"] <= 1 for row in found)
    done = run_here("fold", "--out", tmp_path / "folded", "--inputs", inputs, "--json")
    assert json.loads(done.stdout)["certificate"]["inputs"] == "input_ids 2×6"


@pytest.mark.parametrize("command", ["inspect", "ranges", "keys", "fold"])
def test_inputs_that_the_model_does_not_take_are_refused(run_here, command, inputs, tmp_path):
    target = ["--out", tmp_path / "out"] if command == "fold" else []
    np.savez(tmp_path / "wrong.npz", tokens=np.arange(3))
    done = run_here(command, *target, "--inputs", tmp_path / "wrong.npz")
    assert_refused(done, "inputs must be named like parameters of GPT2LMHeadModel.forward, got 'tokens'")
    if command != "ranges":  # which looks at no values
        np.savez(tmp_path / "beyond.npz", input_ids=np.full((1, 4), 10**6))
        assert_refused(run_here(command, *target, "--inputs", tmp_path / "beyond.npz"), "index out of range")
    assert_refused(run_here(command, *target, "--inputs", tmp_path / "none.npz"), "none.npz: no such file or directory")
    assert not (tmp_path / "out").exists()


def test_a_text_and_inputs_exclude_each_other_and_lines_need_a_text(run_here, inputs):
    for command in ("inspect", "keys"):
        done = run_here(command, "--inputs", inputs, "--text", "sample")
        assert_refused(done, "--text and --inputs cannot be combined")
        assert_refused(run_here(command, "--inputs", inputs, "--lines"), "--lines needs --text")
    assert_refused(run_here("keys"), "give --text (a file, or 'sample') or --inputs FILE")


def test_lines_of_a_text_are_sequences(run_here, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("To be, or not to be.\nThat is the question.\n", encoding="utf-8")
    assert json.loads(run_here("keys", "--text", file, "--lines", "--json").stdout)["sequences"] == 2
    assert json.loads(run_here("keys", "--text", file, "--json").stdout)["sequences"] == 1
