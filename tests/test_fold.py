"""Folding of whole models, and of what makes folding go wrong elsewhere: biases, 1 + w, ties, post-norms."""

import copy
import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from folding_models import ARCHITECTURES, OTHERS, REQUIRED, folding_model
from normscope import fold
from normscope.errors import NotCertifiedError
from normscope.models.find import find
from normscope.results.folding import AFTER_LOOKUP, FOLDED, KEPT, NOTHING, Folding
from normscope.results.result import load
from normscope.rewrite import folded_weights as weights

NORMS = {  # of one layer: how many norms; of them centred, centred but for a tied table, with gain 1
    "gpt2": (3, 0, 3, 2), "opt": (3, 0, 3, 2), "gpt_neox": (3, 3, 0, 3), "gptj": (2, 2, 0, 2), "falcon": (2, 0, 2, 1),
    "stablelm": (3, 3, 0, 3), "bert": (3, 1, 0, 0), "vit": (3, 3, 0, 3), "whisper": (7, 0, 4, 5), "llama": (3, 0, 0, 3),
    "gemma2": (5, 0, 0, 2), "qwen3": (5, 0, 0, 3), "clip": (7, 4, 0, 5), "mixtral": (3, 0, 0, 3),
    "nemotron": (3, 3, 0, 3),
}  # fmt: skip


def outputs(model, *inputs):
    with torch.no_grad():
        return model(*inputs)


def test_no_required_architecture_is_left_out():
    assert set(REQUIRED) <= set(NORMS)


def counts(folding):
    centring = [verdict.centring.what for verdict in folding.norms]
    affine = [verdict.affine.what for verdict in folding.norms]
    return len(centring), centring.count(FOLDED), centring.count(AFTER_LOOKUP), affine.count(FOLDED)


@pytest.mark.parametrize("architecture", NORMS)
def test_every_architecture_goes_to_disk_and_back_as_the_same_function(architecture, tmp_path):
    model = folding_model(architecture, layers=1)
    before = copy.deepcopy(model.state_dict())
    folding = fold(model)
    assert counts(folding) == NORMS[architecture]
    assert folding.certificate.rewrite_difference < 1e-13
    assert folding.certificate.folded_error < 10 * folding.certificate.original_error
    assert folding.certificate.argmax_agreement == 1.0
    assert all(torch.equal(model.state_dict()[name], values) for name, values in before.items())
    folding.save(tmp_path / "folded")
    loaded = type(model).from_pretrained(tmp_path / "folded").eval()
    args, kwargs = folding.call.args, folding.call.kwargs
    with torch.no_grad():
        for name, value in loaded(*args, **kwargs).items():
            if isinstance(value, torch.Tensor):
                original = model(*args, **kwargs)[name]
                torch.testing.assert_close(value, original, rtol=1e-4, atol=1e-4 * float(original.abs().max()))
    described = json.loads((tmp_path / "folded" / "folding.json").read_text(encoding="utf-8"))
    jsonschema.validate(described, Folding.json_schema(), cls=jsonschema.Draft202012Validator)
    measured = ("certificate", "measurements")  # of the file, read back
    assert {**described, **dict.fromkeys(measured)} == {**folding.to_dict(), **dict.fromkeys(measured)}
    assert described["certificate"]["read_back"]
    again = load(tmp_path / "folded")
    assert (again.to_dict(), again.module, again.holds) == (described, None, True)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "whisper"])
def test_folded_gains_are_one_wherever_the_model_looks_for_them(architecture):
    folding = fold(folding_model(architecture, layers=1))
    norms = find(folding.module)
    for verdict in folding.norms:
        ones = bool((norms[verdict.norm].norm.gain == 1).all())
        assert ones == (verdict.affine.what == FOLDED)


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2"])
def test_untied_heads_take_the_last_gain_and_say_what_they_cost(architecture):
    model = folding_model(architecture, layers=1)
    folding = fold(model, untie=True)
    (tie,) = folding.untied
    assert tie.bytes == 50 * 16 * 4
    assert folding.module.get_parameter(tie.head) is not folding.module.get_parameter(tie.table)
    assert model.get_parameter(tie.head) is model.get_parameter(tie.table)
    assert model.config.tie_word_embeddings
    assert folding.holds
    last = folding.norms[-1] if architecture == "gpt2" else folding.norms[4]
    assert (last.affine.what, folding.tied) == (FOLDED, ())


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2"])
def test_rms_modules_are_the_same_function(architecture):
    model = folding_model(architecture, layers=1)
    folding = fold(model, rms=True)
    assert folding.holds
    assert folding.certificate.rewrite_difference < 1e-13
    expected = {"gpt2": 3, "gemma2": 5}[architecture]
    assert len(folding.replaced) == expected
    found = find(folding.module)
    assert all(not found[name].norm.projects for name in folding.replaced)
    assert folding.centred_look_ups == (("transformer.wte",) if architecture == "gpt2" else ())


