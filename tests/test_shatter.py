"""Networks for every labelling of points on a line: found, certified, kept, and said of them what was shown."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from typer.testing import CliRunner

import normscope as ns
from normscope.capacity import labellings, shatter
from normscope.capacity.labellings import Networks, network_of
from normscope.capacity.shatter_fit import (
    ROUNDNESS,
    _products,
    _solved,
    creased_points,
    creasing_numbers,
    fitted,
    other_labels,
    score,
    slope,
)
from normscope.certificates.check_networks import all_labels, check_shattering, shown
from normscope.cli import app
from normscope.results.result import load_bytes
from normscope.results.shattering import Shattering

DOCS = Path(__file__).parent.parent / "docs"
seeds = st.integers(0, 2**32 - 1)
depths = st.integers(1, 4)


def random_numbers(seed, depth):
    return np.random.default_rng(seed).normal(size=6 * depth + 3)


def scores(numbers, depth, points):
    states = np.empty((depth + 1, 3))
    return np.array([score(numbers, depth, point, states) for point in points])


def changes(values):
    return np.count_nonzero(np.diff(np.sign(values)))


@pytest.fixture(scope="module", params=[1, 2, 3])
def shattered(request):
    return shatter(request.param)


# The points and the first network


@pytest.mark.parametrize("creases", range(6))
def test_equal_creases_take_the_points_to_the_ends(creases):
    points = creased_points(creases)
    assert len(points) == 2**creases + 1
    assert (np.diff(points) > 0).all()
    creased = points
    for _ in range(creases):
        length = np.sqrt(1 + ROUNDNESS**2) - ROUNDNESS
        creased = 2 * (np.sqrt(creased**2 + ROUNDNESS**2) - ROUNDNESS) / length - 1
    first = 1 if creases else -1
    assert creased == pytest.approx(first * (-1) ** np.arange(len(points)), abs=1e-9)


@given(depth=st.integers(1, 6), creases=st.integers(0, 6))
def test_the_network_of_creases_alternates_at_any_depth_that_holds_them(depth, creases):
    creases = min(creases, depth)
    found = scores(creasing_numbers(depth, creases), depth, creased_points(creases))
    assert changes(found) == 2**creases
    assert np.abs(found).min() > 0.1


# The fit


@given(seed=seeds, depth=depths)
def test_scores_and_slopes_are_those_of_the_module(seed, depth):
    numbers, points = random_numbers(seed, depth), np.array([-1.0, 0.1, 0.8])
    outputs = network_of(numbers)(torch.from_numpy(points[:, None])).numpy()
    found = scores(numbers, depth, points)
    assert (outputs[:, 1] - outputs[:, 0]) / 2 == pytest.approx(found, rel=1e-6, abs=1e-9)

    def torch_score(given_numbers, point):
        state = torch.stack([point, torch.zeros_like(point)])
        for layer in given_numbers[: 6 * depth].reshape(depth, 2, 3):
            state = layer[:, :2] @ state + layer[:, 2]
            state = state / state.norm()
        return given_numbers[-3:-1] @ state + given_numbers[-1]

    states, row = np.empty((depth + 1, 3)), np.empty(len(numbers))
    for point in points:
        score(numbers, depth, point, states)
        slope(numbers, depth, states, -1.0, row)
        wanted = -torch.func.grad(torch_score)(torch.from_numpy(numbers), torch.tensor(point))
        assert row == pytest.approx(wanted.numpy(), rel=1e-6, abs=1e-6 * np.abs(wanted.numpy()).max())


@given(seed=seeds, rows=st.integers(1, 8))
def test_the_damped_system_is_solved(seed, rows):
    random = np.random.default_rng(seed)
    slopes, right = random.normal(size=(8, 15)), random.normal(size=8)
    product = np.empty((8, 8))
    size = _products(slopes, rows, product)
    gram = slopes[:rows] @ slopes[:rows].T
    assert size == pytest.approx(np.trace(gram))
    assert _solved(product, right, rows, 0.1) == pytest.approx(np.linalg.solve(gram + 0.1 * np.eye(rows), right[:rows]))


@given(seed=seeds, depth=depths)
def test_a_fit_is_never_worse_than_its_start_and_says_how_good_it_is(seed, depth):
    random = np.random.default_rng(seed)
    start, points, signs = random_numbers(seed, depth), np.sort(random.normal(size=6)), random.choice([-1.0, 1.0], 6)
    before, lead = fitted(start, depth, points, signs, 0.2, 1e-3, 0)
    numbers, most = fitted(start, depth, points, signs, 0.2, 1e-3, 60)
    assert (scores(before, depth, points) * np.sign(scores(start, depth, points)) > 0).all()
    assert most >= lead
    assert most == pytest.approx((signs * scores(numbers, depth, points)).min(), rel=1e-9, abs=1e-12)


@given(seed=seeds, depth=depths)
def test_no_network_changes_its_label_more_often_than_the_bound_says(seed, depth):
    numbers = creasing_numbers(depth, depth) + 0.3 * random_numbers(seed, depth)
    assert changes(scores(numbers, depth, np.linspace(-3, 3, 4001))) <= 2**depth


# What is shown


def exact_winner(network, point):
    """The higher score by LayerNorm as it is defined, in 60 digits."""
    with mpmath.workdps(60):
        state = mpmath.matrix([mpmath.mpf(point)])
        for place, layer in enumerate(network[0::2]):
            if place:
                mean = sum(state) / 3
                variance = sum((value - mean) ** 2 for value in state) / 3
                state = mpmath.matrix([(value - mean) / mpmath.sqrt(variance) for value in state])
            state = mpmath.matrix(layer.weight.tolist()) * state + mpmath.matrix(layer.bias.tolist())
        return int(state[1] > state[0])


def test_twice_to_the_depth_and_one_points_are_shattered(shattered):
    depth = shattered.depth
    assert len(shattered.points) == shattered.bound == 2**depth + 1
    assert shattered.shatters
    assert shattered.certified == shattered.labellings == 2 ** len(shattered.points)
    assert shattered.open == ()
    assert shattered.margin > 1e-3
    assert sum(row.labellings for row in shattered.by_runs) == shattered.labellings
    assert repr(shattered).startswith(f"Shattering({shattered.bound} points shattered at depth {depth}: ")


def test_every_labelling_has_a_network_of_that_depth_that_gives_it(shattered):
    samples = torch.tensor(shattered.points, dtype=torch.float64)[:, None]
    for labels in itertools.product((0, 1), repeat=len(shattered.points)):
        network = shattered.network(labels)
        assert network(samples).argmax(dim=1).tolist() == list(labels)
    assert sum(isinstance(layer, torch.nn.LayerNorm) for layer in network) == shattered.depth
    assert {layer.normalized_shape for layer in network[1::2]} == {(3,)}


def test_networks_are_right_in_many_digits_by_the_definition():
    result = shatter(2)
    for labels in itertools.product((0, 1), repeat=5):
        network = result.network(labels)
        assert tuple(exact_winner(network, point) for point in result.points) == labels


def test_runs_are_counted(shattered):
    counted = dict.fromkeys(range(1, shattered.bound + 1), 0)
    for labels in itertools.product((0, 1), repeat=shattered.bound):
        counted[1 + changes(2 * np.array(labels) - 1)] += 1
    assert {row.runs: row.labellings for row in shattered.by_runs} == counted


@pytest.mark.parametrize(("depth", "points"), [(1, 2), (2, 4), (3, 6), (4, 7), (6, 5)])
def test_fewer_points_than_the_bound_are_shattered_at_the_depth_asked_for(depth, points):
    result = ns.capacity.shatter(depth, points)
    assert result.shatters
    assert result.labellings == 2**points
    assert len(result.network([0] * points)) == 2 * depth + 1


def test_another_seed_finds_other_networks_and_the_same_seed_the_same():
    first, again, other = (shatter(2, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(again.numbers, first.numbers)
    assert other.shatters
    assert not np.array_equal(other.numbers, first.numbers)


def test_nothing_is_shown_of_a_network_that_is_wrong_or_has_no_direction():
    points, numbers = creased_points(1), creasing_numbers(1, 1)
    right = np.array([1, 0, 1], np.int8)
    assert shown(numbers, points, right) is not None
    assert shown(other_labels(numbers), points, 1 - right) is not None
    assert shown(numbers, points, 1 - right) is None
    assert shown(np.zeros(9), points, right) is None


def test_nothing_is_shown_where_only_floats_are_wrong(monkeypatch):
    points, numbers, right = creased_points(1), creasing_numbers(1, 1), np.array([1, 0, 1], np.int8)
    monkeypatch.setattr("normscope.certificates.check_networks.float_winners", lambda *_: 1 - right)
    assert shown(numbers, points, right) is None


def test_neighbours_differ_in_one_point_only():
    networks = Networks.none_yet(1, 0, creased_points(1))
    for labelling, labels in enumerate(all_labels(3)):
        signs = 2.0 * labels - 1
        numbers, most = fitted(creasing_numbers(1, 1), 1, networks.points, signs, 0.2, 1e-3, 300)
        networks.certified[labelling], networks.numbers[labelling] = most > 0, numbers
    assert networks.certified.any()
    for labelling, labels in enumerate(networks.labels):
        for numbers in networks.near(labelling):
            assert np.count_nonzero((scores(numbers, 1, networks.points) > 0) != labels) == 1


# Where not all is found


@pytest.fixture
def unfinished(monkeypatch):
    monkeypatch.setattr(labellings, "STEPS", 2)
    monkeypatch.setattr(labellings, "PASSES", 1)
    return shatter(3, 8)


def printed(result):
    text = str(result)
    assert max(map(len, text.splitlines())) <= 100
    return text


def test_labellings_without_a_network_are_left_open_and_nothing_is_claimed(unfinished):
    assert 0 < unfinished.certified < unfinished.labellings == 256
    assert not unfinished.shatters
    assert len(unfinished.open) == unfinished.labellings - unfinished.certified
    text = printed(unfinished)
    assert "That these 8 points of a line are shattered is not shown." in text
    assert f"Left open: {unfinished.open[0]}" in text
    assert "not shown to be shattered" in repr(unfinished)
    with pytest.raises(ValueError, match="none was found for these"):
        unfinished.network([int(digit) for digit in unfinished.open[0]])


def test_the_table_says_what_was_shown_what_is_promised_and_what_is_possible(shattered):
    text = " ".join(printed(shattered).split())
    depth, count = shattered.depth, 2**shattered.depth + 1
    assert (
        f"Networks of {depth} LayerNorm{'s' * (depth > 1)} of width 3 shatter these {count} points of a line." in text
    )
    assert f"{2**count:,} of {2**count:,} labellings certified" in text
    assert f"L + 2 = {depth + 2} are promised; more than 2^L + 1 = {count} points" in text


def test_json_fits_its_schema_finished_or_not(unfinished, shattered):
    for result in (unfinished, shattered):
        validator = jsonschema.Draft202012Validator(Shattering.json_schema())
        assert list(validator.iter_errors(result.to_dict())) == []


def test_the_command_prints_json_and_saves(tmp_path):
    path = tmp_path / "networks.safetensors"
    done = CliRunner().invoke(app, ["shatter", "2", "--points", "4", "-o", str(path), "--json"])
    result = json.loads(done.stdout)
    assert (result["depth"], result["certified"], result["shatters"], result["holds"]) == (2, 16, True, True)
    assert done.stderr == f"wrote {path}\n"
    assert ns.load(path).to_dict() == result
    again = CliRunner().invoke(app, ["shatter", "2", "--points", "4", "-o", str(path), "--csv"])
    assert again.stdout.splitlines()[0] == "runs of labels,labellings,certified,least margin"


# The file


@pytest.mark.parametrize("stop", [0, 30])
def test_what_was_saved_is_given_back_finished_or_not(stop, tmp_path, many_passes):
    path = tmp_path / "networks.safetensors"
    with pytest.raises(KeyboardInterrupt):
        shatter(3, 7, seed=4, resume=path, progress=stopping_after(stop))
    saved = ns.load(path)
    assert (saved.seed, saved.shatters, saved.tried is None) == (4, False, False)
    assert ns.verify(path).holds
    assert 0 <= saved.certified < saved.labellings
    done = shatter(3, 7, seed=4, resume=path)
    assert ns.load(path) == done
    assert (done.seed, done.tried) == (None, None)


def stopping_after(count):
    """A progress that is interrupted after so many labellings."""

    def progress(things, _):
        for thing in things:
            nonlocal count
            if count == 0:
                raise KeyboardInterrupt
            count -= 1
            yield thing

    return progress


@pytest.fixture
def many_passes(monkeypatch):
    monkeypatch.setattr(labellings, "STEPS", 8)


@pytest.mark.parametrize("stops", [(0,), (1,), (20, 10, 50), (64,)])
def test_a_search_that_was_interrupted_resumes_to_the_same_networks(stops, tmp_path, many_passes):
    path = tmp_path / "networks.safetensors"
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            shatter(3, 7, resume=path, progress=stopping_after(stop))
    resumed, straight = shatter(3, 7, resume=path), shatter(3, 7)
    assert np.array_equal(resumed.numbers, straight.numbers)
    assert resumed == straight


def test_what_was_tried_is_resumed_too(tmp_path, monkeypatch):
    monkeypatch.setattr(labellings, "STEPS", 2)
    monkeypatch.setattr(labellings, "PASSES", 2)
    path = tmp_path / "networks.safetensors"
    with pytest.raises(KeyboardInterrupt):
        shatter(3, 8, resume=path, progress=stopping_after(140))
    assert ns.load(path).tried.max() == 2
    resumed, straight = shatter(3, 8, resume=path), shatter(3, 8)
    assert np.array_equal(resumed.tried, straight.tried)
    assert resumed == straight


def test_the_file_is_written_now_and_then(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(labellings, "KEEP", 0.0)
    monkeypatch.setattr(labellings, "write_atomically", lambda content, path: written.append(load_bytes(content, "")))
    shatter(2, resume=tmp_path / "networks.safetensors")
    counts = [saved.certified for saved in written]
    assert len(counts) > 10
    assert counts == sorted(counts)


def altered(path, **changes):
    """The result in a file, with arrays or values that are others; written without asking whether it can be."""
    content = path.read_bytes()
    arrays, size = load_arrays(content), int.from_bytes(content[:8], "little")
    payload = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["result"])
    for name, value in changes.items():
        if isinstance(value, np.ndarray):
            arrays[f"shattering.{name}"] = value
        else:
            payload[name] = value
    metadata = {"format": "normscope result 1", "result": json.dumps(payload)}
    path.write_bytes(save_arrays(arrays, metadata=metadata))


def saved_again(result, path, numbers, **changes):
    """The result with other numbers, and whatever follows from them as the type has it."""
    finished = bool(numbers.any(axis=1).all())
    more = {} if finished else {"seed": 0, "tried": np.ones(len(numbers), np.int64)}
    replace(result, numbers=numbers, **{**more, **changes}).save(path, force=True)


def test_what_a_file_says_is_checked_again_and_wrong_networks_are_replaced(tmp_path):
    path = tmp_path / "networks.safetensors"
    first = shatter(2, resume=path)
    wrong = first.numbers.copy()
    wrong[3] *= -1
    wrong[7] = 0.0
    saved_again(first, path, wrong)
    result = shatter(2, resume=path)
    assert result.shatters
    samples = torch.tensor(result.points, dtype=torch.float64)[:, None]
    for labelling in (3, 7):
        labels = all_labels(5)[labelling]
        assert result.network(labels).forward(samples).argmax(dim=1).tolist() == labels.tolist()
    untouched = np.delete(np.arange(16), [3, 7])
    assert np.array_equal(result.numbers[untouched], first.numbers[untouched])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"depth": 3, "numbers": np.ones((16, 21)), "bound": 9, "promised": 5},
            "must be about 5 points, depth 2 and seed 0 to be resumed, got 5 points, depth 3: choose",
        ),
        ({"points": [0.0, 1.0, 2.0, 3.0, 4.0]}, "must be about 5 points"),
        ({"points": [1.0, 0.0, 2.0, 3.0, 4.0]}, "points must be finite and ascending"),
        ({"depth": 3}, "numbers must be float64 of shape"),
        ({"depth": 0}, "there must be 1 to 64 layers"),
        ({"numbers": np.zeros((16, 3))}, "numbers must be float64 of shape"),
        ({"numbers": np.full((16, 15), np.nan)}, "numbers must be finite"),
        ({"certified": 30}, "'certified' does not follow"),
        ({"certificates": np.zeros(16, bool)}, "is not part of a shattering"),
        ({"seed": 0, "tried": np.zeros(16, np.int64)}, "seed and tried must be there if, and only if"),
        ({"numbers": np.zeros((16, 15))}, "seed and tried must be there if, and only if"),
        ({"schema_version": 1}, "schema_version must be 2, got 1"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path, changes, message):
    path = tmp_path / "networks.safetensors"
    shatter(2, resume=path)
    altered(path, **changes)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        shatter(2, resume=path)
    assert path.read_bytes() == before


def test_verify_certifies_a_file_again_and_looks_for_nothing(tmp_path):
    path = tmp_path / "networks.safetensors"
    result = shatter(2, resume=path)
    before = path.read_bytes()
    found = ns.verify(path)
    assert (found.holds, found.reason) == (True, "32 of 32 labellings of 5 points certified for networks of depth 2")
    assert path.read_bytes() == before
    fewer = result.numbers.copy()
    fewer[[1, 4]] = 0.0
    saved_again(result, path, fewer)
    assert not ns.verify(path).holds  # the table still counts them
    wrong = result.numbers.copy()
    wrong[6] *= -1
    saved_again(result, path, wrong)
    assert ns.verify(path).reason == "2 of 32 labellings are not realised by the networks stored for them"
    for changes, reason in (
        ({"bits": result.bits + 1}, "bits of precision decide all labels"),
        ({"by_runs": result.by_runs[:-1]}, "the table of runs"),
        ({"by_runs": (*result.by_runs[:-1], replace(result.by_runs[-1], margin=1.0))}, "the table of runs"),
    ):
        holds, said = check_shattering(replace(result, **changes))
        assert not holds
        assert reason in said


def test_other_results_and_other_files_are_refused_and_left_alone(tmp_path):
    path = tmp_path / "networks.safetensors"
    path.write_bytes(b"something of value")
    with pytest.raises(ValueError, match="must be a result saved by normscope"):
        shatter(2, resume=path)
    assert path.read_bytes() == b"something of value"
    ns.capacity.memorize([[0.0], [1.0]], [0, 1]).save(path, force=True)
    with pytest.raises(ValueError, match="must be a result of normscope shatter to be resumed, got a memorized"):
        shatter(2, resume=path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth must be a whole number, 1 or more, got 0"),
        ({"depth": 2, "points": 1}, "points must be a whole number, 2 or more, got 1"),
        ({"depth": 2, "points": 6}, "points must be 5 or fewer at depth 2, got 6: the label changes at most"),
        ({"depth": 5, "points": 21}, r"points must be 20 or fewer, got 21: each labelling needs a network"),
        ({"depth": 2, "seed": -1}, "seed must be a whole number, 0 or more, got -1"),
        ({"depth": 2, "resume": "state.json"}, "must end in .safetensors"),
    ],
)
def test_what_can_not_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        shatter(**arguments)


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 2, 0, 1], "01010"])
def test_labels_that_are_not_are_refused(labels):
    with pytest.raises(ValueError, match="labels must be 0 or 1 for each of 5 points"):
        shatter(2).network(labels)


def test_the_document_says_what_the_published_runs_say():
    runs = json.loads((DOCS / "results" / "shatter.json").read_text(encoding="utf-8"))
    text = (DOCS / "shattering.md").read_text(encoding="utf-8")
    for run in runs:
        depth, count = run["depth"], len(run["points"])
        assert run["shatters"]
        assert run["certified"] == run["labellings"] == 2**count
        assert np.array_equal(run["points"], creased_points(depth))
        figures = (depth, depth + 2, count, 2**depth + 1, f"{run['labellings']:,}", f"{run['margin']:.1g}")
        assert f"| {' | '.join(map(str, figures))} | {run['seconds']:.0f} s |" in text
    assert [run["depth"] for run in runs] == [1, 2, 3, 4]
    assert len(re.findall(r"^\| \d", text, flags=re.MULTILINE)) == 4
