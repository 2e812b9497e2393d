"""Models on which folding could go wrong unnoticed: handled, or kept with the reason, never wrong."""

import math
import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from folding_models import folding_model
from normscope import fold
from normscope.models.float64_run import difference
from normscope.results.folding import AFTER_LOOKUP, FOLDED, KEPT
from normscope.rewrite import stored_tensors

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
OTHERWISE = "inside the model it computes something else than alone"
NO_MATRIX = "which is not a product with one stored matrix"


class Trap(nn.Module):
    """A table, norms and layers of six channels, what a trap adds to them, and what it computes."""

    def __init__(self, body, **parts):
        super().__init__()
        self.table, self.positions = nn.Embedding(9, 6), nn.Parameter(torch.empty(4, 6))
        self.norm, self.other = nn.LayerNorm(6), nn.LayerNorm(6)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.weight, self.bias = nn.Parameter(torch.empty(6, 6)), nn.Parameter(torch.empty(6))
        for name, part in parts.items():
            setattr(self, name, part)
        torch.manual_seed(0)
        for values in self.parameters():
            nn.init.normal_(values)
        self.body = body

    def forward(self, ids):
        return self.body(self, ids)


class ScaledNorm(nn.LayerNorm):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


class GainIsBias(nn.LayerNorm):
    def __init__(self, size):
        super().__init__(size)
        self.bias = self.weight


def hooked(norm, hook):
    norm.register_forward_hook(hook)
    return norm


def plain(self, ids):
    return self.first(self.norm(self.table(ids)))


def attend(self, query, other):
    return self.attention(query, other, other, need_weights=False)[0]


TRAPS = {  # what it computes, what it is made of; what becomes of the mean and the gain of `norm`, and why
    "rows are shrunk as they are looked up": (
        plain, {"table": nn.Embedding(9, 6, max_norm=1.0)}, AFTER_LOOKUP, FOLDED, "table uses too (embedding_renorm_)"),
    "a row for padding": (plain, {"table": nn.Embedding(9, 6, padding_idx=3)}, FOLDED, FOLDED, ""),
    "a matrix times itself": (
        lambda self, ids: self.first(self.norm(F.linear(self.weight, self.weight)[:4] + self.table(ids))), {},
        KEPT, FOLDED, "weight, which the model uses twice (linear)"),
    "a hook that triples": (
        plain, {"norm": hooked(nn.LayerNorm(6), lambda module, args, y: 3 * y)}, KEPT, KEPT, OTHERWISE),
    "an argument that doubles": (
        lambda self, ids: self.first(self.norm(self.table(ids), 2.0)), {"norm": ScaledNorm(6)},
        KEPT, KEPT, OTHERWISE),
    "a gain that is the bias too": (
        plain, {"norm": GainIsBias(6)}, KEPT, KEPT, "has a bias (median"),
    "a function that sees the stream": (
        lambda self, ids: plain(self, ids) + self.second(F.layer_norm(self.table(ids) * 1, (6,))), {},
        AFTER_LOOKUP, FOLDED, "which table uses too"),
    "a function that reads the stream": (
        lambda self, ids: self.first(self.norm(x := self.table(ids))) + self.second(F.layer_norm(x, (6,))), {},
        KEPT, FOLDED, "layer_norm in the model (layer_norm_1) reads the same stream and depends on its mean"),
    "self-attention of torch": (
        lambda self, ids: attend(self, y := self.norm(self.table(ids)), y),
        {"attention": nn.MultiheadAttention(6, 2, batch_first=True)}, FOLDED, FOLDED, ""),
    "cross-attention of torch, which slices its matrix": (
        lambda self, ids: attend(self, self.norm(self.table(ids)), self.positions.expand(2, 4, 6)),
        {"attention": nn.MultiheadAttention(6, 2, batch_first=True)}, FOLDED, KEPT, NO_MATRIX),
    "a matrix made of its direction and length": (
        plain, {"first": nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))}, FOLDED, KEPT, NO_MATRIX),
    "a slice of a fused matrix": (
        lambda self, ids: F.linear(self.norm(self.table(ids)), self.weight[:3]), {}, FOLDED, KEPT, NO_MATRIX),
    "both halves of a fused layer": (
        lambda self, ids: torch.mul(*self.fused(self.norm(self.table(ids))).chunk(2, dim=-1)),
        {"fused": nn.Linear(6, 12)}, FOLDED, FOLDED, ""),
    "a layer whose output is cut": (
        lambda self, ids: self.first(self.norm(self.fused(self.table(ids).tanh()).chunk(2, dim=-1)[0])),
        {"fused": nn.Linear(6, 12)}, KEPT, FOLDED, "takes the channels of linear apart"),
    "a factor for each channel of a branch": (
        lambda self, ids: self.first(self.norm(self.table(ids) + self.bias * self.second(self.positions))), {},
        KEPT, FOLDED, "mul in the model (mul) writes to its stream"),
    "tokens filled in": (
        lambda self, ids: self.first(self.norm(self.table(ids).masked_fill((ids > 3)[..., None], 1.0))), {},
        KEPT, FOLDED, "masked_fill in the model"),
    "tokens chosen": (
        lambda self, ids: self.first(self.norm(torch.where((ids > 3)[..., None], self.table(ids), self.positions))), {},
        KEPT, FOLDED, "where in the model"),
    "the mean of the stream as a factor": (
        lambda self, ids: self.first(self.norm(x := self.table(ids))) * x.mean(-1, keepdim=True), {},
        KEPT, FOLDED, "mean in the model (mean) reads the same stream and depends on its mean"),
    "a factor made of the output": (
        lambda self, ids: self.first((y := self.norm(self.table(ids))) * y.sum(-1, keepdim=True)), {},
        FOLDED, KEPT, "its output is read by sum in the model"),
    "its output as queries and keys": (
        lambda self, ids: F.scaled_dot_product_attention(y := self.norm(self.table(ids)), y, self.first(y)), {},
        FOLDED, KEPT, "its output is read by scaled_dot_product_attention"),
    "a bias that counts half": (
        lambda self, ids: torch.addmm(self.bias, self.norm(self.table(ids)).view(8, 6), self.weight, beta=0.5), {},
        FOLDED, KEPT, NO_MATRIX),
    "its own bias in its stream": (
        lambda self, ids: self.first(self.norm(self.table(ids) + self.norm.bias)), {},
        KEPT, KEPT, "it has norm.bias, which the model uses too"),
    "one norm and one layer three times": (
        lambda self, ids: self.second(self.norm(self.first(self.norm(self.first(self.norm(self.table(ids))))))),
        {}, FOLDED, FOLDED, ""),
    "a table that is looked up elsewhere too": (
        lambda self, ids: plain(self, ids) + self.table(ids), {},
        AFTER_LOOKUP, FOLDED, "table.weight, which table uses too"),
    "the length of the table": (
        lambda self, ids: self.first(self.norm(self.table(ids) * self.table.weight.norm())), {},
        AFTER_LOOKUP, FOLDED, "table.weight, which the model uses too (linalg_vector_norm)"),
    "a layer that writes and reads": (
        lambda self, ids: self.second(self.norm(self.first(self.other(self.table(ids))) + self.first(self.positions))),
        {}, FOLDED, FOLDED, ""),
    "a square matrix and its transpose in the stream": (
        lambda self, ids: self.first(self.norm(self.weight + self.weight.T)), {},
        KEPT, FOLDED, "has its channels in two axes at once"),
    "a multiple of what is added": (
        lambda self, ids: self.first(self.norm(torch.add(self.table(ids), self.positions, alpha=0.3))), {},
        FOLDED, FOLDED, ""),
}  # fmt: skip


