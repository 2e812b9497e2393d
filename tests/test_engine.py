"""Every engine gives the same bytes in the same order; lost pieces are done again, failed ones are named."""

import io
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import engine_pieces
import normscope as ns
from normscope.engine import FailedPiece, failed, open_engine
from normscope.engine.kept_results import MAGIC, digest, kept_results
from normscope.engine.packing import packed, unpacked
from normscope.engine.shared_values import write_shared
from normscope.engine.worker_process import receive, send
from normscope.errors import InputError, PieceError, PieceWarning
from normscope.progress import silent

PIECES = 6


@contextmanager
def engine_of(name, workers, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # jobs import the pieces of this folder
    monkeypatch.chdir(tmp_path)  # slurm keeps its files in the current folder
    with open_engine(name, workers) as engine:
        yield engine


def kinds():
    return pytest.mark.parametrize(
        ("name", "workers"), [("local", 1), ("local", 2), pytest.param("slurm", 2, marks=pytest.mark.cluster)]
    )


@kinds()
def test_results_are_the_same_bytes_in_order(name, workers, tmp_path, monkeypatch):
    expected = [engine_pieces.draw(seed, 2.0) for seed in range(PIECES)]
    with engine_of(name, workers, tmp_path, monkeypatch) as engine:
        assert list(engine.run(engine_pieces.draw, range(PIECES), given=(2.0,))) == expected
    assert os.listdir(tmp_path) == []


@kinds()
def test_pieces_that_fail_are_named_and_the_rest_stands(name, workers, tmp_path, monkeypatch):
    tries = tmp_path / "tries"
    tries.mkdir()
    with engine_of(name, workers, tmp_path, monkeypatch) as engine:
        given = (str(tries),)
        found = list(engine.run(engine_pieces.fail, ["bug", "good", "input", "sometimes"], given=given, named=str))
    bug, good, wrong, sometimes = found
    assert bug == FailedPiece("bug", "ZeroDivisionError: no quotient")
    assert "engine_pieces.py" in bug.trace
    assert wrong == FailedPiece("input", "the input must be better", ours=True)
    assert (good, sometimes) == ("good", "sometimes")
    counts = {path.name: len(path.read_text(encoding="utf-8")) for path in tries.iterdir()}
    assert counts == {"bug": 3, "good": 1, "input": 1, "sometimes": 3}


@kinds()
def test_no_more_pieces_than_workers_are_done_at_the_same_time(name, workers, tmp_path, monkeypatch):
    with engine_of(name, workers, tmp_path, monkeypatch) as engine:
        times = list(engine.run(engine_pieces.asleep, range(PIECES)))
    at_once = [sum(begun <= moment < end for begun, end in times) for moment, _ in times]
    assert max(at_once) <= workers


@kinds()
def test_a_shared_value_is_read_by_all(name, workers, tmp_path, monkeypatch):
    table = {"rows": np.arange(3e5).reshape(3, -1)}
    with engine_of(name, workers, tmp_path, monkeypatch) as engine, engine.shared(table) as shared:
        found = list(engine.run(engine_pieces.look_up, range(3), given=(shared,)))
        assert engine.sent < 10_000
    assert [total for total, _ in found] == table["rows"].sum(axis=1).tolist()


def test_a_worker_that_is_killed_is_replaced_and_its_piece_done_again(tmp_path):
    expected = [engine_pieces.draw(seed) for seed in range(PIECES)]
    with open_engine("local", 2) as engine:
        assert list(engine.run(engine_pieces.end_once, range(PIECES), given=(str(tmp_path),))) == expected
    assert (tmp_path / "tried-3").exists()


def test_a_piece_that_ends_its_worker_three_times_is_named():
    with open_engine("local", 2) as engine:
        found = list(engine.run(engine_pieces.end_always, range(3), named="piece {}".format))
    reason = "its worker ended without an answer (exit code 9)"
    assert found == [0, FailedPiece("piece 1", reason), 2]


def test_a_worker_that_is_killed_while_it_is_idle_costs_no_try(tmp_path):
    with open_engine("local", 2) as engine:
        for _ in range(4):  # more than a piece is tried
            for worker in {process for _, process, _ in engine.run(engine_pieces.where, range(4))}:
                os.kill(worker, signal.SIGKILL)
                _wait_for_end(worker)
        folder = tmp_path / "tries"
        folder.mkdir()
        assert list(engine.run(engine_pieces.fail, ["good"], given=(str(folder),))) == ["good"]


def test_pieces_behind_one_that_ends_its_worker_are_not_tried_for_it():
    with open_engine("local", 2) as engine:
        found = list(engine.run(engine_pieces.end_always, [1, 1, 0, 1, 2, 1, 3], named="piece {}".format))
    lost = FailedPiece("piece 1", "its worker ended without an answer (exit code 9)")
    assert found == [lost, lost, 0, lost, 2, lost, 3]


def test_a_worker_that_dies_while_it_is_given_a_piece_does_not_end_the_command_line():
    program = (
        "import os, signal, threading, numpy\n"
        "from pathlib import Path\n"
        "from normscope.engine import open_engine\n"
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as the command line does\n"
        "children = Path(f'/proc/{os.getpid()}/task/{os.getpid()}/children')\n"
        "def kill_the_first():\n"
        "    while not (found := children.read_text().split()): pass\n"
        "    os.kill(int(found[0]), signal.SIGKILL)  # it has not yet begun to read\n"
        "with open_engine('local', 2) as engine:\n"
        "    threading.Thread(target=kill_the_first).start()\n"
        "    print(list(engine.run(len, [numpy.zeros(2**20)] * 3)))\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{[2**20] * 3}\n", "")


@settings(max_examples=30, deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=4), cut=st.integers(0, 10**4))
def test_what_is_received_is_what_was_sent(shapes, cut):
    value = {number: np.random.default_rng(number).normal(size=shape) for number, shape in enumerate(shapes)}
    pipe = io.BytesIO()
    for _ in range(2):
        send(pipe, packed(value))
    for content in (pipe.getvalue(), pipe.getvalue()[:cut]):
        pipe, plain = io.BytesIO(content), pickle.dumps(value, protocol=5)
        while pipe.tell() < len(content) and (parts := receive(pipe)) is not None:
            assert pickle.dumps(unpacked(parts), protocol=5) == plain
            assert all(array.flags.writeable for array in unpacked(parts).values())
        assert pipe.tell() == len(content)