def test_bfloat16_is_folded_in_float64_and_certified_beside_the_original():
    model = folding_model("gpt2", layers=1).bfloat16()
    certificate = fold(model).certificate
    assert certificate.dtype == "bfloat16"
    assert certificate.rewrite_difference < 1e-13
    assert 1e-4 < certificate.original_error < 0.1
    assert certificate.folded_error < 4 * certificate.original_error


class Block(nn.Module):
    """A pre-norm block and a head: embedding, two norms, layers with and without bias."""

    def __init__(self, size, bias, rng):
        super().__init__()
        self.table = nn.Embedding(7, size)
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.up, self.down = nn.Linear(size, 5, bias=bias), nn.Linear(5, size, bias=bias)
        self.head = nn.Linear(size, 3, bias=bias)
        for parameter in self.parameters():
            nn.init.normal_(parameter, generator=rng)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.down(self.up(self.norm1(x)).tanh())
        return self.head(self.norm2(x))


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(2, 9),
    bias=st.booleans(),
    zeros=st.integers(0, 2),
    huge=st.sampled_from([1e-6, 1.0, 1e6]),
)
def test_any_gains_and_biases_fold_exactly(seed, size, bias, zeros, huge):
    model = Block(size, bias, torch.Generator().manual_seed(seed)).double()
    with torch.no_grad():
        model.norm1.weight[:zeros] = 0.0
        model.norm2.weight.mul_(huge)
    ids = torch.arange(7)
    folding = fold(model, inputs=ids)
    torch.testing.assert_close(outputs(folding.module, ids), outputs(model, ids), rtol=1e-9, atol=1e-9 * huge)
    assert folding.holds
    for norm in (folding.module.norm1, folding.module.norm2):
        assert set(norm.weight.tolist()) <= {0.0, 1.0}
        assert bool(norm.bias.any()) == (not bias)
    written = outputs(folding.module.table, ids)
    torch.testing.assert_close(written.mean(dim=-1), torch.zeros(7).double(), rtol=0, atol=1e-12)


def test_a_zero_gain_is_kept_with_its_bias():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.0, 2.0, -0.5, 4.0]))
        model[0].bias.copy_(torch.tensor([3.0, 1.0, 1.0, 0.0]))
    norm = fold(model, inputs=torch.randn(2, 4)).module[0]
    assert norm.weight.tolist() == [0.0, 1.0, 1.0, 1.0]
    assert norm.bias.tolist() == [3.0, 0.5, -2.0, 0.0]


def test_a_bias_too_large_for_the_dtype_is_not_divided_by_its_gain():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        model[0].weight[0], model[0].bias[0] = 1e-30, 1e30
    verdict = fold(model, inputs=torch.randn(2, 4)).norms[0].affine
    assert verdict.what == KEPT
    assert "beyond what torch.float32 holds" in verdict.reason


class PostNorm(nn.Module):
    """A norm whose output is read by a layer and is the skip around it, as in BERT."""

    def __init__(self, gain, bias, layer_bias=True):
        super().__init__()
        self.table, self.first, self.second = nn.Embedding(7, 4), nn.LayerNorm(4), nn.LayerNorm(4)
        self.up, self.down, self.head = nn.Linear(4, 6, bias=layer_bias), nn.Linear(6, 4), nn.Linear(4, 2)
        with torch.no_grad():
            self.first.weight.copy_(torch.tensor(gain))
            self.first.bias.copy_(torch.tensor(bias))

    def forward(self, ids):
        y = self.first(self.table(ids))
        return self.head(self.second(y + self.down(self.up(y).relu())))


def test_a_skip_behind_a_constant_gain_loses_its_mean_and_the_readers_take_that_of_the_bias():
    model = PostNorm([2.0, 2.0, 2.0, 2.0], [1.0, 2.0, 3.0, 4.0])
    folding = fold(model, inputs=torch.arange(7))
    first, second = folding.norms
    assert (first.centring.what, first.affine.what) == (FOLDED, KEPT)
    assert second.centring.what == FOLDED
    assert folding.module.first.bias.tolist() == [-1.5, -0.5, 0.5, 1.5]
    assert folding.holds
    rms = fold(model, inputs=torch.arange(7), rms=True)
    assert rms.replaced == ("first", "second")
    assert rms.holds


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (PostNorm([1.0, 2.0, 3.0, 4.0], [0.0] * 4), "first writes to its stream, and its gain is not constant"),
        (
            PostNorm([2.0] * 4, [1.0] * 4, layer_bias=False),
            "the bias of first writes a mean .* its reader up has no bias",
        ),
    ],
)
def test_a_skip_with_a_mean_keeps_the_next_norm_centring(model, reason):
    folding = fold(model, inputs=torch.arange(7))
    assert folding.norms[1].centring.what == KEPT
    assert re.search(reason, folding.norms[1].centring.reason)
    assert "also the skip of the model (add" in folding.kept["first"]
    assert folding.holds


