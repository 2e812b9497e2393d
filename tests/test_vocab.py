"""Tokens that can never be the argmax of a model: verdicts on models, state files, verification, tables."""

import json
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
import torch
import typer
from rich.console import Console
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

from normscope.cli.vocab import vocab as command
from normscope.data import demo_model
from normscope.models.load import load_model
from normscope.report.tables import tables
from normscope.report.tables.vocab import vocab_html
from normscope.studies.vocab import verify_vocab, vocab
from normscope.studies.vocab_results import Answer, Token, Vocab
from normscope.vocabulary.findings import OPEN, load_findings

EXAMPLE = {"input": torch.tensor([[0, 1, 2]])}


def schema(name):
    return json.loads(files("normscope").joinpath(f"schemas/{name}.json").read_text(encoding="utf-8"))


def net(rows, norm=None, bias=False):
    """Tokens to scores by a given matrix, after a norm."""
    matrix = torch.tensor(rows, dtype=torch.float32)
    count, size = matrix.shape
    model = nn.Sequential(nn.Embedding(count, size), norm or nn.LayerNorm(size), nn.Linear(size, count, bias=bias))
    model[2].weight.data = matrix
    return model


def random_net(seed=0, tokens=120, size=6, shift=1.5):
    """With tokens of every kind: near the mean, twins, out of reach of the norm."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(tokens, size)) * np.exp(0.5 * rng.normal(size=(tokens, 1)))
    rows[:3] *= 0.02
    rows[7] = rows[8]
    model = net(rows)
    model[1].bias.data = torch.tensor(shift * rng.normal(size=size), dtype=torch.float32)
    return model


def ids(tokens):
    return [token.id for token in tokens]


@pytest.fixture(scope="module")
def bundled():
    return vocab()


def test_every_token_of_the_bundled_model_can_win(bundled):
    assert bundled.tokens == 1024
    assert bundled.plain.wins == bundled.reachable.wins == 1024
    assert (bundled.unembedding, bundled.norm, bundled.norm_kind) == ("lm_head", "transformer.ln_f", "layernorm")
    assert bundled.reachable_set == "the filled ellipsoid"
    assert repr(bundled) == "Vocab(the bundled model, 1024 tokens; plain: 1024 can win; reachable: 1024 can win)"


def test_a_vector_that_a_token_wins_by_makes_the_model_choose_it(tmp_path):
    """Put in place of the last norm's output, on the model itself."""
    vocab(state=tmp_path / "state.npz")
    stored = load_findings(tmp_path / "state.npz").findings.reachable
    model = load_model(demo_model())
    norm = model.transformer.ln_f
    tokens = sorted(stored.queries)
    assert tokens
    u = torch.tensor(np.array([stored.queries[token] for token in tokens]))
    assert (u.norm(dim=1) <= 1).all()
    hidden = norm.bias + 8 * norm.weight * (u - u.mean(1, keepdim=True))
    assert model.lm_head.double()(hidden.double()).argmax(1).tolist() == tokens


def test_what_greedy_decoding_chooses_is_among_those_that_can_win():
    model, rng = random_net(), np.random.default_rng(1)
    result = vocab(model, example=EXAMPLE)
    chosen = set(model[1:](torch.tensor(rng.normal(size=(5000, 6)), dtype=torch.float32)).argmax(1).tolist())
    lost = ids(result.reachable.never_tokens + result.reachable.tied_tokens)
    assert len(chosen) > 20
    assert len(lost) > 20
    assert chosen & set(lost) <= {7}  # torch takes the first of twins, though it does not score higher
    assert set(ids(result.plain.never_tokens)) <= set(lost)
    assert {7, 8} == set(ids(result.plain.tied_tokens))


def test_counts_add_up_and_fit_the_schema(bundled):
    for result in (bundled, vocab(random_net(), example=EXAMPLE)):
        written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        jsonschema.validate(written, schema("vocab"), cls=jsonschema.Draft202012Validator)
        for answer in (result.plain, result.reachable):
            assert answer.wins + answer.never + answer.tied + answer.open == result.tokens
            assert len(answer.never_tokens) == answer.never


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.Identity(), "no norm runs before it"),
        (nn.GELU(), "no norm runs before it"),
    ],
)
def test_without_a_bounded_norm_only_the_plain_question_is_asked(norm, reason):
    result = vocab(net(np.random.default_rng(0).normal(size=(9, 4)), norm), example=EXAMPLE)
    assert result.reachable is None
    assert result.reachable_set is None
    assert result.not_asked == reason
    jsonschema.validate(result.to_dict(), schema("vocab"), cls=jsonschema.Draft202012Validator)


