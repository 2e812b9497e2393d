"""A norm is what it computes where the model calls it, not what it answers alone."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import normscope as ns

SIZE = 6
GATES = {"silu": F.silu, "gelu": F.gelu, "sigmoid": torch.sigmoid, "relu": F.relu, "tanh": torch.tanh, "": lambda x: x}


class Gated(nn.Module):
    """A norm with a gate; with `optional`, a plain norm when it is called without one."""

    def __init__(self, place, act, optional=True, groups=1):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.linspace(0.5, 2.0, SIZE)), 1e-6
        self.place, self.act, self.optional, self.groups = place, act, optional, groups

    def forward(self, hidden_states, gate=None):
        if gate is None and not self.optional:
            raise ValueError("gate is missing")
        opened = torch.ones_like(hidden_states) if gate is None else self.act(gate)
        x = hidden_states * opened if self.place == "before" else hidden_states
        grouped = x.reshape(*x.shape[:-1], self.groups, -1)
        y = grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        y = self.weight * y.reshape(x.shape)
        return y if self.place == "before" else y * opened


class Block(nn.Module):
    """The output of a norm goes to a linear layer; a call of `body` says how the norm is called."""

    def __init__(self, norm, body):
        super().__init__()
        self.enter, self.norm, self.leave, self.body = nn.Linear(SIZE, SIZE), norm, nn.Linear(SIZE, 4), body

    def forward(self, x):
        return self.leave(self.body(self, x))


EXAMPLE = (torch.zeros(2, 5, SIZE),)
BODIES = {
    "x first": lambda self, x: self.norm(x, self.enter(x)),
    "gate by name": lambda self, x: self.norm(gate=self.enter(x), hidden_states=x),
}


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_gated_norm_is_recognised_with_its_gate_and_the_norm_in_it(place, name, optional):
    model = Block(Gated(place, GATES[name], optional), BODIES["x first"])
    found = ns.find(model, inputs=EXAMPLE)["norm"]
    assert (found.kind, found.gate.place, found.gate.activation) == ("rmsnorm", place, name)
    assert found.norm == ns.Norm(gain=model.norm.weight, project=False, eps=1e-6)
    assert (found.unchecked, found.problem) == (None, None)


def test_groups_of_a_gated_norm_are_found():
    found = ns.find(Block(Gated("after", F.silu, groups=2), BODIES["x first"]), inputs=EXAMPLE)["norm"]
    assert (found.norm.groups, found.norm.projects, str(found.gate)) == (2, False, "norm(x) ∘ silu(gate)")


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("place", ["before", "after"])
def test_what_is_certified_behind_a_gated_norm_is_never_passed(place, body):
    """Only a gate before the norm leaves its outputs in the ellipsoid; large weights show the difference."""
    torch.manual_seed(0)
    model = Block(Gated(place, F.silu), BODIES[body])
    nn.init.normal_(model.enter.weight, std=100.0)
    found = ns.ranges(model, inputs=EXAMPLE)
    certified = {layer.layer: layer for layer in found.layers if layer.bounded}
    assert ("leave" in certified) == (place == "before")
    outputs = model(torch.randn(4000, 1, SIZE)).detach().numpy()
    if place == "before":
        assert certified["leave"].ratio == pytest.approx(1.0, abs=1e-6)
        assert np.abs(outputs).max() <= np.abs([certified["leave"].low, certified["leave"].high]).max()
    else:
        reason = {missed.layer: missed.reason for missed in found.not_covered}["leave"]
        assert "norm(x) ∘ silu(gate)" in reason


@pytest.mark.parametrize("place", ["before", "after"])
def test_where_inputs_land_is_about_what_a_gated_norm_normalizes(place):
    torch.manual_seed(1)
    model = Block(Gated(place, F.silu), BODIES["x first"])
    x = torch.randn(1, 50, SIZE)
    (norm,) = ns.inspect(model, inputs={"x": x}).norms
    normalized = x[0] * F.silu(model.enter(x[0])) if place == "before" else x[0]
    risk = (normalized.mean(-1).abs() / normalized.std(-1, unbiased=False)).detach().numpy()
    assert norm.landing.mean_over_sigma.median == pytest.approx(np.median(risk), rel=1e-5)


class Modulated(nn.LayerNorm):
    def forward(self, x, shift=None, factor=None):
        y = super().forward(x)
        return y if shift is None else y * (1 + factor) + shift


def modulated():
    return Block(Modulated(SIZE), lambda self, x: self.norm(x, self.enter(x), factor=10 * x))


def test_a_norm_with_shift_and_factor_has_no_ellipsoid_and_no_landing_and_is_kept_by_swap():
    model = modulated()
    found = ns.find(model, inputs=EXAMPLE)["norm"]
    assert found.norm is None
    assert "is called with 3 values in the model (x, shift, factor)" in found.problem
    (norm,) = ns.inspect(model, inputs={"x": torch.randn(1, 5, SIZE)}).norms
    assert (norm.kind, norm.landing) == ("unknown", None)
    swapping = ns.swap(model, groups=2, only="*")
    assert [kept.norm for kept in swapping.kept] == ["norm"]
    assert swapping.module(*EXAMPLE).shape == (2, 5, 4)


class AnyArguments(nn.LayerNorm):
    def forward(self, *given):
        return super().forward(given[0]) * (1 + sum(given[1:]))


@pytest.mark.parametrize(
    ("norm", "reason"),
    [(Modulated(SIZE), "takes more than its input (x, shift, factor)"),
     (AnyArguments(SIZE), "takes more than its input (*given)")],
)  # fmt: skip
def test_swap_keeps_a_norm_that_may_be_given_more_where_nothing_was_traced(norm, reason):
    model = Block(norm, lambda self, x: self.norm(x, x, x))
    (kept,) = ns.swap(model, groups=2, only="*").kept
    assert kept.reason.startswith(reason)
    assert "its calls were not checked" in kept.reason


def test_the_same_norm_called_with_its_input_alone_is_what_it_is():
    model = Block(Modulated(SIZE), lambda self, x: self.norm(x))
    found = ns.find(model, inputs=EXAMPLE)["norm"]
    assert (found.kind, found.unchecked) == ("layernorm", None)
    assert "leave" in [layer.layer for layer in ns.ranges(model, inputs=EXAMPLE).layers]


def test_a_group_norm_is_judged_by_the_shape_that_it_is_called_with():
    """Over (N, C) it is LN-G; over (N, C, T) it takes its statistics over positions as well, and no ellipsoid holds."""
    norm = nn.GroupNorm(2, SIZE)
    vectors = Block(norm, lambda self, x: self.norm(x.flatten(0, 1)))
    assert ns.find(vectors, inputs=EXAMPLE)["norm"].kind == "lng"
    positions = Block(norm, lambda self, x: self.norm(x.mT).mT)
    found = ns.find(positions, inputs=EXAMPLE)["norm"]
    assert found.norm is None
    assert "the output for one vector depends on the others" in found.problem


def test_arguments_of_a_group_norm_are_seen_too():
    class Loud(nn.GroupNorm):
        def forward(self, x, factor=1.0):
            return factor * super().forward(x)

    model = Block(Loud(2, SIZE), lambda self, x: self.norm(x.flatten(0, 1), factor=100.0))
    assert ns.find(model, inputs=EXAMPLE)["norm"].norm is None
    found = ns.ranges(model, inputs=EXAMPLE)
    assert not found.not_covered  # the operation itself is followed, and its factor with it
    (leave,) = [layer for layer in found.layers if layer.layer == "leave"]
    torch.manual_seed(0)
    outputs = torch.cat([model(torch.randn_like(EXAMPLE[0])) for _ in range(20)])
    assert leave.low <= outputs.min()
    assert outputs.max() <= leave.high
    assert leave.high < 100 * (outputs.max() - outputs.min())


def test_capture_leaves_out_calls_with_more_than_the_input_and_says_so():
    model = modulated()
    with ns.capture(model) as captured:
        model(*EXAMPLE)
    assert captured.norms["norm"].input is None
    assert captured.skipped == {"norm": "is called with 3 tensors, not with its input alone"}


class Functional(nn.Module):
    """Norms without a module, as some small GPTs have them: on queries and keys, and before a layer."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x):
        x = F.layer_norm(x, (8,), 1 + self.scale)
        q, k = (F.rms_norm(side(x), (8,)) for side in (self.query, self.key))
        return self.out(torch.softmax(q @ k.mT, -1) @ x)


