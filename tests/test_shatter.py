"""Networks for every labelling of points on a line: found, certified, kept, and said of them what was shown."""

import itertools
import json
import re
from importlib.resources import files
from pathlib import Path

import jsonschema
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import normscope
from normscope.capacity import shatter as shattering
from normscope.capacity.equal_folds import ROUNDNESS, folded_points, folding_numbers, maps_of, other_labels
from normscope.capacity.fitting import _products, _solved, fitted, score, slope
from normscope.capacity.scaling_layer import layer_norm_network
from normscope.capacity.shatter import shatter
from normscope.capacity.shatter_networks import Networks, all_labels, shown
from normscope.cli import app
from normscope.cli.shatter import shatter as command
from normscope.report.tables import tables

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


@pytest.mark.parametrize("folds", range(6))
def test_equal_folds_take_the_points_to_the_ends(folds):
    points = folded_points(folds)
    assert len(points) == 2**folds + 1
    assert (np.diff(points) > 0).all()
    folded = points
    for _ in range(folds):
        length = np.sqrt(1 + ROUNDNESS**2) - ROUNDNESS
        folded = 2 * (np.sqrt(folded**2 + ROUNDNESS**2) - ROUNDNESS) / length - 1
    first = 1 if folds else -1
    assert folded == pytest.approx(first * (-1) ** np.arange(len(points)), abs=1e-9)


@given(depth=st.integers(1, 6), folds=st.integers(0, 6))
def test_the_network_of_folds_alternates_at_any_depth_that_holds_them(depth, folds):
    folds = min(folds, depth)
    found = scores(folding_numbers(depth, folds), depth, folded_points(folds))
    assert changes(found) == 2**folds
    assert np.abs(found).min() > 0.1


# The fit


@given(seed=seeds, depth=depths)
def test_scores_and_slopes_are_those_of_the_module(seed, depth):
    numbers, points = random_numbers(seed, depth), np.array([-1.0, 0.1, 0.8])
    outputs = layer_norm_network(maps_of(numbers))(torch.from_numpy(points[:, None])).numpy()
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
    numbers = folding_numbers(depth, depth) + 0.3 * random_numbers(seed, depth)
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
    assert shattered.open == []
    assert shattered.margin > 1e-3
    assert sum(row.labellings for row in shattered.by_runs) == shattered.labellings
    assert repr(shattered).startswith(f"Shattering({shattered.bound} points shattered at depth {depth}: ")


def test_every_labelling_has_a_network_of_that_depth_that_gives_it(shattered):
    samples = torch.from_numpy(shattered.points.copy())[:, None]
    for labels in itertools.product((0, 1), repeat=len(shattered.points)):
        network = shattered.network(labels)
        assert network(samples).argmax(dim=1).tolist() == list(labels)
    assert sum(isinstance(layer, torch.nn.LayerNorm) for layer in network) == shattered.depth
    assert {layer.normalized_shape for layer in network[1::2]} == {(3,)}


def test_networks_are_right_in_many_digits_by_the_definition():
    result = shatter(2)
    for labels in itertools.product((0, 1), repeat=5):
        network = result.network(labels)
        assert tuple(exact_winner(network, point) for point in result.points.tolist()) == labels


def test_runs_are_counted(shattered):
    counted = dict.fromkeys(range(1, shattered.bound + 1), 0)
    for labels in itertools.product((0, 1), repeat=shattered.bound):
        counted[1 + changes(2 * np.array(labels) - 1)] += 1
    assert {row.runs: row.labellings for row in shattered.by_runs} == counted


@pytest.mark.parametrize(("depth", "points"), [(1, 2), (2, 4), (3, 6), (4, 7), (6, 5)])
def test_fewer_points_than_the_bound_are_shattered_at_the_depth_asked_for(depth, points):
    result = normscope.shatter(depth, points)
    assert result.shatters
    assert result.labellings == 2**points
    assert len(result.network([0] * points)) == 2 * depth + 1