def test_a_result_that_cannot_be_sent_is_a_failure(tmp_path):
    with open_engine("local", 2) as engine:
        [found] = engine.run(engine_pieces.fail, ["unsendable"], given=(str(tmp_path),))
    assert "its result can't be sent: cannot pickle" in found.reason


def test_one_worker_is_this_process_and_more_are_others_with_one_thread():
    with open_engine("local", 1) as engine:
        assert {process for _, process, _ in engine.run(engine_pieces.where, range(3))} == {os.getpid()}
    with open_engine("local", 2) as engine:
        found = list(engine.run(engine_pieces.where, range(3)))
        again = list(engine.run(engine_pieces.where, range(3), patience=60))  # they are there: no need to wait
    others = {process for _, process, _ in found + again}
    assert os.getpid() not in others
    assert 1 <= len(others) <= 2
    assert {threads for _, _, threads in found} == {1}


def test_little_work_starts_no_process():
    with open_engine("local", 2) as engine:
        found = list(engine.run(engine_pieces.where, range(3), patience=60))
        assert engine.sent == 0
    assert {process for _, process, _ in found} == {os.getpid()}


@settings(max_examples=5, deadline=None)
@given(count=st.integers(0, 40))
def test_an_iterator_is_read_as_results_are_taken(count):
    read = []

    def pieces():
        for number in range(count):
            read.append(number)
            yield number

    with open_engine("local", 2) as engine:
        results = engine.run(engine_pieces.slow, pieces())
        first = list(zip(range(1), results, strict=False))
        assert len(read) <= 32 + 1
        assert [value for _, value in first] + list(results) == list(range(count))


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGINT])
def test_a_script_without_a_guard_runs_once_and_its_workers_end_with_it(ended_by, tmp_path):
    program = (
        "import os, signal, engine_pieces\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background\n"
        "from normscope.engine import open_engine\n"
        "print('begun', flush=True)\n"
        "with open_engine('local', 2) as engine:\n"
        "    results = engine.run(engine_pieces.where, range(3))\n"
        "    print(next(results)[1], flush=True)\n"
        "    engine.run(__import__('time').sleep, [60, 60]).__next__()\n"
    )
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert child.stdout.readline() == "begun\n"
    worker = int(child.stdout.readline())
    child.send_signal(ended_by)
    assert child.stdout.read() == ""
    assert child.wait() == -ended_by
    child.stdout.close()
    _wait_for_end(worker)