def test_groups_and_norms_that_do_not_scale_are_not_asked_for_reachable_vectors():
    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x - x.mean(-1, keepdim=True)) * self.weight

    class Grouped(Centre):
        eps = 1e-5

        def forward(self, x):
            return nn.functional.layer_norm(x.unflatten(-1, (2, 2)), (2,), eps=self.eps).flatten(-2) * self.weight

    rows = np.random.default_rng(0).normal(size=(9, 4))
    assert vocab(net(rows, Centre()), example=EXAMPLE).not_asked == "1 does not scale: its outputs are not bounded"
    assert vocab(net(rows, Grouped()), example=EXAMPLE).not_asked == "1 has 2 groups: its outputs fill no ellipsoid"


def test_an_output_bias_counts():
    """A token with a row that another has too, but a higher bias, wins; without a bias both lose."""
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]]
    plain = vocab(net(rows), example=EXAMPLE).plain
    assert (plain.wins, ids(plain.tied_tokens)) == (2, [0, 2])
    model = net(rows, bias=True)
    model[2].bias.data = torch.tensor([0.0, 0.0, 1.0, 0.0])
    result = vocab(model, example=EXAMPLE)
    assert result.output_bias
    assert (result.plain.wins, ids(result.plain.never_tokens)) == (3, [0])


def test_eps_of_zero_says_that_outputs_lie_on_the_surface():
    result = vocab(net(np.eye(4), nn.LayerNorm(4, eps=0.0)), example=EXAMPLE)
    assert "eps is 0, so outputs lie on its surface" in result.reachable_set


def test_a_budget_leaves_tokens_open_and_a_state_goes_on_from_there(tmp_path):
    model, state = random_net(), tmp_path / "state.npz"
    first = vocab(model, example=EXAMPLE, budget=0, state=state)
    assert first.plain.open > 100
    assert first.plain.tied == 2
    assert verify_vocab(state, model, example=EXAMPLE)[0]
    whole = vocab(model, example=EXAMPLE)
    second = vocab(model, example=EXAMPLE, state=state)
    assert (second.plain, second.reachable) == (whole.plain, whole.reachable)
    third = vocab(model, example=EXAMPLE, budget=0, state=state)
    assert (third.plain, third.reachable) == (whole.plain, whole.reachable)


@pytest.mark.parametrize("phase", ["own directions, plain", "nearest points", "vectors in the ellipsoid"])
def test_a_state_is_kept_when_the_search_is_interrupted(tmp_path, phase):
    def interrupting(things, what):
        for number, thing in enumerate(things):
            if phase in what and number == 3 * (phase != "own directions, plain"):
                raise KeyboardInterrupt
            yield thing

    state, model = tmp_path / "state.npz", random_net()
    with pytest.raises(KeyboardInterrupt):
        vocab(model, example=EXAMPLE, state=state, progress=interrupting)
    assert verify_vocab(state, model, example=EXAMPLE)[0]
    assert (load_findings(state).findings.reachable.verdict == OPEN).any()
    assert vocab(model, example=EXAMPLE, state=state).reachable == vocab(model, example=EXAMPLE).reachable


def test_a_state_of_another_table_or_of_something_else_is_refused(tmp_path):
    state = tmp_path / "state.npz"
    vocab(random_net(0), example=EXAMPLE, state=state)
    with pytest.raises(ValueError, match="about another table"):
        vocab(random_net(1), example=EXAMPLE, state=state)
    assert verify_vocab(state, random_net(1), example=EXAMPLE) == (
        False,
        "the certificates are for another table: its SHA-256 differs",
    )
    with pytest.raises(ValueError, match="about a live module: give the model"):
        verify_vocab(state)
    np.savez(tmp_path / "keys.npz", keys=np.ones(3))
    with pytest.raises(ValueError, match=r"keys\.npz exists, and is no state"):
        vocab(random_net(), example=EXAMPLE, state=tmp_path / "keys.npz")
    with pytest.raises(ValueError, match=r"must end in \.npz"):
        vocab(random_net(), example=EXAMPLE, state=tmp_path / "state.json")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        vocab(random_net(), example=EXAMPLE, state=tmp_path / "nowhere" / "state.npz")
    with pytest.raises(ValueError, match="budget must be a number of seconds"):
        vocab(random_net(), example=EXAMPLE, budget=-1)