def test_another_seed_finds_other_networks_and_the_same_seed_the_same():
    first, again, other = (shatter(2, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(again.networks.numbers, first.networks.numbers)
    assert other.shatters
    assert not np.array_equal(other.networks.numbers, first.networks.numbers)


def test_nothing_is_shown_of_a_network_that_is_wrong_or_has_no_direction():
    points, numbers = folded_points(1), folding_numbers(1, 1)
    right = np.array([1, 0, 1], np.int8)
    assert shown(numbers, points, right) is not None
    assert shown(other_labels(numbers), points, 1 - right) is not None
    assert shown(numbers, points, 1 - right) is None
    assert shown(np.zeros(9), points, right) is None


def test_nothing_is_shown_where_only_floats_are_wrong(monkeypatch):
    points, numbers, right = folded_points(1), folding_numbers(1, 1), np.array([1, 0, 1], np.int8)
    monkeypatch.setattr("normscope.capacity.shatter_networks.float_right", lambda *_: False)
    assert shown(numbers, points, right) is None


def test_neighbours_differ_in_one_point_only():
    networks = Networks.none_yet(1, 0, folded_points(1))
    for labelling, labels in enumerate(all_labels(3)):
        signs = 2.0 * labels - 1
        numbers, most = fitted(folding_numbers(1, 1), 1, networks.points, signs, 0.2, 1e-3, 300)
        networks.certified[labelling], networks.numbers[labelling] = most > 0, numbers
    assert networks.certified.any()
    for labelling, labels in enumerate(networks.labels):
        for numbers in networks.near(labelling):
            assert np.count_nonzero((scores(numbers, 1, networks.points) > 0) != labels) == 1


# Where not all is found


@pytest.fixture
def unfinished(monkeypatch):
    monkeypatch.setattr(shattering, "STEPS", 2)
    monkeypatch.setattr(shattering, "PASSES", 1)
    return shatter(3, 8)


def printed(result):
    console = Console(width=100)
    with console.capture() as capture:
        for part in tables(result):
            console.print(part)
    text = capture.get()
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


def schema():
    return json.loads((files("normscope") / "schemas" / "shatter.json").read_text(encoding="utf-8"))


def test_json_fits_its_schema_finished_or_not(unfinished, shattered):
    validator = jsonschema.Draft202012Validator(schema())
    for result in (unfinished, shattered):
        assert not list(validator.iter_errors(result.to_dict()))


def test_the_command_prints_json_and_keeps_the_state(tmp_path, capsys):
    state = tmp_path / "state.npz"
    command(2, points=4, state=state, json=True)
    output = capsys.readouterr()
    result = json.loads(output.out)
    jsonschema.validate(result, schema(), cls=jsonschema.Draft202012Validator)
    assert (result["depth"], result["certified"], result["shatters"]) == (2, 16, True)
    assert output.err == f"wrote {state}\n"
    assert state.exists()


# The state


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
    monkeypatch.setattr(shattering, "STEPS", 8)


@pytest.mark.parametrize("stops", [(0,), (1,), (20, 10, 50), (64,)])
def test_a_search_that_was_interrupted_goes_on_to_the_same_networks(stops, tmp_path, many_passes):
    state = tmp_path / "state.npz"
    for stop in stops:
        with pytest.raises(KeyboardInterrupt):
            shatter(3, 7, state=state, progress=stopping_after(stop))
    resumed, straight = shatter(3, 7, state=state), shatter(3, 7)
    assert straight.networks.tried.max() > 1
    assert np.array_equal(resumed.networks.tried, straight.networks.tried)
    assert np.array_equal(resumed.networks.numbers, straight.networks.numbers)
    assert resumed.by_runs == straight.by_runs


def test_the_state_is_written_now_and_then(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(shattering, "KEEP", 0.0)
    monkeypatch.setattr(Networks, "save", lambda networks, path: written.append(networks.certified.sum()))
    shatter(2, state=tmp_path / "state.npz")
    assert len(written) > 10
    assert written == sorted(written)


def changed(state, **arrays):
    with np.load(state) as file:
        content = {name: file[name] for name in file.files}
    np.savez(state, **content | arrays)


def test_what_a_state_says_is_checked_again_and_wrong_networks_are_replaced(tmp_path):
    state = tmp_path / "state.npz"
    numbers = shatter(2, state=state).networks.numbers.copy()
    wrong = numbers.copy()
    wrong[3] *= -1
    wrong[7] = 0.0
    changed(state, numbers=wrong, seed=np.array(0), tried=np.ones(16, int))
    result = shatter(2, state=state)
    assert result.shatters
    samples = torch.from_numpy(result.points.copy())[:, None]
    for labelling in (3, 7):
        labels = all_labels(5)[labelling]
        assert result.network(labels).forward(samples).argmax(dim=1).tolist() == labels.tolist()
    untouched = np.delete(np.arange(16), [3, 7])
    assert np.array_equal(result.networks.numbers[untouched], numbers[untouched])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"depth": np.array(3), "numbers": np.ones((16, 21))},
            "must be about 5 points, depth 2 and seed 0 to be gone on with, got 5 points, depth 3: choose",
        ),
        ({"points": np.arange(5.0)}, "must be about 5 points"),
        ({"depth": np.array(3)}, "is damaged: there must be a depth, and a network"),
        ({"numbers": np.zeros((16, 3))}, "is damaged: there must be a depth, and a network"),
        ({"numbers": np.full((16, 15), np.nan)}, "is damaged: numbers must be finite"),
        ({"certified": np.zeros(16, bool)}, "no state of normscope shatter: 'seed'"),
        ({"seed": np.array(0), "tried": np.zeros(16, int)}, "seed and tried while networks are missing, and only then"),
        ({"numbers": np.zeros((16, 15))}, "seed and tried while networks are missing, and only then"),
        ({"format": np.array("normscope vocab 1")}, "must say 'normscope shatter 2'"),
    ],
)
def test_a_state_of_something_else_is_refused(tmp_path, arrays, message):
    state = tmp_path / "state.npz"
    shatter(2, state=state)
    changed(state, **arrays)
    before = state.read_bytes()
    with pytest.raises(ValueError, match=message):
        shatter(2, state=state)
    assert state.read_bytes() == before