def test_calls_of_norm_functions_are_found_with_their_place_and_their_geometry():
    model = Functional()
    inventory = ns.find(model, inputs=(torch.zeros(1, 4, 8),))
    assert list(inventory) == ["forward:layer_norm", "forward:rms_norm:1", "forward:rms_norm:2"]
    first, second, _ = inventory.values()
    assert np.allclose(first.norm.gain, 1 + model.scale.detach().double().numpy(), rtol=0, atol=1e-15)
    assert first.function.startswith("test_in_place.py:")
    assert (first.kind, second.kind, second.norm.eps) == ("layernorm", "rmsnorm", torch.finfo(torch.float32).eps)
    assert inventory.graph.reads("forward:rms_norm:2") == ("key",)


def test_ranges_start_from_calls_of_functions_too():
    model = Functional()
    found = ns.ranges(model, inputs=torch.zeros(1, 4, 8))
    assert [layer.layer for layer in found.layers if layer.grade == "exact"] == ["query", "key", "out"]
    assert found.holds
    with torch.no_grad():
        x = 1e3 * torch.randn(500, 8)
        queries = model.query(F.layer_norm(x, (8,), 1 + model.scale)).numpy()
    assert found.layers[0].low <= queries.min()
    assert queries.max() <= found.layers[0].high