def _wait_for_end(process):
    """Until a process has ended; its parent may not have asked how."""
    for _ in range(200):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except OSError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {process} is still there")


def test_errors_say_what_to_do():
    with pytest.raises(InputError, match="engine must be one of local, ray, slurm, got 'cloud'"), open_engine("cloud"):
        pass
    with pytest.raises(InputError, match="workers must be a whole number, 1 or more, got 0"), open_engine(workers=0):
        pass
    both = failed([FailedPiece("a", "OSError: full"), FailedPiece("b", "wrong", ours=True)], 5, "cells")
    assert isinstance(both, PieceError)
    assert str(both) == "2 of 5 cells failed, the first is a: OSError: full"
    assert isinstance(failed([FailedPiece("b", "wrong", ours=True)], 5, "cells"), InputError)


@settings(max_examples=20, deadline=None)
@given(shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), max_size=4))
def test_shared_values_are_what_pickle_gives(shapes, tmp_path_factory):
    value = {number: np.random.default_rng(number).normal(size=shape) for number, shape in enumerate(shapes)}
    path = tmp_path_factory.mktemp("shared") / "value"
    loaded, plain = write_shared(value, path).load(), pickle.loads(pickle.dumps(value))
    assert loaded.keys() == plain.keys()
    assert all(np.array_equal(loaded[name], plain[name]) for name in plain)
    assert path.stat().st_mode & 0o077 == 0


def test_ranges_are_the_same_with_more_workers(monkeypatch):
    monkeypatch.setattr("normscope.studies.layer_watch.PATIENCE", 0.0)
    with open_engine("local", 2) as engine:
        by_two = ns.ranges(ns.demo_model(), tight=1, engine=engine)
        assert engine.received > 0
    assert by_two.to_bytes() == ns.ranges(ns.demo_model(), tight=1).to_bytes()


def test_keys_that_fail_are_listed_and_the_rest_stands(monkeypatch):
    monkeypatch.setattr("normscope.studies.key_verdicts.solve", engine_pieces.first_head_fails)
    with open_engine("local", 1) as engine:
        found = ns.keys(ns.demo_model(), text="To be, or not to be", engine=engine)
    [missed] = found.not_covered
    assert "failed at sequence 0: ZeroDivisionError: no quotient" in missed.reason
    assert sum(place.keys == 0 for place in found.places) == 1
    assert found.holds