def test_a_saved_state_verifies_from_the_model_alone_and_not_once_it_is_changed(tmp_path):
    state = tmp_path / "state.npz"
    vocab(state=state)
    holds, reason = verify_vocab(state)
    assert holds
    assert reason == "plain: 1,024 tokens shown to win, 0 never to; reachable: 1,024 tokens shown to win, 0 never to"
    with np.load(state) as file:
        arrays = dict(file)
    arrays["reachable_queries"] = -arrays["reachable_queries"]
    np.savez(state, **arrays)
    holds, reason = verify_vocab(state)
    assert not holds
    assert "does not prefer it to all others" in reason
    state.write_bytes(b"nothing")
    assert not verify_vocab(state)[0]


def test_verification_says_what_was_assumed_of_tensors_without_an_architecture(tmp_path):
    """Nothing shows there which norm the matrix reads, nor what kind it is."""
    tensors = {"lm_head.weight": torch.randn(9, 3), "model.norm.weight": torch.rand(3)}
    save_file(tensors, tmp_path / "model.safetensors")
    result = vocab(tmp_path / "model.safetensors", state=tmp_path / "state.npz")
    holds, reason = verify_vocab(tmp_path / "state.npz")
    assert holds
    assert reason.endswith(f"; assumed: {', '.join(result.assumed)}")
    assert "which norm it reads, by its name" in reason


def test_verification_counts_tied_tokens_apart_and_notices_another_model(tmp_path):
    state, model = tmp_path / "state.npz", random_net()
    result = vocab(model, example=EXAMPLE, state=state)
    holds, reason = verify_vocab(state, model, example=EXAMPLE)
    assert holds
    for answer in (result.plain, result.reachable):
        assert answer.tied >= 2
        assert f"{answer.never} never to, {answer.tied} tied (equal to another, or decided by rounding)" in reason
    with np.load(state) as file:
        arrays = dict(file)
    for name, altered in (("sha256", "0" * 64), ("source", "{}"), ("source", '{"path": "x", "bundled": true}')):
        np.savez(state, **(arrays | {name: np.array(altered)}))
        holds, reason = verify_vocab(state, *([model] if name == "sha256" else []), example=EXAMPLE)
        assert not holds
        assert reason.endswith("its SHA-256 differs") or "must say which model it is about" in reason


def result_with(text):
    answer = Answer(1, 1, 0, 1, (Token(3, text),), (), (Token(4, None),))
    return Vocab(
        "m",
        "head",
        "norm",
        "layernorm",
        ("map",),
        None,
        True,
        3,
        4,
        ("a guess",),
        answer,
        answer,
        "a set",
        "x",
        {"own": 0.1},
    )


def shown(result):
    console = Console(width=100, record=True, color_system=None)
    for part in tables(result):
        console.print(part)
    return console.export_text()


def test_tables_fit_and_no_token_moves_the_cursor():
    text = shown(result_with("\x1b[2J\u202e[red]\n"))
    assert r"'\x1b[2J\u202e[red]\n'" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "a guess" in text
    assert "through map" in text


def test_a_notebook_shows_the_counts_with_names_escaped(bundled):
    assert bundled._repr_html_() == vocab_html(bundled)
    assert "1024" in vocab_html(bundled)


def test_many_tokens_are_cut_short_in_a_table():
    many = tuple(Token(number, "x" * 50) for number in range(500))
    answer = Answer(0, 500, 0, 0, many)
    text = shown(Vocab("m", "h", None, None, (), True, False, 500, 4, (), answer, None, None, "reason", {}))
    assert "and 460 more" in text
    assert "Reachable vectors are not asked for: reason." in text


def test_the_command_prints_json_that_fits_the_schema(tmp_path):
    app = typer.Typer()
    app.command()(command)
    done = CliRunner().invoke(app, ["--json", "--budget", "60", "-o", str(tmp_path / "state.npz")])
    assert done.exit_code == 0
    jsonschema.validate(json.loads(done.stdout), schema("vocab"), cls=jsonschema.Draft202012Validator)
    assert (tmp_path / "state.npz").exists()
    assert "state.npz" in done.stderr
