"""Which keys can win: no verdict differs from linear programs, nor from what was planted."""

import dataclasses
import json
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from normscope import selectable
from normscope.cli import app
from normscope_lab.bench import agreement_bench, requirements
from normscope_lab.bench.key_sets import KINDS
from normscope_lab.bench.linear_programs import PREFERS, preference
from normscope_lab.results.keys_agreement import Disagreement, KeysAgreement
from strategies import seeds


@st.composite
def planted(draw, exponents=(-60, -20, 0, 40)):
    """Keys of which some are corners of the hull, and the others on edges, on faces or inside: keys, bias, corners.

    Distinct vertices of a cube are corners of their hull, whichever are taken. Means of two of them, of all, and of all
    and one are not. An invertible map and an affine bias change neither, and a lower bias helps no key that loses. All
    are whole numbers times a power of two, so nothing is rounded.
    """
    rng = np.random.default_rng(draw(seeds))
    channels = draw(st.integers(2, 12))
    signs = rng.choice([-1, 1], (draw(st.integers(1, 40)), channels))
    signs = np.unique(np.vstack([signs, -signs[0]]), axis=0)
    count, everything = len(signs), signs.sum(axis=0)
    twos = [2 * count * signs[rng.choice(count, 2, replace=False)].sum(axis=0) for _ in range(draw(st.integers(0, 5)))]
    inside = [2 * everything + 2 * count * signs[rng.integers(count)] for _ in range(draw(st.integers(0, 5)))]
    keys = np.array([*(4 * count * signs), *twos, *inside, 4 * everything])
    corners = np.arange(len(keys)) < count
    order = rng.permutation(len(keys))
    triangle = np.triu(rng.integers(-3, 4, (channels, channels)), 1) + np.diag(rng.choice([-2, -1, 1, 3], channels))
    bias = keys @ rng.integers(-2, 3, channels) - np.where(corners, 0, rng.integers(0, 9, len(keys)))
    scale = 2.0 ** draw(st.sampled_from(exponents))
    moved = keys @ triangle + rng.integers(-20, 21, channels)
    return scale * moved[order], draw(st.sampled_from([None, bias[order].astype(float)])), corners[order]


@given(planted())
@settings(max_examples=60)
def test_planted_corners_win_and_planted_edges_faces_and_insides_lose(case):
    keys, bias, corners = case
    result = selectable(keys, bias=bias)
    assert (result.mask == corners).all()
    assert not result.open.any()
    assert result.check()


@given(planted())
@settings(max_examples=20)
def test_planted_keys_in_a_batch_are_judged_as_alone(case):
    keys, bias, corners = case
    backwards = None if bias is None else np.stack([bias, bias[::-1]])
    result = selectable(np.stack([keys, keys[::-1]]), bias=backwards)
    assert (result.mask == np.stack([corners, corners[::-1]])).all()
    assert not result.open.any()
    assert result.check()


@given(seed=seeds, channels=st.integers(2, 24), kind=st.sampled_from(["Gaussian", "anisotropic", "heavy-tailed"]))
@settings(max_examples=25)
def test_keys_planted_inside_others_lose_and_keys_planted_beyond_them_win(seed, channels, kind):
    rng = np.random.default_rng(seed)
    keys = KINDS[kind](3 * channels + 5, channels, rng).astype(float)
    inside = rng.dirichlet(np.ones(len(keys)), 4) @ keys
    direction = rng.normal(size=channels)
    beyond = keys[np.argmax(keys @ direction)] + 1e-3 * np.ptp(keys @ direction) * direction / (direction @ direction)
    result = selectable(np.vstack([inside, beyond, keys]))
    assert result.mask[:5].tolist() == [False, False, False, False, True]
    assert result.check()


@given(planted(exponents=[0]))
@settings(max_examples=5)
def test_linear_programs_judge_planted_keys_rightly(case):
    keys, bias, corners = case
    preferences = np.array([preference(keys, key, bias) for key in range(len(keys))])
    assert (preferences[corners] > 1e3 * PREFERS).all()
    assert (preferences[~corners] <= PREFERS).all()


def test_on_two_thousand_keys_of_every_kind_no_verdict_differs_from_a_linear_program():
    agreement = agreement_bench.run(2000)
    assert agreement.holds
    assert agreement.disagreements == ()
    assert agreement.keys >= agreement.compared >= 2000
    assert {(row.kind, row.bias) for row in agreement.kinds} == {
        (kind, bias) for kind in KINDS for bias in (True, False)
    }
    assert sum(row.unanswered for row in agreement.kinds) == 0
    winners = sum(row.selectable for row in agreement.kinds)
    assert 0.2 * agreement.keys < winners < 0.8 * agreement.keys


def test_a_wrong_verdict_is_found_named_and_ends_with_exit_code_1(monkeypatch):
    def wrong_of_key_0(keys, bias):
        result = selectable(keys, bias=bias)
        mask = result.mask.copy()
        mask[..., 0] ^= True
        return dataclasses.replace(result, mask=mask)

    monkeypatch.setattr(agreement_bench, "selectable", wrong_of_key_0)
    done = CliRunner().invoke(app, ["bench", "keys-agreement", "--keys", "30", "--json"])
    assert done.exit_code == 1
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, KeysAgreement.json_schema(), cls=jsonschema.Draft202012Validator)
    assert not printed["holds"]
    assert {one["place"][-1] for one in printed["disagreements"]} == {0}
    first = printed["disagreements"][0]
    _, keys, bias = agreement_bench.key_set(first["number"])
    *batch, key = first["place"]
    right = selectable(keys[*batch], bias=None if bias is None else bias[*batch]).mask[key]
    assert first["selectable"] != right
    assert (first["preference"] > PREFERS) == right


def test_agreement_ends_with_exit_code_0_and_fits_its_schema():
    done = CliRunner().invoke(app, ["bench", "keys-agreement", "--keys", "30", "--json"])
    assert done.exit_code == 0
    printed = json.loads(done.stdout)
    jsonschema.validate(printed, KeysAgreement.json_schema(), cls=jsonschema.Draft202012Validator)
    assert printed["keys"] == sum(row["keys"] for row in printed["kinds"]) >= printed["compared"] >= 30


def test_the_table_of_the_agreement_names_every_disagreement():
    wrong = Disagreement(number=3, place=(1, 4), selectable=True, preference=0.0)
    agreement = dataclasses.replace(agreement_bench.run(30), disagreements=(wrong,))
    assert re.search(r"3 +1, 4 +True +0\n", re.sub(r" +\n", "\n", str(agreement)))
    assert "1 judged differently" in str(agreement)


def test_too_few_keys_compared_is_no_agreement(monkeypatch):
    monkeypatch.setattr(agreement_bench, "preference", lambda keys, key, bias: None)
    agreement = agreement_bench.run(30)
    assert agreement.compared == 0
    assert sum(row.unanswered + row.near_ties for row in agreement.kinds) == agreement.keys >= 60
    assert not agreement.holds


def test_near_ties_are_counted_and_not_compared():
    judged = [agreement_bench._judge(number) for number in range(40) if agreement_bench.key_set(number)[0] == "lattice"]
    assert any(one.near_ties.any() for one in judged)
    for one in judged:
        assert not (one.compared & one.near_ties).any()


def test_without_scipy_one_line_names_what_to_install(monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"this benchmark needs scipy: pip install normscope\[bench\]"):
        agreement_bench.run(1)