@pytest.mark.parametrize("what", TRAPS)
def test_a_trap_is_handled_or_named(what):
    body, parts, centring, affine, reason = TRAPS[what]
    model = Trap(body, **parts)
    folding = fold(model, inputs=IDS)
    assert folding.holds
    with torch.no_grad():
        torch.testing.assert_close(folding.module(IDS), model(IDS), rtol=1e-4, atol=1e-4)
    verdict = next(found for found in folding.norms if found.norm == "norm")
    assert (verdict.centring.what, verdict.affine.what) == (centring, affine)
    assert not reason or reason in f"{verdict.centring.reason}; {verdict.affine.reason}"


def test_a_layer_that_reads_channels_in_another_order_does_not_take_the_mean_of_a_bias():
    def body(self, ids):
        y = self.norm(self.table(ids))
        turned = y.view(2, 4, 2, 3).mT.flatten(2)
        return self.second(self.other(y + self.first(turned)))

    model = Trap(body)
    nn.init.constant_(model.norm.weight, 2.0)
    folding = fold(model, inputs=IDS)
    assert folding.holds
    assert "the bias of norm writes a mean to its stream, and its output is" in folding.kept["other"]


def test_a_function_that_normalizes_is_named_too():
    folding = fold(Trap(lambda self, ids: self.first(F.layer_norm(self.table(ids), (6,), self.bias))), inputs=IDS)
    assert "it is a function call inside a larger module" in folding.kept["layer_norm in the model (layer_norm)"]
    assert folding.changed == ()


def test_dropout_that_is_never_off_is_no_step_of_a_stream():
    model = Trap(lambda self, ids: self.first(self.norm(F.dropout(self.table(ids), 0.5, training=True))))
    verdict = fold(model, inputs=IDS).norms[0]
    assert "dropout in the model (dropout) writes to its stream" in verdict.centring.reason


