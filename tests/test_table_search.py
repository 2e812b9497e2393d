"""Large tables: verdicts against oracles, screens that never claim too much, and checks that notice every change."""

import re
import subprocess
import sys
import time
from dataclasses import fields, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normscope import Norm, selectable
from normscope.certificates import token_table as table
from normscope.certificates.check_tokens import first_fault, rules_out, verdict_of
from normscope.certificates.token_certificates import NEVER, OPEN, TIED, WINS
from normscope.certificates.token_scores import OwnDirectionCheck, prefers, prefers_reachable
from normscope.certificates.token_table import Outputs, Table
from normscope.engine import open_engine
from normscope.errors import InputError, PieceWarning
from normscope.vocabulary import token_directions
from normscope.vocabulary.clock import Clock
from normscope.vocabulary.findings import Answers, Findings
from normscope.vocabulary.nearest_token import NearestPoints
from normscope.vocabulary.search import search
from normscope.vocabulary.token_directions import Asked, OwnDirections, frame_of
from normscope.vocabulary.token_view import View
from strategies import seeds


@st.composite
def tables(draw, rows=(2, 40), channels=(2, 6)):
    """A table with its norm; rows may be twins, means of two others, or near another, and may have a bias."""
    rng = np.random.default_rng(draw(seeds))
    count, size = draw(st.integers(*rows)), draw(st.integers(*channels))
    values = rng.normal(size=(count, size)) * np.exp(rng.normal(size=size)) * np.exp(0.5 * rng.normal(size=(count, 1)))
    values = (values + draw(st.sampled_from([0.0, 3.0]))).astype(draw(st.sampled_from([np.float32, np.float64])))
    if draw(st.booleans()):
        values[count // 2] = values[0]
    if count > 4 and draw(st.booleans()):
        values[1] = (values[0] + values[2]) / 2
    if count > 4 and draw(st.booleans()):
        values[3] = values[4] * (1 + draw(st.sampled_from([1e-3, 1e-5, 1e-7])))
    bias = rng.normal(size=count) if draw(st.booleans()) else None
    gain = rng.normal(size=size) * (rng.random(size) < draw(st.sampled_from([1.0, 0.8])))
    center = rng.normal(size=size) * draw(st.sampled_from([0.0, 1.0, 10.0]))
    return Table(values, bias, Outputs(gain, center, draw(st.booleans())))


def found_in(asked, clock=None):
    findings = Findings.none_yet(len(asked), reachable=asked.outputs is not None)
    search(asked, findings, clock or Clock())
    return findings


def fault_of(asked, findings):
    """What is wrong first, as it is found when arrays are read or when they are checked."""
    try:
        reachable = None if findings.reachable is None else findings.reachable.certificates()
        return first_fault(asked, findings.any_vector.certificates(), reachable)
    except InputError as error:
        return str(error)


def scores_of(asked, hidden):
    """Straight from the definition."""
    return asked.rows.astype(float) @ hidden + (0.0 if asked.bias is None else asked.bias)


def outputs_for(asked, u):
    outputs = asked.outputs
    inner = u - u.mean() if outputs.projects else u
    return outputs.center + np.sqrt(len(u)) * outputs.gain * inner


@settings(max_examples=60)
@given(asked=tables())
def test_agrees_with_the_solver_for_small_sets(asked):
    """Another way to the same verdicts: sets that are solved whole."""
    findings = found_in(asked)
    norm = Norm(gain=asked.outputs.gain, bias=asked.outputs.center, project=asked.outputs.projects)
    for answers, oracle in (
        (findings.any_vector, selectable(asked.rows, bias=asked.bias)),
        (findings.reachable, selectable(asked.rows, bias=asked.bias, queries=norm.ellipsoid)),
    ):
        settled = (answers.verdict != OPEN) & ~oracle.open
        np.testing.assert_array_equal((answers.verdict == WINS)[settled], oracle.mask[settled])
        assert (~settled <= oracle.near_ties).all()


@settings(max_examples=60)
@given(asked=tables())
def test_every_verdict_has_a_certificate_that_holds(asked):
    assert fault_of(asked, found_in(asked)) is None


@settings(max_examples=40)
@given(asked=tables(rows=(3, 25), channels=(2, 3)), seed=seeds)
def test_whoever_is_said_never_to_win_wins_nowhere(asked, seed):
    """Every hidden vector that is tried, small and large, inside the ellipsoid and anywhere."""
    rng, findings = np.random.default_rng(seed), found_in(asked)
    lost = [np.isin(answers.verdict, (NEVER, TIED)) for answers in (findings.reachable, findings.any_vector)]
    for _ in range(300):
        u = rng.normal(size=asked.channels)
        u *= rng.random() ** 0.3 / np.linalg.norm(u)
        for hidden, losers in ((outputs_for(asked, u), lost[0]), (100.0 ** rng.normal() * u, lost[1])):
            scores = scores_of(asked, hidden)
            ahead = np.flatnonzero(scores == scores.max())
            assert len(ahead) > 1 or not losers[ahead[0]]


@settings(max_examples=40)
@given(asked=tables())
def test_what_wins_reachably_wins_and_what_never_wins_is_not_reached(asked):
    findings = found_in(asked)
    ours, theirs = findings.any_vector.verdict, findings.reachable.verdict
    assert ((theirs == WINS) <= (ours == WINS)).all()
    assert (np.isin(ours, (NEVER, TIED)) <= np.isin(theirs, (NEVER, TIED))).all()


@settings(max_examples=60)
@given(asked=tables(rows=(2, 30)), power=st.sampled_from([0.25, 0.75, 1.0]), reachable=st.booleans())
def test_an_own_direction_that_is_proven_wins_without_rounding(asked, power, reachable):
    names = np.arange(len(asked))
    view = View(asked, names, reachable)
    own = OwnDirections(view, frame_of(view), power)
    for block in own.blocks(names):
        proven = block[own.ask(block).proven]
        for token, query in zip(proven, own.queries(proven), strict=True):
            hidden = outputs_for(asked, query) if reachable else query
            exact = [
                sum((Fraction(float(w)) * Fraction(float(h)) for w, h in zip(row, hidden, strict=True)), Fraction(0))
                for row in asked.rows
            ]
            if reachable and asked.bias is not None:
                exact = [score + Fraction(float(c)) for score, c in zip(exact, asked.bias, strict=True)]
            assert all(exact[token] > score for other, score in enumerate(exact) if other != token)


def exact_lead(asked, token, rivals, hidden, bias):
    """By how much a hidden vector scores a token above rivals, in fractions."""

    def score(number):
        row = asked.rows[number].tolist()
        added = Fraction(0) if bias is None else Fraction(float(bias[number]))
        return sum((Fraction(w) * Fraction(float(h)) for w, h in zip(row, hidden, strict=True)), added)

    return min((score(token) - score(rival) for rival in rivals), default=Fraction(1))


@settings(max_examples=60)
@given(asked=tables(rows=(2, 30)), power=st.sampled_from([0.25, 0.75, 1.0]), reachable=st.booleans())
def test_the_check_passes_an_own_direction_only_if_it_wins_without_rounding(asked, power, reachable):
    """Its vectors are A·v⁻ᵖ·Aᵀ(x − center), computed here once more, in another order."""
    frame = frame_of(View(asked, np.arange(len(asked)), reachable))
    wins = OwnDirectionCheck(asked, frame, reachable).wins(power, np.arange(len(asked)))
    square = frame.axes @ np.diag((frame.variances / frame.variances.max()) ** -power) @ frame.axes.T
    bias = asked.bias if reachable else None
    for token in np.flatnonzero(wins):
        equal = (asked.rows == asked.rows[token]).all(axis=1)
        assert equal.sum() == 1 or (asked.bias[token] > np.delete(asked.bias[equal], equal[:token].sum())).all()
        row = asked.rows[token].astype(float)
        along = square @ ((asked.outputs.pull(row) if reachable else row) - frame.center)
        along = along / max(np.linalg.norm(along), 1e-300)
        hidden = outputs_for(asked, along) if reachable else along
        rivals = np.flatnonzero(~equal) if bias is None else np.delete(np.arange(len(asked)), token)
        size = np.abs(asked.rows).max() * np.abs(hidden).sum() + (0.0 if bias is None else np.abs(bias).max())
        assert exact_lead(asked, token, rivals, hidden, bias) > -1e-13 * size  # doubles round the vector


@pytest.mark.parametrize("reachable", [False, True])
def test_a_lead_that_is_not_above_rounding_does_not_pass(reachable):
    """Two tokens of which one leads by less than doubles can tell, then by nothing, then by enough."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 8))
    rows[0] *= 4
    outputs = Outputs(rng.normal(size=8), rng.normal(size=8), projects=True)
    for share, passes in ((0.0, False), (1e-17, False), (1e-3, True)):
        rows[1] = rows[0]
        rows[1, 2] = rows[0, 2] * (1 - share)
        asked = Table(rows.copy(), None, outputs)
        frame = frame_of(View(asked, np.arange(50), reachable))
        wins = OwnDirectionCheck(asked, frame, reachable).wins(0.75, np.array([0, 1]))
        assert wins.any() == passes


@pytest.mark.parametrize("reachable", [False, True])
def test_the_check_does_not_rely_on_the_screen_of_the_search(monkeypatch, reachable):
    """A screen that passes every token leads to a state that the check refuses."""

    def careless(self, tokens):
        everything = np.ones(len(tokens), bool)
        return Asked(everything, ~everything, tokens)

    monkeypatch.setattr(OwnDirections, "ask", careless)
    asked = example_table()
    findings = found_in(asked if reachable else replace(asked, outputs=None))
    answers = findings.reachable if reachable else findings.any_vector
    assert (answers.verdict != WINS).sum() <= 2
    assert "does not win along its own direction" in fault_of(asked, findings)


def test_the_check_loads_nothing_that_searches():
    code = (
        "import sys, normscope.certificates.check_tokens; print(*(m for m in sys.modules if m.startswith('normscope')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rooms = {name.split(".")[1] for name in done.stdout.split() if "." in name}
    assert rooms == {"certificates", "checks", "errors", "norm", "progress"}


@pytest.mark.parametrize("scale", [1e-150, 1e-30, 1.0, 1e30, 1e150])
def test_units_of_a_table_change_nothing_in_its_check(scale):
    asked = replace(example_table(), outputs=None)
    findings = found_in(asked)
    scaled = Table(asked.rows.astype(float) * scale)
    found = findings.any_vector.certificates()
    frame = replace(found.frame, center=found.frame.center * scale)
    assert first_fault(scaled, replace(found, frame=frame), None) is None


@settings(max_examples=25)
@given(asked=tables(rows=(20, 40)), reachable=st.booleans())
def test_blocks_of_any_size_say_the_same(asked, reachable):
    """Tokens that are left out because they cannot be in the way are not."""
    names = np.arange(len(asked))
    view = View(asked, names, reachable)
    with pytest.MonkeyPatch.context() as patch:
        whole = OwnDirections(view, frame_of(view), 0.75)
        (all_at_once,) = whole.blocks(names)
        expected = dict(zip(all_at_once, whole.ask(all_at_once).proven, strict=True))
        patch.setattr(token_directions, "SCORES", 3 * len(names))
        patch.setattr(table, "BLOCK", 7 * asked.channels)
        small = OwnDirections(view, frame_of(view), 0.75)
        blocks = small.blocks(names)
        assert max(map(len, blocks)) == 3
        assert {token: won for block in blocks for token, won in zip(block, small.ask(block).proven, strict=True)} == (
            expected
        )


def test_a_near_tie_is_left_to_double_precision_and_settled_there():
    rows = np.zeros((40, 3), np.float32)
    rows[:, :2] = [[np.cos(a), np.sin(a)] for a in np.linspace(0, 6, 40)]
    rows[7] = rows[8] + np.float32(2e-7)
    asked = Table(rows)
    view = View(asked, np.arange(40), reachable=False)
    own = OwnDirections(view, frame_of(view), 1.0)
    answer = own.ask(np.array([7, 8]))
    assert answer.near.any()
    assert not answer.proven[answer.near].any()
    findings = found_in(asked)
    assert (findings.any_vector.verdict[[7, 8]] != OPEN).all()
    assert fault_of(asked, findings) is None


def test_twins_lose_both_unless_one_has_the_higher_bias():
    rows = np.array([[1, 0], [0, 1], [1, 0], [-1, -1]], np.float32)
    assert found_in(Table(rows)).any_vector.verdict.tolist() == [TIED, WINS, TIED, WINS]
    biased = Table(rows, np.array([0.0, 0.0, 1.0, 0.0]))
    findings = found_in(biased)
    assert findings.any_vector.verdict.tolist() == [NEVER, WINS, WINS, WINS]
    assert fault_of(biased, findings) is None


def test_padding_rows_do_not_change_the_verdicts_of_others():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 5)).astype(np.float32)
    padded = found_in(Table(np.vstack([rows, np.zeros((9, 5), np.float32)]))).any_vector.verdict
    assert (padded[60:] == TIED).all()
    alone = found_in(Table(np.vstack([rows, np.zeros((1, 5), np.float32)]))).any_vector.verdict
    np.testing.assert_array_equal(padded[:60], alone[:60])


def test_a_single_token_always_wins_and_equal_tokens_never():
    assert found_in(Table(np.ones((1, 3), np.float32))).any_vector.verdict.tolist() == [WINS]
    assert found_in(Table(np.ones((4, 3), np.float32))).any_vector.verdict.tolist() == [TIED] * 4


def test_tokens_that_only_the_norm_cannot_tell_apart_are_tied_for_it():
    """Rows that differ by a constant are the same to outputs that sum to zero."""
    rows = np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2], [3, 1, 1], [-1, -1, 0]], np.float32)
    asked = Table(rows, None, Outputs(np.ones(3), np.zeros(3), projects=True))
    findings = found_in(asked)
    assert findings.any_vector.verdict[[0, 3]].tolist() == [WINS, WINS]
    assert findings.reachable.verdict[[0, 3]].tolist() == [TIED, TIED]
    assert fault_of(asked, findings) is None


def test_a_token_that_wins_far_away_is_out_of_reach_of_a_small_ellipsoid():
    rows = np.array([[0, 0], [4, 0], [0, 4]], np.float32)
    asked = Table(rows, None, Outputs(np.array([0.5, 0.5]), np.array([3.0, 0.0]), projects=False))
    findings = found_in(asked)
    assert findings.any_vector.verdict.tolist() == [WINS] * 3
    assert findings.reachable.verdict.tolist() == [NEVER, WINS, NEVER]
    indices, weights = findings.reachable.weights[0]
    assert rules_out(asked, 0, indices, weights)
    assert not rules_out(asked, 1, np.array([0]), np.ones(1))


def test_a_norm_without_any_gain_writes_one_vector_and_one_token_wins():
    rows = np.array([[1, 0], [0, 1], [2, 2]], np.float32)
    asked = Table(rows, None, Outputs(np.zeros(2), np.array([1.0, 0.0]), projects=True))
    findings = found_in(asked)
    assert findings.reachable.verdict.tolist() == [NEVER, NEVER, WINS]
    assert fault_of(asked, findings) is None


@given(seed=seeds)
def test_checks_do_not_accept_what_is_wrong(seed):
    rng = np.random.default_rng(seed)
    asked = Table(rng.normal(size=(12, 3)).astype(np.float32), None, Outputs(np.ones(3), rng.normal(size=3), False))
    q = rng.normal(size=3)
    best = int(np.argmax(scores_of(asked, q)))
    tokens, vectors = np.arange(12), np.tile(q, (12, 1))
    assert prefers(asked, tokens, vectors).tolist() == [token == best for token in range(12)]
    assert not prefers_reachable(asked, tokens, 2 * vectors / np.linalg.norm(q)).any()
    inside = asked.rows[:4].astype(float).mean(axis=0)
    held = Table(np.vstack([asked.rows.astype(float), inside]))

    def shows(table, token, indices, weights):
        return verdict_of(table, False, token, np.array(indices), np.array(weights))

    assert shows(held, 12, range(4), [0.25] * 4) == NEVER
    assert shows(held, 12, range(4), [0.25, 0.25, 0.25, 0.2501]) == OPEN
    assert shows(held, 12, range(5), [0.5, 0.5, 0.25, 0.25, -0.5]) == OPEN
    assert shows(held, 12, [12], [1.0]) == OPEN
    assert shows(asked, 0, [1], [1.0]) == OPEN


def example_table():
    """With winners by themselves, by a stored vector, losers, twins."""
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(90, 6)) * np.exp(0.8 * rng.normal(size=(90, 1)))
    rows[:4] *= 0.05
    rows[10] = rows[11]
    return Table(rows.astype(np.float32), None, Outputs(np.ones(6), 2.0 * rng.normal(size=6), projects=True))


def test_the_example_has_every_kind_of_certificate():
    findings = found_in(example_table())
    for answers in (findings.any_vector, findings.reachable):
        assert (answers.power > 0).any()
        assert answers.queries
        assert answers.weights
    assert set(findings.reachable.verdict) == {WINS, NEVER, TIED}


def first(values):
    return next(iter(values))


def call_it(answers, of, verdict):
    answers.verdict[np.flatnonzero(of(answers))[0]] = verdict


CHANGES = {
    "a loser is called a winner": lambda a: call_it(a, lambda a: a.verdict == NEVER, WINS),
    "a winner is called a loser": lambda a: call_it(a, lambda a: a.power > 0, NEVER),
    "a loser is called tied": lambda a: call_it(a, lambda a: a.verdict == NEVER, TIED),
    "a tied token is called a loser": lambda a: call_it(a, lambda a: a.verdict == TIED, NEVER),
    "a winner has weights as well": lambda a: a.weights.update({first(a.queries): first(a.weights.values())}),
    "a loser is called open": lambda a: a.verdict.__setitem__(first(a.weights), OPEN),
    "a loser is said to win along itself": lambda a: a.win_along_themselves(np.flatnonzero(a.verdict == NEVER), 0.75),
    "a twin is said to win along itself": lambda a: a.win_along_themselves(np.array([10]), 0.75),
    "a vector is turned round": lambda a: a.queries.update({first(a.queries): -first(a.queries.values())}),
    "a vector has other channels": lambda a: a.queries.update(dict.fromkeys(a.queries, np.zeros(4))),
    "a vector of another token": lambda a: a.win(int(np.flatnonzero(a.verdict == NEVER)[0]), first(a.queries.values())),
    "weights in another order": lambda a: a.weights.update(
        {token: (indices[::-1], weights) for token, (indices, weights) in a.weights.items() if len(weights) > 1}
    ),
    "weights that are negative": lambda a: a.weights.update(
        {token: (indices, -weights) for token, (indices, weights) in a.weights.items()}
    ),
    "weights on the token itself": lambda a: a.weights.update({t: (np.array([t]), np.ones(1)) for t in a.weights}),
    "no frame": lambda a: setattr(a, "frame", None),
    "too few verdicts": lambda a: setattr(a, "verdict", a.verdict[:-1]),
}


@pytest.mark.parametrize("question", ["any_vector", "reachable"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_a_certificate_is_noticed(question, change):
    asked = example_table()
    findings = found_in(asked)
    assert fault_of(asked, findings) is None
    change(getattr(findings, question))
    assert fault_of(asked, findings) is not None


def test_own_directions_in_another_frame_are_no_proof():
    asked = example_table()
    findings = found_in(asked)
    findings.any_vector.frame = replace(findings.any_vector.frame, center=findings.any_vector.frame.center + 100)
    assert "does not win along its own direction" in fault_of(asked, findings)


def test_findings_survive_as_plain_arrays():
    findings = found_in(example_table())
    for before in (findings.any_vector, findings.reachable):
        after = Answers.resumed(before.certificates())
        np.testing.assert_array_equal(before.verdict, after.verdict)
        np.testing.assert_array_equal(before.power, after.power)
        assert sorted(before.weights) == sorted(after.weights)
        assert not after.asked.any()  # how far a search has come is no part of what it has shown
        assert after.passed == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"verdict": np.zeros(3)}, "array verdict must be of int8, got float64"),
        ({"verdict": np.full(90, 7, np.int8)}, "verdicts must be numbers from 0 to 3"),
        ({"verdict": np.zeros(3, np.int8)}, "there must be a power for each token"),
        ({"power": np.full(90, 0.3)}, "0, or one of 0.75, 0.5, 1.0, 0.25"),
        ({"starts": np.array([0, 10**6])}, "there must be weights with their tokens"),
        ({"indices": np.array([10**6])}, "indices must be numbers of tokens, below 90"),
        ({"query_tokens": np.array([-1])}, "query_tokens must be numbers of tokens"),
        ({"queries": np.ones((1, 6))}, "there must be a vector for each of"),
        ({"queries": np.full((1, 6), np.nan)}, "array queries must be finite"),
        ({"queries": np.ones((1, 6), np.float32)}, "array queries must be of float64, got float32"),
        ({"weights": None}, "array weights must be of float64, got NoneType"),
        ({"frame": None}, "center, axes and variances must be there if"),
        ({"power": np.zeros(90)}, "center, axes and variances must be there if"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arrays_that_do_not_belong_together_are_refused(change, message):
    found = found_in(example_table()).reachable.certificates()
    with pytest.raises(InputError, match=re.escape(message)):
        replace(found, **change)


@pytest.mark.parametrize(("name", "array"), [("axes", np.ones((2, 2))), ("variances", -np.ones(5)), ("center", 1)])
def test_a_frame_that_is_none_is_refused(name, array):
    found = found_in(example_table()).reachable.certificates()
    with pytest.raises(InputError, match=r"axes must have an entry|center must be of float64, got int"):
        replace(found, frame=replace(found.frame, **{name: array}))


def test_a_search_that_stops_goes_on_where_it_was():
    """Stopped at every reading of the clock in turn: what was shown holds, and is not lost."""
    asked = example_table()
    whole = found_in(asked)
    findings = Findings.none_yet(len(asked), reachable=True)
    search(asked, findings, Clock(deadline=time.monotonic()))
    assert (findings.any_vector.verdict == OPEN).all()
    settled, stops = 0, set()
    for patience in range(1, 200):
        search(asked, findings, StopsSoon(patience))
        assert fault_of(asked, findings) is None
        assert (findings.reachable.verdict != OPEN).sum() >= settled
        settled = (findings.reachable.verdict != OPEN).sum()
        stops.add(int(settled))
        if settled == len(asked):
            break
    assert len(stops) > 5
    np.testing.assert_array_equal(findings.any_vector.verdict, whole.any_vector.verdict)
    np.testing.assert_array_equal(findings.reachable.verdict, whole.reachable.verdict)


class StopsSoon(Clock):
    """Up at the n-th reading."""

    def __init__(self, patience):
        super().__init__()
        self.left_to_read = patience

    def is_up(self):
        self.left_to_read -= 1
        return self.left_to_read <= 0


class SlowRows:
    """Rows of which every read takes a second of a clock that does not run by itself."""

    def __init__(self, rows, now):
        self.rows, self.now, self.shape, self.dtype = rows, now, rows.shape, rows.dtype

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, which):
        self.now[0] += 1.0
        return self.rows[which]


def test_passes_over_a_table_end_at_the_limit(monkeypatch):
    """A table of 13 blocks, which a pass reads one by one: whenever the limit is, the search ends with that block."""
    asked, now = example_table(), [0.0]
    monkeypatch.setattr(table, "BLOCK", 7 * asked.channels)
    slow = replace(asked, rows=SlowRows(asked.rows, now))
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    over, found = [], []
    for limit in range(1, 150):
        now[0], findings = 0.0, Findings.none_yet(len(asked), reachable=True)
        search(slow, findings, Clock(deadline=float(limit)))
        over.append(now[0] - limit)
        found.append((findings.reachable.verdict != OPEN).sum())
    assert max(over[:100]) <= 1.0
    assert found[0] == 0
    assert found[-1] > 40
    assert fault_of(asked, findings) is None


def content(certificates):
    """Every array, byte for byte."""
    arrays = [getattr(certificates, each.name) for each in fields(certificates) if each.name != "frame"]
    arrays += [getattr(certificates.frame, each.name) for each in fields(certificates.frame)]
    return [array.tobytes() for array in arrays]


def test_blocks_find_the_same_bytes_in_other_processes(monkeypatch):
    """Own directions and both exact methods, in blocks of a few tokens."""
    monkeypatch.setattr("normscope.vocabulary.search.PATIENCE", 0.0)
    monkeypatch.setattr("normscope.vocabulary.search.AT_ONCE", 3)
    monkeypatch.setattr(token_directions, "SCORES", 20 * 90)
    asked, found = example_table(), []
    for workers in (1, 2):
        with open_engine(workers=workers) as engine:
            findings = Findings.none_yet(len(asked), reachable=True)
            search(asked, findings, Clock(), engine=engine)
            found.append([content(each) for each in findings.certificates()])
            assert (engine.sent > 0) == (workers > 1)
            assert engine.sent < 40 * 1024  # blocks of numbers, and not the table
    assert found[0] == found[1]
    assert fault_of(asked, findings) is None


def test_a_block_that_fails_is_named_and_what_was_found_stands(monkeypatch):
    def broken(self, block):
        raise OSError("no more memory")

    monkeypatch.setattr(NearestPoints, "ask", broken)
    asked, findings = example_table(), Findings.none_yet(90, reachable=True)
    told = "5 of 5 blocks of tokens failed, the first is 16 tokens from 0: OSError: no more memory; their tokens stay"
    with pytest.warns(PieceWarning, match=told):
        search(asked, findings, Clock())
    assert (findings.any_vector.verdict == WINS).sum() > 10
    assert fault_of(asked, findings) is None


def test_what_was_found_is_kept_now_and_then(monkeypatch):
    kept = []
    monkeypatch.setattr("normscope.vocabulary.clock.BETWEEN_SAVES", 0.0)
    found_in(example_table(), Clock(keep=lambda: kept.append(1)))
    assert len(kept) > 3


def test_the_digest_tells_tables_apart():
    rows, outputs = np.ones((3, 2), np.float32), Outputs(np.ones(2), np.zeros(2), projects=True)
    tables = [
        Table(rows),
        Table(2 * rows),
        Table(rows.astype(float)),
        Table(rows, np.arange(3.0)),
        Table(rows, None, outputs),
        Table(rows, None, replace(outputs, gain=np.array([1.0, 2.0]))),
        Table(rows, None, replace(outputs, center=np.array([1.0, 2.0]))),
        Table(rows, None, replace(outputs, projects=False)),
    ]
    assert len({asked.sha256 for asked in tables}) == len(tables)
    assert Table(rows.copy()).sha256 == tables[0].sha256