@pytest.mark.parametrize("workers", [1, 2])
def test_kept_results_are_not_computed_again(workers, tmp_path):
    tries, parts = tmp_path / "tries", tmp_path / "parts"
    tries.mkdir()
    for _ in range(2):
        with open_engine("local", workers) as engine, engine.keeping(parts):
            found = list(engine.run(engine_pieces.fail, ["bug", "good", "fine"], given=(str(tries),), named=str))
        assert found == [FailedPiece("bug", "ZeroDivisionError: no quotient"), "good", "fine"]
    counts = {path.name: len(path.read_text(encoding="utf-8")) for path in tries.iterdir()}
    assert counts == {"bug": 6, "good": 1, "fine": 1}  # what failed is tried again
    with open_engine("local", 1) as engine, engine.keeping(parts):
        list(engine.run(engine_pieces.fail, ["good"], given=(str(tries),), about="other shared values"))
    assert len((tries / "good").read_text(encoding="utf-8")) == 2


@settings(max_examples=20, deadline=None)
@given(cut=st.integers(1, 400))
def test_of_a_file_that_was_cut_off_whole_results_are_found(cut, tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "parts"
    keys = [digest(number) for number in range(4)]
    with kept_results(path) as kept:
        for number, key in enumerate(keys):
            kept.add(key, pickle.dumps(np.full(3, number)))
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(MAGIC), len(whole) - cut)])
    with kept_results(path) as kept:
        found = [kept.find(key) for key in keys]
        assert all(each is None or each[0].tolist() == [number] * 3 for number, each in enumerate(found))
        kept.add(keys[3], pickle.dumps(np.full(3, 3)))
        assert kept.find(keys[3])[0].tolist() == [3, 3, 3]
    if cut <= 100:
        assert found[0] is not None


def test_nothing_but_arrays_and_results_is_made_of_a_kept_file(tmp_path):
    with kept_results(tmp_path / "parts") as kept:
        for number, evil in enumerate((os.system, engine_pieces.draw, open_engine, subprocess.Popen)):
            kept.add(digest(number), pickle.dumps(evil))
            with pytest.raises(InputError, match="must hold arrays and results of normscope"):
                kept.find(digest(number))
    (tmp_path / "other").write_bytes(b"something else")
    told = pytest.raises(InputError, match="does not hold the pieces of a run: remove it")
    with told, open_engine() as engine, engine.keeping(tmp_path / "other"):
        pass


@pytest.mark.parametrize("study", ["keys", "ranges"])
def test_an_interrupted_study_is_resumed_with_the_same_bytes(study, tmp_path, monkeypatch):
    def ask(progress=silent):
        given = {"text": "To be, or not to be\n" * 30} if study == "keys" else {"tight": 2}
        with open_engine("local", 1) as engine:
            return getattr(ns, study)(ns.demo_model(), **given, engine=engine, parts=parts, progress=progress)

    def interrupting(things, what):
        for number, thing in enumerate(things):
            if number == (2 if study == "keys" else len(things) - 2):
                raise KeyboardInterrupt
            yield thing

    parts = None
    whole = ask().to_bytes()
    parts = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        ask(interrupting)
    size = parts.stat().st_size
    assert size > 1000
    solved = []
    place = (
        "normscope.studies.key_verdicts.selectable" if study == "keys" else "normscope.studies.layer_watch.tightened"
    )
    original = getattr(sys.modules[place.rpartition(".")[0]], place.rpartition(".")[2])
    monkeypatch.setattr(place, lambda *given, **options: (solved.append(1), original(*given, **options))[1])
    assert ask().to_bytes() == whole
    before = len(solved)
    assert ask().to_bytes() == whole
    assert len(solved) == before  # nothing was left to solve
    parts.unlink()
    ask()
    assert len(solved) - before > before  # the first run had solved some


def test_a_tight_bound_that_fails_is_named_and_looser_ones_stand(monkeypatch):
    monkeypatch.setattr("normscope.studies.layer_watch.tightened", engine_pieces.no_bound)
    with pytest.warns(
        PieceWarning, match=r"4 of 4 tight bounds failed, the first is output \d+ of .*: OSError: no disk"
    ):
        found = ns.ranges(ns.demo_model())
    assert found.layers == ns.ranges(ns.demo_model(), tight=0).layers
