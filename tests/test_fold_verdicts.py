"""What is folded and what is kept, on small models that are hard cases: strict, with the reason, and never wrong."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope import fold
from normscope.results.folding import AFTER_LOOKUP, FOLDED, KEPT


class Example(nn.Module):
    """Writers, norms and readers of six channels, and a body that a test writes."""

    def __init__(self, body):
        super().__init__()
        self.table, self.positions = nn.Embedding(9, 6), nn.Parameter(torch.empty(4, 6))
        self.norm, self.other, self.rms = nn.LayerNorm(6), nn.LayerNorm(6), nn.RMSNorm(6, eps=1e-6)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.without = nn.Linear(6, 6, bias=False)
        self.grouped = nn.Conv1d(6, 6, 1, groups=2)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.weight, self.bias = nn.Parameter(torch.empty(6, 6)), nn.Parameter(torch.empty(6))
        self.register_buffer("waves", torch.empty(4, 6), persistent=False)
        self.register_buffer("saved", torch.empty(4, 6))
        torch.manual_seed(0)
        for values in (*self.parameters(), *self.buffers()):
            nn.init.normal_(values)
        self.body = body

    def forward(self, ids):
        return self.body(self, ids)


IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def folded(body):
    """The folding of a model with this body, which must be right whatever was decided."""
    folding = fold(Example(body), inputs=IDS)
    assert folding.holds
    return folding


def verdict(folding, name="norm"):
    return next(found for found in folding.norms if found.norm == name)


def changed_in_place(value, change):
    change(value)
    return value


CENTRED = {
    "one table": lambda self, ids: self.first(self.norm(self.table(ids))),
    "positions": lambda self, ids: self.first(self.norm(self.table(ids) + self.positions)),
    "a saved buffer": lambda self, ids: self.first(self.norm(self.table(ids) + self.saved)),
    "some of the positions": lambda self, ids: self.first(self.norm(self.table(ids[:, :2]) + self.positions[1:3])),
    "a difference": lambda self, ids: self.first(self.norm(self.table(ids) - 2 * self.positions)),
    "tokens joined": lambda self, ids: self.first(
        self.norm(torch.cat([self.bias.expand(2, 1, 6), self.table(ids)], dim=1))
    ),
    "a scaled table": lambda self, ids: self.first(self.norm(self.table(ids) * 6**0.5)),
    "masked tokens": lambda self, ids: self.first(self.norm(self.table(ids) * (ids > 2)[..., None].float())),
    "a convolution": lambda self, ids: self.first(
        self.norm(self.conv(self.table(ids).transpose(1, 2)).transpose(1, 2) + self.positions)
    ),
    "split tokens": lambda self, ids: self.first(self.norm(self.table(ids).split(2, dim=1)[1])),
    "added in place": lambda self, ids: self.first(self.norm(self.table(ids).add_(self.positions))),
    "a plain matrix": lambda self, ids: self.first(self.norm(self.table(ids).tanh() @ self.weight + self.bias)),
    "rows by index": lambda self, ids: self.first(self.norm(self.table.weight[ids] + self.positions)),
    "the same norm twice": lambda self, ids: self.first(self.norm(self.second(self.norm(self.table(ids)).tanh()))),
    "two norms": lambda self, ids: self.first(self.norm(x := self.table(ids))) + self.second(self.other(x)),
    "dropout": lambda self, ids: self.first(self.norm(F.dropout(self.table(ids), 0.5, training=False))),
    "a cast": lambda self, ids: self.first(self.norm(self.table(ids).double().float())),
}  # fmt: skip


@pytest.mark.parametrize("what", CENTRED)
def test_a_mean_is_removed_where_all_that_is_written_can_be_centred(what):
    folding = folded(CENTRED[what])
    assert verdict(folding).centring.what == FOLDED
    seen = []
    folding.module.norm.register_forward_hook(lambda _, args, output: seen.append(args[0]))
    with torch.no_grad():
        folding.module(IDS)
    assert len(seen) == (2 if what == "the same norm twice" else 1)
    for x in seen:
        assert x.mean(dim=-1).abs().max() < 1e-5 * x.abs().max()


NOT_CENTRED = {
    "an activation": (lambda self, ids: self.first(self.norm(self.table(ids).relu())),
                      r"relu in the model \(relu\) writes to its stream and is not a linear map"),
    "a reader of the stream": (lambda self, ids: self.first(self.norm(x := self.table(ids))) + self.second(x),
                               r"linear in second \(linear_1\) reads the same stream and depends on its mean"),
    "an output": (lambda self, ids: (self.first(self.norm(x := self.table(ids))), x),
                  "the output of the model reads the same stream and depends on its mean"),
    "an RMSNorm": (lambda self, ids: self.first(self.norm(x := self.table(ids))) + self.second(self.rms(x)),
                   "rms reads the same stream and does not subtract its mean"),
    "an RMSNorm that writes": (lambda self, ids: self.first(self.norm(self.rms(self.table(ids)))),
                               "rms writes to its stream and does not subtract the mean"),
    "convolved in groups": (lambda self, ids: self.first(self.norm(self.grouped(self.table(ids).mT).mT)),
                            r"conv1d in grouped \(conv1d\) writes to its stream and is not a linear map"),
    "positions made anew": (lambda self, ids: self.first(self.norm(self.table(ids) + self.waves)),
                            "waves, which is not stored in checkpoints"),
    "a number added": (lambda self, ids: self.first(self.norm(self.table(ids) + 1)),
                       r"add in the model \(add\) adds 1 to all channels"),
    "channels turned round": (lambda self, ids: self.first(self.norm(self.table(ids).flip(-1))), "flip in the model"),
    "half of the channels": (lambda self, ids: self.first(self.norm(self.table(ids)[..., :3].repeat(1, 1, 2))),
                             "takes the channels of .* apart"),
    "heads": (lambda self, ids: self.first(self.norm(self.table(ids).view(2, 4, 3, 2).flatten(2))),
              "takes the channels of .* apart"),
    "channels scaled": (lambda self, ids: self.first(self.norm(self.table(ids) * self.bias)), "mul in the model"),
    "changed in place": (lambda self, ids: self.first(self.norm(changed_in_place(self.table(ids), torch.relu_))),
                         "relu in the model"),
    "a part changed in place": (lambda self, ids: self.first(
        self.norm(changed_in_place(self.table(ids), lambda x: x[:, 0].zero_()))), "zero in the model"),
    "a shared layer": (lambda self, ids: self.norm(self.second(self.table(ids))) + self.second(self.positions),
                       r"second writes to its stream with second.weight, which second uses too"),
    "whole numbers": (lambda self, ids: self.first(self.norm(x := self.table(ids))) + self.second(x.long().float()),
                      "reads the same stream and depends on its mean"),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_CENTRED)
def test_a_mean_stays_where_something_sees_it_with_the_deciding_node(what):
    body, reason = NOT_CENTRED[what]
    decision = verdict(folded(body)).centring
    assert decision.what == KEPT
    assert re.search(reason, decision.reason)


AFFINE = {
    "two readers": lambda self, y: self.first(y) * self.second(y),
    "some tokens": lambda self, y: self.first(y[:, 0]),
    "a factor": lambda self, y: self.first(0.5 * y),
    "a divisor": lambda self, y: self.first(y / 3),
    "read twice": lambda self, y: self.first(y[:, 1]) - self.first(y[:, :1]),
    "a plain matrix": lambda self, y: y @ self.weight + self.bias,
}


@pytest.mark.parametrize("what", AFFINE)
def test_linear_readers_take_gain_and_bias(what):
    folding = folded(lambda self, ids: AFFINE[what](self, self.norm(self.table(ids).relu())))
    assert verdict(folding).affine.what == FOLDED
    assert verdict(folding).affine.reason.startswith("gain and bias into")
    assert folding.module.norm.weight.tolist() == [1.0] * 6
    assert not folding.module.norm.bias.any()


GAIN_ONLY = {
    "no bias": (lambda self, y: self.first(y) + self.without(y), "its reader without has no bias"),
    "a factor for each token": (lambda self, y: self.first(y * y.new_ones(4, 1)), "an unknown factor"),
    "two factors": (lambda self, y: self.first(2 * y) - self.first(y), "multiplied by an unknown factor"),
    "a shared bias": (lambda self, y: F.linear(y, self.weight, self.bias) + F.linear(y, self.without.weight, self.bias),
                      "has the bias bias, which the model uses too"),
}  # fmt: skip


@pytest.mark.parametrize("what", GAIN_ONLY)
def test_without_a_bias_of_their_own_readers_take_the_gain_and_the_norm_keeps_b_over_g(what):
    body, reason = GAIN_ONLY[what]
    model = Example(lambda self, ids: body(self, self.norm(self.table(ids).relu())))
    folding = fold(model, inputs=IDS)
    assert folding.holds
    assert verdict(folding).affine.what == FOLDED
    assert reason in verdict(folding).affine.reason
    torch.testing.assert_close(folding.module.norm.bias, model.norm.bias / model.norm.weight)


NOT_AFFINE = {
    "a skip": (lambda self, y: self.first(y) + y, r"its output is also the skip of the model \(add\)"),
    "only a sum": (lambda self, y: self.positions + y, r"its output is added to the stream by the model \(add\)"),
    "an output": (lambda self, y: (self.first(y), y), "its output is also an output of the model"),
    "an activation": (lambda self, y: self.first(y.relu()), r"its output is read by relu in the model \(relu_1\)"),
    "a convolution": (lambda self, y: self.conv(y.mT), r"its output is read by conv1d in conv"),
    "another norm": (lambda self, y: self.first(self.other(y)), "its output is read by layer_norm in other"),
    "a shared layer": (lambda self, y: self.first(y) + self.first(self.positions),
                       "its reader first multiplies with first.weight, which first uses too"),
    "two norms, one layer": (lambda self, y: self.first(y) + self.first(self.other(self.positions)),
                             "its reader first multiplies with first.weight, which first uses too"),
    "its own gain elsewhere": (lambda self, y: self.first(y) * self.norm.weight,
                               "it has norm.weight, which the model uses too"),
    "changed in place": (lambda self, y: self.first(changed_in_place(y, torch.relu_)), "its output is read by relu"),
    "doubled in place": (lambda self, y: self.first(changed_in_place(y, lambda y: y.mul_(2))),
                         "its output is read by mul"),
    "a matrix and its transpose": (lambda self, y: y @ self.weight + y @ self.weight.T,
                                   "multiplies with weight and with its transpose"),
    "multiplied by nothing": (lambda self, y: self.first(y * 0), "its output is read by mul"),
    "turned round": (lambda self, y: self.first(y.flip(-1)), "its output is read by flip"),
    "nothing": (lambda self, y: self.first(self.positions) + 0 * y.new_zeros(()), "no layer reads its output"),
}  # fmt: skip


@pytest.mark.parametrize("what", NOT_AFFINE)
def test_a_gain_stays_where_a_reader_is_not_linear_with_the_deciding_node(what):
    body, reason = NOT_AFFINE[what]
    decision = verdict(folded(lambda self, ids: body(self, self.norm(self.table(ids).relu())))).affine
    assert decision.what == KEPT
    assert re.search(reason, decision.reason)


def test_a_tied_table_stays_and_all_else_of_its_stream_is_centred():
    def body(self, ids):
        return F.linear(self.norm(self.table(ids) + self.positions), self.table.weight)

    folding = folded(body)
    assert verdict(folding).centring.what == AFTER_LOOKUP
    assert "table writes to its stream with table.weight, which the model uses too" in verdict(folding).centring.reason
    assert folding.changed == ("positions",)
    assert folding.tied == ()  # no module of its own holds the head: a copy could not be put anywhere


def test_a_norm_that_is_not_run_or_not_known_is_kept():
    folding = fold(
        nn.Sequential(nn.Conv1d(6, 6, 1), nn.GroupNorm(2, 6), nn.BatchNorm1d(6)), inputs=torch.randn(2, 6, 5)
    )
    assert "averages over space as well" in folding.kept["1"]
    assert "affine map" in folding.kept["2"]
    unused = folded(lambda self, ids: self.first(self.table(ids)))
    assert unused.kept["norm"] == "the traced call does not run it"


def test_a_tensor_that_overlaps_another_is_not_touched():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4))
    memory = torch.randn(6, 4)
    model[1].weight, model[1].bias = nn.Parameter(memory[:4]), nn.Parameter(memory.view(-1)[14:18])
    nn.init.normal_(model[0].weight)
    decision = fold(model, inputs=torch.randn(2, 4)).norms[0].affine
    assert (decision.what, "shares memory with another tensor" in decision.reason) == (KEPT, True)


def test_a_module_that_holds_a_weight_and_is_not_run_forbids_its_change():
    model = Example(lambda self, ids: self.first(self.norm(self.table(ids))))
    model.second.weight = model.first.weight
    decision = verdict(fold(model, inputs=IDS)).affine
    assert (decision.what, "which second holds too, and the traced call does not run that" in decision.reason) == (
        KEPT,
        True,
    )


def test_an_eps_is_read_from_the_graph_and_not_from_an_estimate():
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            x = x - x.mean(-1, keepdim=True)
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 3e-3) * self.weight

    folding = fold(nn.Sequential(nn.Embedding(5, 4), Norm(), nn.Linear(4, 2)), inputs=torch.arange(5), rms=True)
    assert folding.module[1].eps == 3e-3
    assert folding.certificate.rewrite_difference < 1e-14


def test_a_shared_norm_is_replaced_under_all_its_names():
    model = Example(
        lambda self, ids: self.first(self.again(self.second(self.norm(self.table(ids))).tanh() @ self.weight))
    )
    model.again = model.norm
    folding = fold(model, inputs=IDS, rms=True)
    assert folding.holds
    assert folding.replaced == ("norm",)
    assert folding.module.again is folding.module.norm


def test_two_parameters_in_one_memory_are_one_tensor():
    model = nn.Sequential(nn.Embedding(6, 4), nn.LayerNorm(4), nn.Linear(4, 6, bias=False))
    model[2].weight = nn.Parameter(model[0].weight.detach())
    nn.init.normal_(model[1].weight)
    folding = fold(model, inputs=torch.arange(6))
    assert folding.holds
    assert (verdict(folding, "1").centring.what, verdict(folding, "1").affine.what) == (AFTER_LOOKUP, KEPT)
    assert folding.changed == ()
