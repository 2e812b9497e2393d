"""Tokens that can never be the argmax of a model: verdicts, saved files, verification, tables."""

import json
import time
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import torch
import typer
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import normscope as ns
from normscope.certificates.check_tokens import check
from normscope.certificates.token_certificates import OPEN, WINS, WORDS
from normscope.cli.commands import vocab as command
from normscope.data import demo_model
from normscope.engine import open_engine
from normscope.models.load import load_model
from normscope.models.subject import Subject
from normscope.report.terminal import as_text
from normscope.results.token_verdicts import TokenVerdict, TokenVerdicts, VerdictCounts
from normscope.studies.vocab import read_again, vocab

EXAMPLE = {"input": torch.tensor([[0, 1, 2]])}


def verified(path, model=None):
    """Whether a file holds, and why, against a module."""
    result = ns.load(path)
    return check(result, against=read_again(result, None if model is None else Subject(model, inputs=EXAMPLE)))


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


def ids(result, word, vectors="any_vector"):
    return [row.token for row in result.listed if getattr(row, vectors) == word]


@pytest.fixture(scope="module")
def demo():
    return vocab(demo_model())


def test_every_token_of_the_demo_model_can_win(demo):
    assert demo.tokens == 1024
    assert [row.wins for row in demo.counts] == [1024, 1024]
    assert (demo.unembedding, demo.norm, demo.norm_kind) == ("lm_head", "transformer.ln_f", "layernorm")
    assert demo.reachable_set == "the filled ellipsoid"
    assert repr(demo) == (
        "TokenVerdicts(the demo model: 1024 tokens; any: 1024 can win; outputs of transformer.ln_f: 1024 can win)"
    )
    assert demo.holds


def test_a_vector_that_a_token_wins_by_makes_the_model_choose_it(demo):
    """Put in place of the last norm's output, on the model itself."""
    model = load_model(demo_model())
    norm = model.transformer.ln_f
    tokens = demo.reachable.query_tokens.tolist()
    assert tokens
    u = torch.tensor(demo.reachable.queries)
    assert (u.norm(dim=1) <= 1).all()
    hidden = norm.bias + 8 * norm.weight * (u - u.mean(1, keepdim=True))
    assert model.lm_head.double()(hidden.double()).argmax(1).tolist() == tokens


def test_what_greedy_decoding_chooses_is_among_those_that_can_win():
    model, rng = random_net(), np.random.default_rng(1)
    result = vocab(model, inputs=EXAMPLE)
    chosen = set(model[1:](torch.tensor(rng.normal(size=(5000, 6)), dtype=torch.float32)).argmax(1).tolist())
    lost = ids(result, "never", "reachable") + ids(result, "tied", "reachable")
    assert len(chosen) > 20
    assert len(lost) > 20
    assert chosen & set(lost) <= {7}  # torch takes the first of twins, though it does not score higher
    assert set(ids(result, "never")) <= set(lost)
    assert {7, 8} == set(ids(result, "tied"))


def test_counts_add_up_and_fit_the_schema(demo):
    for result in (demo, vocab(random_net(), inputs=EXAMPLE)):
        written = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        jsonschema.validate(written, TokenVerdicts.json_schema(), cls=jsonschema.Draft202012Validator)
        for row, vectors in zip(result.counts, ("any_vector", "reachable"), strict=True):
            assert row.wins + row.never + row.tied + row.open == result.tokens
            assert len(ids(result, "never", vectors)) == row.never


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (nn.Identity(), "no norm runs before it"),
        (nn.GELU(), "no norm runs before it"),
    ],
)
def test_without_a_bounded_norm_only_the_plain_question_is_asked(norm, reason):
    result = vocab(net(np.random.default_rng(0).normal(size=(9, 4)), norm), inputs=EXAMPLE)
    assert result.reachable is None
    assert result.reachable_set is None
    assert result.not_asked == reason
    jsonschema.validate(result.to_dict(), TokenVerdicts.json_schema(), cls=jsonschema.Draft202012Validator)


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
    assert vocab(net(rows, Centre()), inputs=EXAMPLE).not_asked == "1 does not scale, so its outputs are not bounded"
    assert (
        vocab(net(rows, Grouped()), inputs=EXAMPLE).not_asked
        == "1 has 2 groups, so its outputs do not fill an ellipsoid"
    )


