"""A real Ray cluster of two nodes on this machine, and submitit's local jobs: equal results, whatever is killed.

make test-cluster
"""

import json
import os
import re
import shutil
import socket
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import engine_pieces
import normscope as ns
from normscope.engine import FailedPiece, open_engine
from normscope.errors import InputError
from normscope.many_models import ask_many
from normscope_lab.engine.runs import reproduce

pytestmark = [pytest.mark.cluster, pytest.mark.filterwarnings("default")]  # warnings of Ray are not ours
PIECES = 8


@pytest.fixture
def environment(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import the pieces of this folder
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cluster(environment, monkeypatch):
    """Two nodes with one core each; the second can be killed."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    nodes.second = nodes.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    yield nodes
    nodes.shutdown()


def test_two_nodes_give_the_same_bytes_while_a_worker_is_killed(cluster, tmp_path):
    expected = [engine_pieces.draw(seed) for seed in range(PIECES)]
    with open_engine("ray") as engine:
        assert engine.workers == 2
        assert list(engine.run(engine_pieces.end_once, range(PIECES), given=(str(tmp_path),))) == expected
        table = {"rows": np.arange(3e5).reshape(3, -1)}
        with engine.shared(table) as shared:
            found = list(engine.run(engine_pieces.look_up, range(3), given=(shared,)))
        assert [total for total, _ in found] == table["rows"].sum(axis=1).tolist()
        ended = list(engine.run(engine_pieces.end_always, range(3), named="piece {}".format))
    assert (tmp_path / "tried-3").exists()
    assert ended == [0, FailedPiece("piece 1", "its worker ended without an answer (WorkerCrashedError)"), 2]


def test_a_whole_node_is_killed_in_the_middle(cluster):
    expected = [engine_pieces.draw(seed) for seed in range(PIECES)]
    with open_engine("ray", 2) as engine:
        results = engine.run(engine_pieces.draw_slowly, range(PIECES))
        found = [next(results)]
        cluster.remove_node(cluster.second, allow_graceful=False)
        assert found + list(results) == expected


def test_every_study_and_cells_on_two_nodes_are_those_of_one_process(cluster, tmp_path):
    text = "To be, or not to be, that is the question."
    changes = {"keys": [8, 9], "channels": [2], "runs": 5}
    copies = [Path(shutil.copytree(ns.demo_model(), tmp_path / f"copy-{number}")) for number in range(2)]
    found = {}
    with open_engine("ray") as ray, open_engine("local", 1) as local:
        for name, engine in (("ray", ray), ("local", local)):
            reproduce("random-keys", tmp_path / name, changes=changes, engine=engine)
            ask_many("inspect", [*copies, tmp_path / "none"], out=tmp_path / f"{name}.csv", engine=engine)
            found[name] = [
                ns.keys(ns.demo_model(), text=text, engine=engine).to_bytes(),
                ns.ranges(ns.demo_model(), engine=engine).to_bytes(),
                ns.vocab(ns.demo_model(), engine=engine).to_bytes(),
                (tmp_path / name / "results.csv").read_bytes(),
                (tmp_path / f"{name}.csv").read_bytes(),
            ]
        assert local.sent == 0
        assert ray.sent > 10_000
    for ours, expected in zip(found["ray"], found["local"], strict=True):
        assert ours == expected


def test_a_cluster_is_started_for_a_run_of_the_command_line(environment, monkeypatch, run_here):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given = ["keys", "--text", "sample", "--max-keys", "20", "--json"]
    by_ray = run_here(*given, "--engine", "ray", "--workers", "2")
    assert by_ray.returncode == 0, by_ray.stderr
    assert json.loads(by_ray.stdout) == json.loads(run_here(*given, "--workers", "1").stdout)


def test_an_address_where_nothing_listens_is_told_in_seconds(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begun = time.monotonic()
    for address, told in (
        (f"127.0.0.1:{port}", f"no cluster answers at RAY_ADDRESS=127.0.0.1:{port}: "),
        ("nonsense", "the cluster at RAY_ADDRESS=nonsense can't be reached or started: Invalid address"),
    ):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(InputError, match=re.escape(told)), open_engine("ray"):
            pass
    assert time.monotonic() - begun < 30


def test_a_slurm_job_that_is_killed_is_done_again(environment, tmp_path):
    expected = [engine_pieces.draw(seed) for seed in range(PIECES)]
    begun = time.monotonic()
    with open_engine("slurm", 2) as engine:
        assert list(engine.run(engine_pieces.end_once, range(PIECES), given=(str(tmp_path),))) == expected
    assert (tmp_path / "tried-3").exists()
    assert time.monotonic() - begun < 120