def test_inspect_sees_qk_norms_that_are_functions():
    model = Functional()
    inspection = ns.inspect(model, inputs={"x": torch.randn(1, 4, 8)})
    assert inspection.qk_norm
    assert inspection.norms[0].name == "forward:layer_norm"
    assert inspection.untraced is None


def test_a_gain_that_depends_on_the_input_is_no_norm_of_the_family():
    class Conditional(nn.Module):
        def forward(self, x):
            return F.layer_norm(x, (4,), x.mean((0, 1)))

    (found,) = ns.find(Conditional(), inputs=(torch.zeros(1, 3, 4),)).values()
    assert found.problem == "is called with a gain or bias that depends on the input of the model"


class Called(nn.Module):
    """A part that calls a function, and is itself called with one setting or another."""

    def __init__(self):
        super().__init__()
        self.leave, self.gain = nn.Linear(SIZE, SIZE), nn.Parameter(torch.rand(SIZE))

    def forward(self, x, factor=1.0, eps=1e-5):
        return self.leave(F.rms_norm(x, (SIZE,), factor * self.gain, eps))


@pytest.mark.parametrize("other", [{}, {"factor": 100.0}, {"eps": 1e-2}])
def test_a_function_at_one_place_is_what_it_is_in_all_its_calls(other):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Called()

        def forward(self, x):
            return self.part(self.part(x), **other)

    model = Twice()
    found = ns.find(model, inputs=EXAMPLE)["part:rms_norm"]
    ranges = ns.ranges(model, inputs=EXAMPLE)
    if not other:
        assert found.norm == ns.Norm(gain=model.part.gain, project=False, eps=1e-5)
        assert [layer.layer for layer in ranges.layers] == ["part.leave"]
    else:
        assert found.problem == "is called with different gains or settings in its 2 calls"
        assert [missed.layer for missed in ranges.not_covered] == ["part.leave"]


def test_without_a_trace_functions_are_not_said_to_be_absent():
    inspection = ns.inspect(Functional())
    assert inspection.norms == ()
    assert "an example input must be given for Functional" in inspection.untraced


def test_norms_of_weights_are_no_norms_of_activations():
    model = nn.Sequential(weight_norm(nn.Linear(4, 4)), nn.LayerNorm(4))
    assert list(ns.find(model)) == ["1"]


def test_a_norm_of_any_width_gets_the_width_it_is_called_with():
    class AnyWidthNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = 1e-6

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    model = nn.Sequential(nn.Linear(4, 6), AnyWidthNorm())
    assert ns.find(model)["1"].norm is None
    found = ns.find(model, inputs=(torch.zeros(2, 4),))["1"]
    assert (found.kind, found.size, found.norm.eps) == ("rmsnorm", 6, 1e-6)


def falcon_h1():
    config = transformers.FalconH1Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        mamba_d_ssm=16,
        mamba_n_heads=2,
        mamba_d_head=8,
        mamba_n_groups=1,
        mamba_d_state=8,
        mamba_chunk_size=8,
        mamba_rms_norm=True,
        pad_token_id=0,
    )
    return transformers.FalconH1ForCausalLM(config).eval()


def test_what_is_bounded_behind_the_gated_norm_of_falcon_h1_is_never_passed():
    """Its ellipsoid is left; and what its scan reads depends on the number of tokens, so that no bound is claimed."""
    torch.manual_seed(0)
    model = falcon_h1()
    model.model.layers[0].mamba.in_proj.weight.data *= 100
    found = ns.ranges(model)
    out_proj = "model.layers.0.mamba.out_proj"
    (found_layer,) = [layer for layer in found.layers if layer.layer == out_proj]
    assert found_layer.grade is None
    assert "than for input_ids" in found_layer.why
    seen = {}
    for layer in [layer for layer in found.layers if layer.bounded and layer.weight]:
        model.get_submodule(layer.layer).register_forward_hook(
            lambda module, args, output, layer=layer: seen.update({layer.layer: (layer, output.detach())})
        )
    model(torch.randint(32, (4, 8)))
    assert seen
    for layer, output in seen.values():
        slack = 1e-5 * max(-layer.low, layer.high)
        assert layer.low - slack <= output.min()
        assert output.max() <= layer.high + slack