def test_an_output_bias_counts():
    """A token with a row that another has too, but a higher bias, wins; without a bias both lose."""
    rows = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, -1.0]]
    result = vocab(net(rows), inputs=EXAMPLE)
    assert (result.counts[0].wins, ids(result, "tied")) == (2, [0, 2])
    model = net(rows, bias=True)
    model[2].bias.data = torch.tensor([0.0, 0.0, 1.0, 0.0])
    result = vocab(model, inputs=EXAMPLE)
    assert result.output_bias
    assert (result.counts[0].wins, ids(result, "never")) == (3, [0])


def test_eps_of_zero_says_that_outputs_lie_on_the_surface():
    result = vocab(net(np.eye(4), nn.LayerNorm(4, eps=0.0)), inputs=EXAMPLE)
    assert "eps is 0, so outputs lie on its surface" in result.reachable_set


def test_a_limit_of_time_leaves_tokens_open_and_the_file_resumes_the_search(tmp_path):
    model, path = random_net(), tmp_path / "tokens.safetensors"
    first = vocab(model, inputs=EXAMPLE, seconds=0, resume=path)
    assert first.counts[0].open == 120
    assert first.holds
    assert verified(path, model)[0]
    assert ns.load(path) == first
    whole = vocab(model, inputs=EXAMPLE)
    for seconds in (None, 0):
        again = vocab(model, inputs=EXAMPLE, seconds=seconds, resume=path)
        assert (again.counts, again.listed) == (whole.counts, whole.listed)
    assert ns.load(path) == again


@pytest.mark.parametrize("phase", ["own directions, any", "nearest points", "vectors in the ellipsoid"])
def test_a_file_is_saved_when_the_search_is_interrupted(tmp_path, phase, monkeypatch):
    monkeypatch.setattr("normscope.vocabulary.search.AT_ONCE", 1)

    def interrupting(things, what):
        for number, thing in enumerate(things):
            if phase in what and number == 3 * (phase != "own directions, any"):
                raise KeyboardInterrupt
            yield thing

    path, model = tmp_path / "tokens.safetensors", random_net()
    with pytest.raises(KeyboardInterrupt):
        vocab(model, inputs=EXAMPLE, resume=path, progress=interrupting)
    assert verified(path, model)[0]
    assert (ns.load(path).reachable.verdict == OPEN).any()
    assert vocab(model, inputs=EXAMPLE, resume=path).counts == vocab(model, inputs=EXAMPLE).counts


def test_files_are_the_same_bytes_with_more_workers_also_when_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.vocabulary.search.PATIENCE", 0.0)
    monkeypatch.setattr("normscope.vocabulary.search.AT_ONCE", 4)
    model = random_net()
    for workers in (1, 2):
        with open_engine(workers=workers) as engine:
            vocab(model, inputs=EXAMPLE, resume=tmp_path / f"{workers}.safetensors", engine=engine)
    (tmp_path / "again.safetensors").write_bytes((tmp_path / "1.safetensors").read_bytes())
    with open_engine(workers=2) as engine:
        vocab(model, inputs=EXAMPLE, seconds=60, resume=tmp_path / "again.safetensors", engine=engine)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_a_limit_ends_work_in_other_processes_too(tmp_path, monkeypatch):
    monkeypatch.setattr("normscope.vocabulary.search.PATIENCE", 0.0)
    path, model = tmp_path / "tokens.safetensors", random_net()
    with open_engine(workers=2) as engine:
        begun = time.monotonic()
        first = vocab(model, inputs=EXAMPLE, seconds=0.5, resume=path, engine=engine)
        assert time.monotonic() - begun < 5
        assert first.counts[1].open
        assert verified(path, model)[0]
        assert vocab(model, inputs=EXAMPLE, resume=path, engine=engine).counts == vocab(model, inputs=EXAMPLE).counts


