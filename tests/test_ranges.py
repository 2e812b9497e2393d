import json
import math

import jsonschema
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from architectures import random_model
from normscope import Norm
from normscope.results.layer_ranges import LayerRanges
from normscope.studies.driving_inputs import driving_input
from normscope.studies.ranges import ranges
from normscope.tensors import linear_rows
from oracles import dense_factor, torch_norm

seeds = st.integers(0, 2**32 - 1)
SCHEMA = LayerRanges.json_schema()


class Reference(nn.Module):
    """A member of the family as a module, in the precision of its input."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.gain, self.shift = nn.Parameter(torch.tensor(norm.gain)), nn.Parameter(torch.tensor(norm.bias))

    def forward(self, x):
        grouped = x.reshape(*x.shape[:-1], self.norm.groups, -1)
        if self.norm.projects:
            grouped = grouped - grouped.mean(-1, keepdim=True)
        if self.norm.scales:
            grouped = grouped / (grouped.pow(2).mean(-1, keepdim=True) + self.norm.eps).sqrt()
        return grouped.reshape(x.shape) * self.gain + self.shift


@st.composite
def norms(draw, scale=True):
    """LayerNorm, RMSNorm or LN-G, with some gains zero."""
    rng = np.random.default_rng(draw(seeds))
    groups, channels = draw(st.integers(1, 3)), draw(st.integers(2, 5))
    size = groups * channels
    gain = rng.normal(size=size) * (rng.random(size) < draw(st.sampled_from([1.0, 0.6, 0.0])))
    eps = draw(st.sampled_from([1e-12, 1e-5, 1.0]))
    bias = rng.normal(size=size)
    return Norm(gain=gain, bias=bias, eps=eps, project=draw(st.booleans()), scale=scale, groups=groups)


def model_of(norm, seed, outputs=7, bias=True):
    torch.manual_seed(seed % 2**31)
    return nn.Sequential(Reference(norm), nn.Linear(norm.size, outputs, bias=bias)).double()


def ranges_of(norm, model):
    return ranges(model, inputs=torch.zeros(1, norm.size).double())


def dense_interval(norm, w, offset):
    """offset + w·b ± Σ |Fᵀw| over the groups, with every F = √c·G·Π as a matrix."""
    channels = norm.size // norm.groups
    pulled = (dense_factor(norm).T @ w).reshape(norm.groups, channels)
    reach = np.linalg.norm(pulled, axis=1).sum()
    return offset + w @ norm.bias - reach, offset + w @ norm.bias + reach


@settings(max_examples=15)
@given(norm=norms(), seed=seeds, bias=st.booleans())
def test_intervals_are_those_of_the_definition(norm, seed, bias):
    model = model_of(norm, seed, bias=bias)
    (layer,) = ranges_of(norm, model).layers
    weight = model[1].weight.detach().numpy()
    offsets = model[1].bias.detach().numpy() if bias else np.zeros(7)
    expected = np.array([dense_interval(norm, w, offset) for w, offset in zip(weight, offsets, strict=True)])
    np.testing.assert_allclose(np.stack([layer.lows, layer.highs], axis=1), expected, rtol=1e-12, atol=1e-12)
    assert (layer.low, layer.high) == (layer.lows.min(), layer.highs.max())
    assert abs(layer.bound) == np.abs([layer.lows, layer.highs]).max()
    assert layer.bound in (layer.lows[layer.channel], layer.highs[layer.channel])


@settings(max_examples=15)
@given(norm=norms(), seed=seeds)
def test_no_input_goes_beyond_its_interval_and_the_witness_comes_near(norm, seed):
    model = model_of(norm, seed)
    (layer,) = ranges_of(norm, model).layers
    rng = np.random.default_rng(seed)
    x = 10.0 ** rng.uniform(-3, 6, size=(500, 1)) * (rng.normal(size=(500, norm.size)) + rng.normal(size=(500, 1)))
    with torch.no_grad():
        outputs = model(torch.from_numpy(x)).numpy()
        driven = model(torch.from_numpy(layer.input.copy())[None])[0, layer.channel].item()
    slack = 1e-9 * np.maximum(np.abs(layer.lows), np.abs(layer.highs)).max()
    assert (outputs <= layer.highs + slack).all()
    assert (outputs >= layer.lows - slack).all()
    assert driven == pytest.approx(layer.bound, rel=1e-6)
    assert driven == pytest.approx(layer.reached, rel=1e-12)
    assert layer.grade == "exact"


@given(norm=norms(), seed=seeds)
def test_a_driving_input_reaches_the_support_of_any_direction(norm, seed):
    w = np.random.default_rng(seed).normal(size=norm.size)
    reach = norm.ellipsoid.support(w) - w @ norm.bias
    reached = (torch_norm(norm, driving_input(norm, norm.gain * w)[None])[0].numpy() - norm.bias) @ w
    assert reached == pytest.approx(reach, rel=1e-7, abs=1e-12)


def test_blocks_of_rows_give_what_the_whole_gives(monkeypatch):
    norm = Norm(gain=np.linspace(-1, 2, 8))
    model = model_of(norm, 0, outputs=23)
    (whole,) = ranges_of(norm, model).layers
    monkeypatch.setattr(linear_rows, "BLOCK", 40)
    (blocked,) = ranges_of(norm, model).layers
    np.testing.assert_allclose(blocked.highs, whole.highs, rtol=1e-14)
    np.testing.assert_allclose(blocked.lows, whole.lows, rtol=1e-14)


@pytest.mark.parametrize(
    ("largest", "verdict"), [(65000.0, "excluded"), (65503.0, "too close to call"), (66000.0, "reached")]
)
def test_a_verdict_leaves_room_for_rounding(largest, verdict):
    model = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 1.0]]))
        model[1].bias.copy_(torch.tensor([1.0, 2 - largest, 0.0]))  # the second row adds ±2 to its bias
    found = ranges(model, inputs=torch.zeros(1, 2))
    (layer,) = found.layers
    assert layer.bound == pytest.approx(-largest)
    assert (layer.channel, layer.verdict) == (1, verdict)
    assert (found.limit.excluded == found.limit.tensors) == (verdict == "excluded")
    assert found.remarks()[0] == f"{found.limit.sentence}."
    np.testing.assert_allclose(layer.highs[0] - layer.lows[0], 0, atol=1e-12)


@pytest.mark.parametrize(("limit", "name"), [("bfloat16", "bfloat16"), ("448", "±448"), (1.5, "±1.5")])
def test_a_limit_is_a_type_or_a_number(limit, name):
    model = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3))
    assert ranges(model, inputs=torch.zeros(1, 2), limit=limit).limit.type == name


@pytest.mark.parametrize("limit", ["float15", "-3", 0.0, math.inf])
def test_what_is_no_limit_is_refused(limit):
    with pytest.raises(ValueError, match="limit must be"):
        ranges(nn.Sequential(nn.LayerNorm(2)), inputs=torch.zeros(1, 2), limit=limit)


def test_a_norm_that_does_not_scale_gives_no_bound():
    norm = Norm(gain=[1, 2, 3], scale=False)
    found = ranges_of(norm, model_of(norm, 0))
    (layer,) = found.layers
    assert (layer.bounded, layer.low, layer.high, layer.input) == (False, None, None, None)
    assert layer.verdict == "unbounded"
    assert found.not_covered[0].reason == "the range of the input input is not known"
    jsonschema.validate(found.to_dict(), SCHEMA)


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, vocab_size=50
    )
    model = transformers.LlamaForCausalLM(config)
    names = [name for name, module in model.named_modules() if isinstance(module, type(model.model.norm))]
    for name in names:
        nn.init.normal_(model.get_submodule(name).weight)
    return model


def gpt2(dtype=torch.float32):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(config)
    for name, parameter in model.named_parameters():
        if "ln_" in name:
            nn.init.normal_(parameter)
    return model.to(dtype)


MODELS = {"llama": llama, "gpt2": gpt2, "gpt2 in bfloat16": lambda: gpt2(torch.bfloat16)}


@pytest.mark.parametrize("which", MODELS)
def test_witnesses_hold_on_the_modules_of_a_transformer(which):
    model = MODELS[which]()
    found = ranges(model, tight=1)
    assert len(found.layers) == {"llama": 15}.get(which, 5)
    model = model.double()
    exact = [layer for layer in found.layers if layer.grade == "exact"]
    assert len(exact) == {"llama": 11}.get(which, 3)
    for layer in exact:
        with torch.no_grad():
            y = model.get_submodule(layer.norm)(torch.from_numpy(layer.input.copy())[None])
            output = model.get_submodule(layer.layer)(y)[0]
        assert output[layer.channel].item() == pytest.approx(layer.bound, rel=1e-6)
        assert len(output) == layer.channels == len(layer.lows)
    assert found.holds
    assert found.not_covered == ()
    jsonschema.validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), SCHEMA)


def test_the_witness_of_an_mlp_is_what_its_modules_write():
    model = llama()
    found = ranges(model, tight=1)
    model = model.double()
    for layer in [layer for layer in found.layers if layer.grade == "tight"]:
        block = model.model.layers[int(layer.layer.split(".")[2])]
        with torch.no_grad():
            wrote = block.mlp(block.post_attention_layernorm(torch.from_numpy(layer.input.copy())[None]))
        assert wrote[0, layer.channel].item() == pytest.approx(layer.reached, rel=1e-6)
        assert 1.0 <= layer.ratio < 3.0


def test_layers_come_in_the_order_in_which_they_run():
    found = ranges(gpt2(), tight=0)
    assert [layer.layer for layer in found.layers] == [
        "transformer.h.0.attn.c_attn",
        "transformer.h.0.attn.c_proj",
        "transformer.h.0.mlp.c_fc",
        "transformer.h.0.mlp.c_proj",
        "lm_head",
    ]
    assert [layer.grade for layer in found.layers] == ["exact", "heads", "exact", "quadratic", "exact"]
    assert [row.what for row in found.tensors if row.layer == "transformer.h.0.attn"] == [
        "keys",
        "values",
        "queries",
        "heads",
        "scores",
    ]
    assert [row.layer for row in found.tensors if row.what == "norm input"] == [
        "transformer.h.0.ln_1",
        "transformer.h.0.ln_2",
        "transformer.ln_f",
    ]
    assert repr(found).startswith("LayerRanges(GPT2LMHeadModel: 5 of 5 linear layers bounded; largest ")


def test_named_outputs_are_tightened_on_both_sides():
    name = "transformer.h.0.mlp.c_proj"
    plain, named = ranges(gpt2(), tight=0), ranges(gpt2(), tight=0, channels=[(name, 3)])
    before, after = (next(row for row in found.layers if row.layer == name) for found in (plain, named))
    assert after.highs[3] < before.highs[3]
    assert after.lows[3] > before.lows[3]
    tight = [proof for proof in named.certificates if proof.layer == name]
    assert {(proof.channel, proof.sign) for proof in tight} == {(3, 1), (3, -1)}


class Example(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.norm, self.layer, self.body = nn.LayerNorm(4), nn.Linear(4, 4), body
        self.cube = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x):
        return self.body(self, x)


REACHED_THROUGH = {
    "a multiple of a norm": lambda self, x: self.layer(2 * self.norm(x)),
    "part of a norm": lambda self, x: self.layer(self.norm(x)[:, :1]),
    "a norm, backwards": lambda self, x: self.layer(self.norm(x).flip(-1)),
}


@pytest.mark.parametrize("way", REACHED_THROUGH)
def test_layers_that_read_a_norm_through_linear_steps_are_exact(way):
    torch.manual_seed(0)
    model = Example(REACHED_THROUGH[way]).double()
    found = ranges(model, inputs=torch.zeros(2, 3, 4).double())
    last = found.layers[-1]
    with torch.no_grad():
        x = torch.from_numpy(last.input.copy()).expand(2, 3, 4)
        wrote = model(x)[0, 0, last.channel].item()
        others = model(1e3 * torch.randn(500, 3, 4).double())
    assert wrote == pytest.approx(last.bound, rel=1e-6)
    assert (others <= torch.from_numpy(last.highs.copy()) + 1e-9).all()


UNBOUNDED = {
    "the range of the input x is not known": lambda self, x: self.norm(self.layer(x)),
    "the operation cumsum": lambda self, x: self.layer(self.norm(x).cumsum(1)),
}


@pytest.mark.parametrize("reason", UNBOUNDED)
def test_what_is_unbounded_says_because_of_what(reason):
    found = ranges(Example(UNBOUNDED[reason]), inputs=torch.zeros(2, 3, 4))
    assert [missed.reason for missed in found.not_covered] == [reason]


class Adapted(nn.Linear):
    """A linear layer, and something else that its name does not say."""

    def __init__(self, change):
        super().__init__(4, 3)
        self.change = change

    def forward(self, x):
        return self.change(super().forward(x), x)


def overwritten(y):
    y[..., 0].mul_(100)
    return y


DOES_MORE = {
    "an adapter": lambda y, x: y + 100 * x[..., :1],
    "a factor": lambda y, x: 100 * y,
    "a factor in place, of a part": lambda y, x: overwritten(y),
    "a second output": lambda y, x: torch.cat([y, 100 * x], -1),
    "whole numbers": lambda y, x: (100 * y).to(torch.int32).float(),
}


@pytest.mark.parametrize("what", DOES_MORE)
def test_a_bound_of_a_product_is_not_given_for_a_module_that_does_more(what):
    model = Example(lambda self, x: self.layer(self.norm(x)))
    model.layer = Adapted(DOES_MORE[what])
    (found,) = ranges(model, inputs=torch.zeros(2, 3, 4)).layers
    assert (found.layer, found.weight) == ("layer.weight", "layer.weight")
    output = model(torch.randn(50, 3, 4)).detach()
    assert output.abs().max() > 2 * abs(found.bound)


def test_a_hook_that_changes_the_output_of_a_layer_is_seen():
    model = Example(lambda self, x: self.layer(self.norm(x)))
    hook = model.layer.register_forward_hook(lambda module, given, output: 100 * output)
    assert [layer.layer for layer in ranges(model, inputs=torch.zeros(2, 3, 4)).layers] == ["layer.weight"]
    hook.remove()
    assert [layer.layer for layer in ranges(model, inputs=torch.zeros(2, 3, 4)).layers] == ["layer"]


def test_what_follows_a_layer_in_place_is_not_part_of_it():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.ReLU(inplace=True))
    assert [layer.layer for layer in ranges(model, inputs=torch.zeros(2, 4)).layers] == ["1"]


def test_the_router_of_a_mixture_goes_by_its_matrix_for_it_gives_back_choices():
    torch.manual_seed(0)
    model = random_model("mixtral")
    gates = [layer for layer in ranges(model, tight=0).layers if "gate.weight" in layer.layer]
    assert [gate.layer for gate in gates] == [f"model.layers.{number}.mlp.gate.weight" for number in (0, 1)]
    assert all(gate.ratio == pytest.approx(1.0, abs=1e-6) for gate in gates)


def test_matrices_of_one_module_are_told_apart():
    model = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True).eval()
    found = ranges(model, inputs=torch.zeros(1, 4, 8))
    names = ["self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1", "linear2"]
    assert [layer.layer for layer in found.layers] == names
    assert found.not_covered == ()


class WithArguments(nn.LayerNorm):
    """A LayerNorm when it is called alone, and more where it is called with more."""

    def forward(self, x, shift=None, factor=None, doubled=False):
        y = super().forward(x)
        y = y if shift is None else y * (1 + factor) + shift
        return y * y if doubled else y


CALLED_WITH_MORE = {
    "is called with 3 values in the model": lambda self, x: self.norm(x, x.exp(), factor=self.layer(x)),
    "computes something else inside the model": lambda self, x: self.norm(x, doubled=True),
    "computes different things in its 2 calls": lambda self, x: self.norm(x) + self.norm(x, x, factor=-x),
}


@pytest.mark.parametrize("reason", CALLED_WITH_MORE)
def test_a_norm_that_is_called_with_more_than_its_input_bounds_nothing(reason):
    call = CALLED_WITH_MORE[reason]
    model = Example(lambda self, x: self.last(call(self, x)))
    model.norm, model.last = WithArguments(4), nn.Linear(4, 3)
    found = ranges(model, inputs=torch.zeros(2, 3, 4))
    assert "last" in [missed.layer for missed in found.not_covered]
    assert not any(layer.norm == "norm" for layer in found.layers)


def test_calls_that_cannot_be_traced_certify_nothing():
    model = Example(lambda self, x: self.layer(self.norm(x)) if x.sum() > 0 else x)
    with pytest.raises(ValueError, match="cannot be traced"):
        ranges(model, inputs=torch.zeros(2, 3, 4))


def test_a_norm_over_another_axis_is_not_taken_for_one_over_the_last():
    class ChannelsFirst(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.transpose(1, 2)).transpose(1, 2)

    model = nn.Sequential(ChannelsFirst(4), nn.Linear(4, 2))
    found = ranges(model, inputs=torch.zeros(2, 4, 4))
    assert [missed.layer for missed in found.not_covered] == ["1"]


def test_a_model_without_weights_and_weights_that_are_not_finite_are_refused():
    with torch.device("meta"):
        empty = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="load the weights first"):
        ranges(empty, inputs=torch.zeros(1, 4))
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    model[1].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="1: weights must be finite"):
        ranges(model, inputs=torch.zeros(1, 4))


def test_a_row_in_the_dead_direction_has_no_range_and_counts_as_certified():
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1, bias=False))
    nn.init.ones_(model[1].weight)
    found = ranges(model, inputs=torch.zeros(1, 3))
    assert abs(found.layers[0].high) < 1e-12
    assert found.holds