@pytest.mark.parametrize(("gain", "what"), [(1e-2, FOLDED), (1e-6, KEPT), (6e4, KEPT)])
def test_a_gain_that_takes_a_half_matrix_out_of_its_range_stays(gain, what):
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 5)).half()
    nn.init.constant_(model[0].weight, gain)
    nn.init.uniform_(model[1].weight, -2, 2)
    folding = fold(model, inputs=torch.randn(3, 6).half())
    assert folding.norms[0].affine.what == what
    assert what == FOLDED or folding.kept["0"].endswith("its gain times 1.weight is beyond what torch.float16 holds")


def test_outputs_are_measured_beside_what_is_not_masked():
    masked = torch.tensor([[torch.finfo(torch.float32).min, 1.0], [torch.finfo(torch.float32).min, 2.0]]).double()
    other = masked.clone()
    other[0, 1] += 0.5
    assert difference([other], [masked]) == 0.25
    equal = torch.ones(2, 2).double()  # every value occurs again
    assert difference([equal + 1], [equal]) == 1.0


def test_a_wrong_fold_is_seen_in_the_norms_where_no_output_depends_on_them(monkeypatch):
    monkeypatch.setattr(
        stored_tensors.Uses, "can_change", lambda self, name, allowed: (True, "")
    )  # everything may be changed
    model = Trap(
        lambda self, ids: (
            0 * (self.first(self.norm(self.table(ids))) + self.second(self.other(self.first(self.positions))))
        )
    )
    folding = fold(model, inputs=IDS)
    assert folding.certificate.rewrite_difference > 1e-3
    assert not folding.holds


def test_a_tensor_of_the_model_that_is_no_parameter_keeps_its_values():
    model = Trap(lambda self, ids: plain(self, ids) @ self.kept.T)
    object.__setattr__(model, "kept", model.first.weight.data)  # the same memory, unknown to state dicts
    folding = fold(model, inputs=IDS)
    with torch.no_grad():
        torch.testing.assert_close(folding.module(IDS), model(IDS), rtol=1e-4, atol=1e-4)


def test_what_the_traced_call_does_not_use_is_named():
    assert fold(Trap(plain), inputs=IDS).not_run == ("positions", "weight", "bias", "other", "second")


def test_a_model_that_computes_otherwise_without_its_ties_is_not_untied():
    with pytest.raises(ValueError, match="UMT5ForConditionalGeneration computes something else without its ties"):
        fold(folding_model("umt5", layers=1), untie=True)


def test_ties_that_transformers_cannot_store_apart_are_refused_in_one_line(tmp_path):
    folding = fold(folding_model("bart", layers=1), untie=True)
    with pytest.raises(ValueError, match=r"^BartForConditionalGeneration can't be stored without its ties: tensors"):
        folding.save(tmp_path / "folded")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_cannot_be_traced_is_refused_in_one_line():
    model = Trap(lambda self, ids: plain(self, ids) if self.table(ids).sum() > 0 else self.table(ids))
    with pytest.raises(ValueError, match=re.compile(r"^Trap cannot be traced: [^\n]*$")):
        fold(model, inputs=IDS)


@given(st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.0, -3.0, 4.0, 5.0, -6.0, 7.0, 1e30, math.inf]), min_size=1))
def test_a_difference_is_relative_to_the_largest_finite_value_that_occurs_once(values):
    counts = Counter(abs(value) for value in values if math.isfinite(value))
    alone = [value for value, times in counts.items() if times == 1] or list(counts)
    reference = torch.tensor(values, dtype=torch.float64)
    shifted = torch.where(reference.isfinite(), reference + 1, reference)
    apart = float((shifted - reference).nan_to_num(0.0).max())
    assert difference([shifted], [reference]) == apart / (max(alone, default=0.0) or 1.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("gain", [1e-8, 1e-6, 1e-3, 1.0, 3e3, 7e4, 1e30])
def test_whether_a_type_holds_a_product_is_decided_from_sizes_as_from_all_values(monkeypatch, dtype, gain):
    model = Trap(lambda self, ids: self.first(self.norm(self.table(ids)))).to(dtype)
    with torch.no_grad():
        model.norm.weight.copy_(gain * torch.linspace(0.5, 1.5, 6))
        model.norm.bias.zero_()
    if not model.norm.weight.isfinite().all() or not model.norm.weight.all():
        pytest.skip("the type does not hold the gain itself")
    quick = fold(model, inputs=IDS).norms
    monkeypatch.setattr(stored_tensors.StoredTensors, "size", lambda *given: math.nan)
    assert fold(model, inputs=IDS).norms == quick