def test_a_file_about_another_table_or_something_else_is_refused(tmp_path):
    path = tmp_path / "tokens.safetensors"
    vocab(random_net(0), inputs=EXAMPLE, resume=path)
    with pytest.raises(ValueError, match="about another table"):
        vocab(random_net(1), inputs=EXAMPLE, resume=path)
    assert verified(path, random_net(1)) == (False, "the certificates are for another table: its SHA-256 differs")
    with pytest.raises(ValueError, match="a module in memory: pass the model"):
        ns.verify(path)
    (tmp_path / "other.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"other\.safetensors must be a result saved"):
        vocab(random_net(), inputs=EXAMPLE, resume=tmp_path / "other.safetensors")
    ns.ranges(demo_model()).save(tmp_path / "ranges.safetensors")
    with pytest.raises(ValueError, match=r"other results than verdicts on tokens \(layer_ranges\)"):
        vocab(random_net(), inputs=EXAMPLE, resume=tmp_path / "ranges.safetensors")
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        vocab(random_net(), inputs=EXAMPLE, resume=tmp_path / "tokens.npz")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        vocab(random_net(), inputs=EXAMPLE, resume=tmp_path / "nowhere" / "tokens.safetensors")
    with pytest.raises(ValueError, match="seconds must be a number, 0 or more"):
        vocab(random_net(), inputs=EXAMPLE, seconds=-1)


def test_a_saved_result_verifies_from_the_model_alone_and_not_once_it_is_changed(tmp_path, demo):
    demo.save(tmp_path / "demo.safetensors")
    found = ns.verify(tmp_path / "demo.safetensors")
    assert found.holds
    assert found.reason == (
        "any hidden vector: 1,024 tokens can win, 0 never; reachable vectors: 1,024 tokens can win, 0 never"
    )
    turned = replace(demo, reachable=replace(demo.reachable, queries=-demo.reachable.queries))
    turned.save(tmp_path / "turned.safetensors")
    found = ns.verify(tmp_path / "turned.safetensors")
    assert not found.holds
    assert "does not prefer it to all others" in found.reason


def test_verification_says_what_was_assumed_of_tensors_without_an_architecture(tmp_path):
    """Nothing shows there which norm the matrix reads, nor what kind it is."""
    save_file({"lm_head.weight": torch.randn(9, 3), "model.norm.weight": torch.rand(3)}, tmp_path / "model.safetensors")
    result = vocab(tmp_path / "model.safetensors", resume=tmp_path / "tokens.safetensors")
    found = ns.verify(tmp_path / "tokens.safetensors")
    assert found.holds
    assert found.reason.endswith(f"; assumed: {', '.join(result.assumed)}")
    assert "which norm it reads, by its name" in found.reason


def test_a_saved_result_is_held_against_a_model_that_is_given(tmp_path, demo):
    model = load_model(demo_model())
    demo.save(tmp_path / "demo.safetensors")
    assert ns.verify(tmp_path / "demo.safetensors", against=model).holds
    model.lm_head.weight.data[3] += 1
    assert not ns.verify(tmp_path / "demo.safetensors", against=model).holds


def test_a_folder_is_read_again_in_the_dtype_it_was_loaded_in(tmp_path, demo):
    found = vocab(demo_model(), text="A few words.", dtype="bfloat16")
    assert found.sha256 != demo.sha256
    found.save(tmp_path / "half.safetensors")
    assert ns.verify(tmp_path / "half.safetensors").holds
    replace(found, dtype=None).save(tmp_path / "single.safetensors")
    assert not ns.verify(tmp_path / "single.safetensors").holds


def test_verification_counts_tied_tokens_apart():
    model = random_net()
    result = vocab(model, inputs=EXAMPLE)
    holds, reason = check(result, against=read_again(result, Subject(model, inputs=EXAMPLE)))
    assert holds
    for row in result.counts:
        assert row.tied >= 2
        assert f"{row.never} never, {row.tied} tied (equal to another, or decided by rounding)" in reason


def otherwise(value):
    """Something else of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, tuple):
        return value[:-1] if value else ("something",)
    return value + (1 if isinstance(value, int) else "x")


def test_every_word_of_a_result_is_checked():
    """Facts about the model, counts, and the list of tokens with their verdicts, altered one at a time."""
    model = random_net()
    result = vocab(model, inputs=EXAMPLE)
    read = read_again(result, Subject(model, inputs=EXAMPLE))
    assert check(result, against=read)[0]
    members = [name for name in result.to_dict() if name not in ("type", "schema_version", "counts", "listed", "holds")]
    assert len(members) == 15
    forged = [replace(result, **{name: otherwise(getattr(result, name))}) for name in (*members, "counts", "listed")]
    for name in ("vectors", "wins", "never", "tied", "open"):
        row = replace(result.counts[1], **{name: otherwise(getattr(result.counts[1], name))})
        forged.append(replace(result, counts=(result.counts[0], row)))
    changes = (
        {"token": 2 * result.listed[1].token},
        {"text": "the"},
        *({"any_vector": word} for word in WORDS.values() if word != result.listed[0].any_vector),
        *({"reachable": word} for word in (*WORDS.values(), None) if word != result.listed[0].reachable),
    )
    forged += [replace(result, listed=(replace(result.listed[0], **each), *result.listed[1:])) for each in changes]
    forged.append(replace(result, listed=result.listed[::-1]))
    forged.append(replace(result, counts=result.counts[:1]))
    for changed in forged:
        holds, reason = check(changed, against=read)
        assert not holds
        assert "\n" not in reason
        assert len(reason) < 500


def test_a_result_without_all_certificates_does_not_hold():
    result = vocab(random_net(), inputs=EXAMPLE)
    assert result.holds
    verdict = np.full_like(result.any_vector.verdict, WINS)
    assert not replace(result, any_vector=replace(result.any_vector, verdict=verdict)).holds
    with pytest.raises(ValueError, match="must have certificates"):
        replace(result, any_vector=None)


def result_with(listed, **changes):
    """A result to look at: its certificates are of something else."""
    found = vocab(net(np.eye(4)), inputs=EXAMPLE)
    return replace(found, counts=(VerdictCounts("any", 1, len(listed), 0, 1),), listed=tuple(listed), **changes)


def test_tables_fit_and_no_token_moves_the_cursor():
    rows = [TokenVerdict(3, "\x1b[2J\u202e[red]\n", "never", "never"), TokenVerdict(4, None, "can win", "open")]
    text = as_text(result_with(rows, assumed=("a guess",), through=("map",)))
    assert r"'\x1b[2J\u202e[red]\n'" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.splitlines())) <= 100
    assert "a guess" in text
    assert "through map" in text


def test_a_notebook_shows_the_counts(demo):
    assert "1,024" in demo._repr_html_()


def test_many_tokens_are_cut_short_in_a_table():
    rows = [TokenVerdict(number, "x" * 50, "never", None) for number in range(500)]
    text = as_text(result_with(rows, norm=None, not_asked="reason"))
    assert "and 460 more" in text
    assert "No verdicts for the outputs of a norm: reason." in text


def test_the_command_prints_json_that_fits_the_schema(tmp_path):
    app = typer.Typer()
    app.command()(command)
    path = tmp_path / "tokens.safetensors"
    done = CliRunner().invoke(app, ["--json", "--seconds", "60", "-o", str(path)])
    assert done.exit_code == 0
    jsonschema.validate(json.loads(done.stdout), TokenVerdicts.json_schema(), cls=jsonschema.Draft202012Validator)
    assert ns.load(path).to_dict() == json.loads(done.stdout)
    assert "tokens.safetensors" in done.stderr