def test_verify_certifies_a_state_again_and_looks_for_nothing(tmp_path):
    state = tmp_path / "state.npz"
    shatter(2, state=state)
    before = state.read_bytes()

    def verified():
        done = CliRunner().invoke(app, ["verify", str(state), "--json"])
        found = json.loads(done.stdout)
        assert done.exit_code == (0 if found["holds"] else 1)
        return found["holds"], found["reason"]

    assert verified() == (True, "32 of 32 labellings of 5 points certified for networks of depth 2")
    assert state.read_bytes() == before
    with np.load(state) as file:
        numbers, points = (file[name] for name in ("numbers", "points"))
    numbers[[1, 4]] = 0.0
    changed(state, numbers=numbers, seed=np.array(0), tried=np.ones(16, int))
    assert verified() == (True, "28 of 32 labellings of 5 points certified for networks of depth 2")
    numbers[6] *= -1
    changed(state, numbers=numbers)
    assert verified() == (False, "2 of 28 labellings are not given by the networks kept for them")
    for wrong in ({"points": points[::-1]}, {"points": points[:4]}, {"depth": np.array(2.0)}, {"depth": np.array(-1)}):
        changed(state, **{"points": points, "depth": np.array(2), **wrong})
        assert verified()[0] is False
        assert "is damaged" in verified()[1]


def test_a_file_that_is_no_state_is_refused_and_left_alone(tmp_path):
    state = tmp_path / "state.npz"
    state.write_bytes(b"something of value")
    with pytest.raises(ValueError, match="exists, and is no state of normscope shatter"):
        shatter(2, state=state)
    assert state.read_bytes() == b"something of value"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth must be a whole number, 1 or more, got 0"),
        ({"depth": 2, "points": 1}, "points must be a whole number, 2 or more, got 1"),
        ({"depth": 2, "points": 6}, "points must be 5 or fewer at depth 2, got 6: the label changes at most"),
        ({"depth": 5, "points": 21}, r"points must be 20 or fewer, got 21: each labelling needs a network"),
        ({"depth": 2, "seed": -1}, "seed must be a whole number, 0 or more, got -1"),
        ({"depth": 2, "state": "state.json"}, "must end in .npz"),
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
        jsonschema.validate(run, schema(), cls=jsonschema.Draft202012Validator)
        depth, count = run["depth"], len(run["points"])
        assert run["shatters"]
        assert run["certified"] == run["labellings"] == 2**count
        assert np.array_equal(run["points"], folded_points(depth))
        figures = (depth, depth + 2, count, 2**depth + 1, f"{run['labellings']:,}", f"{run['margin']:.1g}")
        assert f"| {' | '.join(map(str, figures))} | {run['seconds']:.0f} s |" in text
    assert [run["depth"] for run in runs] == [1, 2, 3, 4]
    assert len(re.findall(r"^\| \d", text, flags=re.MULTILINE)) == 4
