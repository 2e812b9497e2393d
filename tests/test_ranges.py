import json

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
from normscope.studies import ranges as study
from normscope.studies.ranges import driving_input, ranges
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
    assert abs(layer.worst_bound) == np.abs([layer.lows, layer.highs]).max()
    assert layer.worst_bound in (layer.lows[layer.worst_row], layer.highs[layer.worst_row])


@settings(max_examples=15)
@given(norm=norms(), seed=seeds)
def test_no_input_goes_beyond_its_interval_and_the_witness_comes_near(norm, seed):
    model = model_of(norm, seed)
    (layer,) = ranges_of(norm, model).layers
    rng = np.random.default_rng(seed)
    x = 10.0 ** rng.uniform(-3, 6, size=(500, 1)) * (rng.normal(size=(500, norm.size)) + rng.normal(size=(500, 1)))
    with torch.no_grad():
        outputs = model(torch.from_numpy(x)).numpy()
        driven = model(torch.from_numpy(layer.witness.input.copy())[None])[0, layer.worst_row].item()
    slack = 1e-9 * np.maximum(np.abs(layer.lows), np.abs(layer.highs)).max()
    assert (outputs <= layer.highs + slack).all()
    assert (outputs >= layer.lows - slack).all()
    assert driven == pytest.approx(layer.worst_bound, rel=1e-6)
    assert driven == pytest.approx(layer.witness.attained, rel=1e-12)
    assert layer.witness.gap <= 1e-6


@given(norm=norms(), seed=seeds)
def test_a_driving_input_reaches_the_support_of_any_direction(norm, seed):
    w = np.random.default_rng(seed).normal(size=norm.size)
    reach = norm.ellipsoid.support(w) - w @ norm.bias
    reached = (torch_norm(norm, driving_input(norm, w)[None])[0].numpy() - norm.bias) @ w
    assert reached == pytest.approx(reach, rel=1e-7, abs=1e-12)


def test_blocks_of_rows_give_what_the_whole_gives(monkeypatch):
    norm = Norm(gain=np.linspace(-1, 2, 8))
    model = model_of(norm, 0, outputs=23)
    (whole,) = ranges_of(norm, model).layers
    monkeypatch.setattr(study, "BLOCK", 40)
    (blocked,) = ranges_of(norm, model).layers
    np.testing.assert_allclose(blocked.highs, whole.highs, rtol=1e-14)
    np.testing.assert_allclose(blocked.lows, whole.lows, rtol=1e-14)


@pytest.mark.parametrize(("largest", "beyond"), [(65503.0, 0), (65505.0, 1)])
def test_what_can_exceed_float16_is_counted(largest, beyond):
    model = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3))
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, -1.0], [0.0, 1.0]]))
        model[1].bias.copy_(torch.tensor([1.0, 2 - largest, 0.0]))  # the second row adds ±2 to its bias
    (layer,) = ranges(model, inputs=torch.zeros(1, 2)).layers
    assert layer.worst_bound == pytest.approx(-largest)
    assert (layer.fits_float16, layer.rows_beyond_float16) == (not beyond, beyond)
    assert layer.worst_row == 1
    np.testing.assert_allclose(layer.highs[0] - layer.lows[0], 0, atol=1e-12)


def test_a_norm_that_does_not_scale_gives_no_bound():
    norm = Norm(gain=[1, 2, 3], scale=False)
    found = ranges_of(norm, model_of(norm, 0))
    (layer,) = found.layers
    assert (layer.bounded, layer.low, layer.high, layer.witness) == (False, None, None, None)
    assert layer.fits_float16 is None
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
    found = ranges(model)
    assert len(found.layers) == {"llama": 11}.get(which, 3)
    model = model.double()
    for layer in found.layers:
        with torch.no_grad():
            y = model.get_submodule(layer.norm)(torch.from_numpy(layer.witness.input.copy())[None])
            output = model.get_submodule(layer.layer)(y)[0]
        assert output[layer.worst_row].item() == pytest.approx(layer.worst_bound, rel=1e-6)
        assert layer.witness.gap <= 1e-6
        assert len(output) == layer.outputs == len(layer.lows)
    assert {missed.reason for missed in found.not_covered} == {"does not read a norm"}
    jsonschema.validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), SCHEMA)


def test_layers_come_in_the_order_in_which_they_run_and_the_rest_is_listed():
    found = ranges(gpt2())
    assert [layer.layer for layer in found.layers] == [
        "transformer.h.0.attn.c_attn",
        "transformer.h.0.mlp.c_fc",
        "lm_head",
    ]
    assert [layer.norm for layer in found.layers] == [
        "transformer.h.0.ln_1",
        "transformer.h.0.ln_2",
        "transformer.ln_f",
    ]
    assert [missed.layer for missed in found.not_covered] == [
        "transformer.h.0.attn.c_proj",
        "transformer.h.0.mlp.c_proj",
    ]
    assert repr(found).startswith(
        "LayerRanges(GPT2LMHeadModel: 3 layers read a norm, 2 are not covered; largest bound "
    )


class Example(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.norm, self.layer, self.body = nn.LayerNorm(4), nn.Linear(4, 4), body
        self.cube = nn.Parameter(torch.randn(2, 4, 4))

    def forward(self, x):
        return self.body(self, x)


NOT_COVERED = {
    "does not read a norm": lambda self, x: self.norm(self.layer(x)),
    "reads norm, but not its output as it is": lambda self, x: self.layer(2 * self.norm(x)),
    "does not read a norm in 1 of its 2 calls": lambda self, x: self.layer(self.layer(self.norm(x))),
    "applies its weights in an unsupported way: not a plain matrix product": (
        lambda self, x: torch.bmm(self.norm(x), self.cube)
    ),
}


@pytest.mark.parametrize("reason", NOT_COVERED)
def test_what_is_not_covered_is_listed_with_its_reason(reason):
    found = ranges(Example(NOT_COVERED[reason]), inputs=torch.zeros(2, 3, 4))
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
    assert output.abs().max() > 2 * abs(found.worst_bound)


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
    gates = [layer for layer in ranges(model).layers if "gate" in layer.layer]
    assert [gate.layer for gate in gates] == [f"model.layers.{number}.mlp.gate.weight" for number in (0, 1)]
    assert all(gate.witness.gap <= 1e-6 for gate in gates)


def test_matrices_of_one_module_are_told_apart():
    model = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True).eval()
    found = ranges(model, inputs=torch.zeros(1, 4, 8))
    assert [layer.layer for layer in found.layers] == ["self_attn.in_proj_weight", "linear1"]
    missed = {missed.layer: missed.reason for missed in found.not_covered}
    assert missed == dict.fromkeys(["self_attn.out_proj.weight", "linear2"], "does not read a norm")


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
    assert "last" not in [layer.layer for layer in found.layers]
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
    assert found.layers == ()
    assert "its norm 0: " in found.not_covered[0].reason


def test_a_model_without_weights_and_weights_that_are_not_finite_are_refused():
    with torch.device("meta"):
        empty = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    with pytest.raises(ValueError, match="must have its weights loaded"):
        ranges(empty, inputs=torch.zeros(1, 4))
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    model[1].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"1\.weight must be finite"):
        ranges(model, inputs=torch.zeros(1, 4))


def test_a_row_in_the_dead_direction_has_no_range_and_counts_as_certified():
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1, bias=False))
    nn.init.ones_(model[1].weight)
    found = ranges(model, inputs=torch.zeros(1, 3))
    assert abs(found.layers[0].high) < 1e-12
    assert found.holds
