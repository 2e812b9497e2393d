"""`inspect --text` on two ranks of torchrun: the same result as one process, bit for bit."""

import os
import subprocess
import sys

import pytest
from torch import distributed
from typer.testing import CliRunner

from normscope.cli import app
from normscope.data import sample_text
from normscope.results.result import load
from normscope.studies.ranks import Ranks

if not distributed.is_available() or not distributed.is_gloo_available():
    pytest.skip("this torch is built without gloo", allow_module_level=True)


def run(*arguments, folder, ranks=2):
    """The command line on some ranks, or without torchrun on one: exit code, standard output, standard error."""
    surroundings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    launch += ["-m", "normscope"]
    done = subprocess.run(
        [sys.executable, *launch, *map(str, arguments)],
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=folder,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    """A text of nine sequences: the last round has one for the first rank alone."""
    file = tmp_path_factory.mktemp("text") / "lines.txt"
    words = sample_text().split()
    file.write_text("\n".join(" ".join(words[20 * n : 20 * n + 5 + 3 * n]) for n in range(9)), encoding="utf-8")
    return file


@pytest.mark.cluster
def test_two_ranks_find_what_one_process_finds(tmp_path, lines):
    asked = ("inspect", "--text", lines, "--lines", "-o")
    code, output, errors = run(*asked, "two.safetensors", folder=tmp_path)
    assert code == 0, errors
    assert errors.count("wrote two.safetensors") == 1  # the first rank alone
    assert output.count("Norms of") <= 1
    code, _, errors = run(*asked, "one.safetensors", folder=tmp_path, ranks=1)
    assert code == 0, errors
    assert all(norm.landing is not None for norm in load(tmp_path / "one.safetensors").norms)
    assert (tmp_path / "two.safetensors").read_bytes() == (tmp_path / "one.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["keys", "--text", "sample"], "keys is not divided among processes: run it without torchrun"),
        (["inspect"], "inspect under torchrun needs a text or inputs"),
    ],
)
def test_what_is_not_divided_says_so(monkeypatch, arguments, told):
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("TORCHELASTIC_RUN_ID", "none")):
        monkeypatch.setenv(name, value)
    done = CliRunner().invoke(app, arguments)
    assert told in str(done.exception)
    assert not done.stdout.strip()


def test_every_batch_and_every_norm_has_one_rank():
    ranks = [Ranks(rank, 3) for rank in range(3)]
    assert list(ranks[0].rounds(range(7))) == [(0, 1, 2), (3, 4, 5), (6,)]
    assert list(ranks[0].rounds([])) == []
    for number in range(9):
        assert [each.looks_after(number) for each in ranks].count(True) == 1
    assert Ranks().hand_over(-1, 0, 5, 4) == -1