def test_a_model_with_nothing_to_fold_comes_out_unchanged():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
    folding = fold(model, inputs=torch.randn(2, 4))
    assert (folding.changed, folding.folded) == ((), {})
    assert folding.norms[0].affine.what == NOTHING
    assert "relu in 1 (relu) writes to its stream" in folding.kept["2"]
    assert all(
        torch.equal(one, other) for one, other in zip(model.parameters(), folding.module.parameters(), strict=True)
    )
    assert "Nothing could be folded: the model is unchanged." in str(folding)
    plain = fold(nn.Sequential(nn.Linear(4, 4)), inputs=torch.randn(2, 4))
    assert (plain.norms, plain.changed, plain.holds) == ((), (), True)


def test_a_sabotaged_writer_is_caught_and_nothing_is_written(monkeypatch, tmp_path):
    honest = weights.centred
    monkeypatch.setattr(weights, "centred", lambda values, axis: honest(values, axis) * (1 + 1e-6))
    folding = fold(folding_model("gpt2", layers=1))
    assert not folding.holds
    assert folding.certificate.rewrite_difference > 1e-9
    assert any("has lost nothing but its mean" in broken for broken in folding.certificate.broken)
    with pytest.raises(NotCertifiedError, match="is not the same function") as caught:
        folding.save(tmp_path / "folded")
    assert caught.value.result is folding
    assert list(tmp_path.iterdir()) == []


def test_a_mean_that_is_only_almost_removed_is_caught_without_inputs(monkeypatch):
    monkeypatch.setattr(weights, "centred", lambda values, axis: values - 0.9 * values.mean(dim=axis, keepdim=True))
    certificate = fold(folding_model("gpt2", layers=1)).certificate
    assert certificate.rewrite_difference < 1e-13  # LayerNorm does not notice
    assert not certificate.holds
    assert any("has mean zero over its outputs" in broken for broken in certificate.broken)


def test_training_mode_and_hooks_of_the_model_are_as_before():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    model[1].eval()
    folding = fold(model, inputs=torch.randn(2, 4))
    for one in (model, folding.module):
        assert [module.training for module in one] == [True, False, True, True]


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match="must have its weights loaded"):
        fold(nn.Linear(2, 2, device="meta"), inputs=torch.ones(1, 2))


def test_a_model_that_fails_on_generated_inputs_says_with_what_it_was_called():
    model = folding_model("gpt2", layers=1)
    model.transformer.drop = Refusing()
    with pytest.raises(ValueError, match=r"called with input_ids.*; --inputs FILE, or inputs= in Python, gives others"):
        fold(model)


class Refusing(nn.Module):
    def forward(self, states):
        raise RuntimeError("these states are refused")


def test_the_repr_says_what_was_done():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    nn.init.normal_(model[1].weight)
    assert repr(fold(model, inputs=torch.randn(2, 4))).startswith(
        "Folding(Sequential: of 1 norms 1 centred, 1 with gain 1; certified"
    )


def test_a_notebook_shows_a_table():
    folding = fold(PostNorm([1.0, 2.0, 3.0, 4.0], [0.0] * 4), inputs=torch.arange(7))
    assert "<td>its output is also the skip of the model (add)</td>" in folding._repr_html_()


def tool_named(name):
    file = Path(__file__).parent.parent / "tools" / f"{name}.py"
    specification = importlib.util.spec_from_file_location(name, file)
    tool = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(tool)
    return tool


def test_the_tables_in_the_document_are_those_of_the_runs():
    root, tool = Path(__file__).parent.parent, tool_named("folding_table")
    page, results = (root / "docs" / "folding.md").read_text(encoding="utf-8"), root / "docs" / "results"
    rows, run = (json.loads((results / name).read_text(encoding="utf-8")) for name in ("folding.json", "fold.json"))
    assert tool.table(rows) in page
    assert tool.speed_table(run) in page
    rewrites = json.loads((results / "rewrites.json").read_text(encoding="utf-8"))
    assert tool.rewrites_table(rewrites) in page
    runtimes = json.loads((results / "runtimes.json").read_text(encoding="utf-8"))
    assert tool_named("runtimes").table(runtimes) in page
    assert all(max(row["transformers"], row["onnxruntime"]) < 1e-5 for row in runtimes)
    assert [row["model"] for row in rewrites] == [ARCHITECTURES[name][0] for name in REQUIRED + OTHERS]
    assert all(row[what]["rewrite_difference"] <= 1e-9 for row in rewrites for what in ("rescale", "rotate"))
    assert (run["layers"], run["width"], len(run["passes"])) == (12, 768, 24)
    assert [row["model"] for row in rows] == [ARCHITECTURES[name][0] for name in REQUIRED + OTHERS]
    assert all(row["holds"] and row["argmax_agreement"] == 1.0 for row in rows)
