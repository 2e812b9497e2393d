"""Folding into experts and their streams, and their ranges: every way to apply a stack of matrices.

The matrices are square, so that sizes do not tell which axis is which.
"""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from transformers.integrations import moe  # noqa: F401  (registers the grouped product)

from architectures import random_model
from normscope import fold, ranges
from normscope.errors import NotCertifiedError
from normscope.models.example_inputs import example_inputs
from normscope.models.graph import trace
from normscope.results.folding import FOLDED, KEPT
from normscope.rewrite import stored_tensors
from normscope.rewrite.folded_weights import FoldedWeights

EXPERTS, SIZE, CHOSEN, TOKENS = 4, 6, 2, 7
NEVER = 3  # the expert that no token is sent to
IDS = torch.arange(TOKENS)


class Mixture(nn.Module):
    """A table, a LayerNorm, square experts with biases that are added to the stream, a LayerNorm, and a head."""

    def __init__(self, apply, seed=0):
        super().__init__()
        self.table, self.norm, self.last = nn.Embedding(TOKENS, SIZE), nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.router, self.head = nn.Linear(SIZE, EXPERTS), nn.Linear(SIZE, 3)
        self.up, self.down = (nn.Parameter(torch.empty(EXPERTS, SIZE, SIZE)) for _ in range(2))
        self.up_bias, self.down_bias = (nn.Parameter(torch.empty(EXPERTS, SIZE)) for _ in range(2))
        torch.manual_seed(seed)
        for values in self.parameters():
            nn.init.normal_(values)
        with torch.no_grad():
            self.router.bias[NEVER] = -100.0
        self.apply_experts = apply

    def forward(self, ids):
        x = self.table(ids)
        y = self.norm(x)
        shares, chosen = self.router(y).softmax(dim=-1).topk(CHOSEN)
        return self.head(self.last(x + self.apply_experts(self, y, shares, chosen)))


def weighted(out, shares):
    """The outputs of the experts of each token, in its order, as one."""
    return (out.view(-1, CHOSEN, SIZE) * shares[..., None]).sum(dim=1)


def among_all(out, shares, chosen):
    """The outputs (token, expert, channel) of all experts, of which the chosen ones count."""
    return (out * torch.zeros(len(out), EXPERTS).scatter(1, chosen, shares)[..., None]).sum(dim=1)


def one_token_at_a_time(self, y, shares, chosen):
    """What all others compute, as it is defined; it can't be traced."""
    rows = []
    for row, its_shares, its_experts in zip(y, shares, chosen.tolist(), strict=True):
        hidden = [
            torch.relu(row @ self.up[e] + self.up_bias[e]) @ self.down[e] + self.down_bias[e] for e in its_experts
        ]
        rows.append(sum(share * each for share, each in zip(its_shares, hidden, strict=True)))
    return torch.stack(rows)


def entry_by_entry(self, y, shares, chosen):
    made = [F.relu(y @ self.up[e] + self.up_bias[e]) @ self.down[e] + self.down_bias[e] for e in range(EXPERTS)]
    return among_all(torch.stack(made, dim=1), shares, chosen)


def entries_added_up(self, y, shares, chosen):
    total, gates = torch.zeros_like(y), torch.zeros(len(y), EXPERTS).scatter(1, chosen, shares)
    for e, (up, down) in enumerate(zip(self.up.unbind(), self.down.unbind(), strict=True)):
        hidden = F.linear(y, up.T, self.up_bias[e]).relu()
        total = total + gates[:, e : e + 1] * F.linear(hidden, down.transpose(0, 1), self.down_bias[e])
    return total


def side_by_side(self, y, shares, chosen):
    hidden = torch.bmm(y.expand(EXPERTS, -1, -1), self.up) + self.up_bias[:, None]
    out = torch.baddbmm(self.down_bias.unsqueeze(1), hidden.relu(), self.down)
    return among_all(out.transpose(0, 1), shares, chosen)


def matrices_on_the_left(self, y, shares, chosen):
    hidden = torch.matmul(self.up.mT, y.T) + self.up_bias.unsqueeze(-1)
    out = torch.matmul(self.down.permute(0, 2, 1), hidden.relu()) + self.down_bias[..., None]
    return among_all(out.permute(2, 0, 1), shares, chosen)


def by_einsum(self, y, shares, chosen):
    hidden = (torch.einsum("td,edf->tef", y, self.up) + self.up_bias).relu()
    return among_all(torch.einsum("efd,tef->ted", self.down, hidden) + self.down_bias, shares, chosen)


def a_matrix_for_every_row(self, y, shares, chosen):
    sent = chosen.reshape(-1)
    rows = y.repeat_interleave(CHOSEN, dim=0).unsqueeze(-1)
    hidden = torch.bmm(self.up[sent].transpose(1, 2), rows).squeeze(-1) + self.up_bias[sent]
    out = torch.bmm(hidden.relu().unsqueeze(1), self.down.index_select(0, sent)).squeeze(1)
    return weighted(out.add_(self.down_bias.index_select(0, sent)), shares)


def rows_in_groups(self, y, shares, chosen):
    sent, order = torch.sort(chosen.reshape(-1))
    ends = torch.cumsum(torch.histc(sent.float(), EXPERTS, 0, EXPERTS - 1), 0, dtype=torch.int32)
    hidden = grouped(y[order // CHOSEN], self.up, ends).add_(self.up_bias[sent]).relu()
    out = grouped(hidden, self.down, ends) + self.down_bias[sent]
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order))
    return weighted(out[back], shares)


def rows_put_back(self, y, shares, chosen):
    sent = chosen.reshape(-1)
    tokens = torch.arange(len(y)).repeat_interleave(CHOSEN)
    hidden = (torch.bmm(y[tokens].unsqueeze(1), self.up[sent]).squeeze(1) + self.up_bias[sent]).relu()
    out = torch.bmm(hidden.unsqueeze(1), self.down[sent]).squeeze(1) + self.down_bias[sent]
    total = torch.zeros_like(y)
    total.index_add_(0, tokens, out * shares.reshape(-1, 1))
    return total


def tokens_that_are_sent(self, y, shares, chosen):
    """As many rows for each expert as the numbers decide; none for one of them."""
    total = torch.zeros_like(y)
    for e in range(EXPERTS):
        tokens, place = torch.where(chosen == e)
        hidden = F.linear(y[tokens], self.up[e].T, self.up_bias[e]).relu()
        out = hidden @ self.down[e] + self.down_bias[e]
        total.index_add_(0, tokens, out * shares[tokens, place, None])
    return total


def grouped(rows, stack, ends):
    return torch.ops.transformers.grouped_mm_fallback(rows, stack, ends)


WAYS = {
    way.__name__: way
    for way in (
        entry_by_entry, entries_added_up, side_by_side, matrices_on_the_left, by_einsum, a_matrix_for_every_row,
        rows_in_groups, rows_put_back, tokens_that_are_sent,
    )
}  # fmt: skip


def outputs(model, *inputs, **named):
    with torch.no_grad():
        return model(*inputs, **named)


def oracle(model):
    """A copy that sends its tokens one at a time."""
    slow = copy.deepcopy(model)
    slow.apply_experts = one_token_at_a_time
    return slow


def verdict(folding, name="norm"):
    return next(each for each in folding.norms if each.norm == name)


@pytest.mark.parametrize("way", WAYS)
def test_experts_take_gain_and_bias_and_lose_their_mean_however_they_are_applied(way):
    model = Mixture(WAYS[way])
    folding = fold(model, inputs=IDS)
    assert folding.holds, folding.certificate
    assert folding.kept == {}
    assert {"up", "up_bias", "down", "down_bias"} <= set(folding.changed)
    assert torch.equal(folding.module.norm.weight, torch.ones(SIZE))
    assert not folding.module.norm.bias.any()
    assert folding.module.down.mean(dim=2).abs().max() < 1e-6
    for each in (model, folding.module, oracle(folding.module)):
        torch.testing.assert_close(outputs(each, IDS), outputs(oracle(model), IDS), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", ["side_by_side", "a_matrix_for_every_row", "rows_in_groups"])
def test_an_expert_that_no_token_of_the_example_is_sent_to_is_folded_too(way):
    model = Mixture(WAYS[way])
    folded = fold(model, inputs=IDS).module
    for each in (model, folded):
        with torch.no_grad():
            each.router.bias[NEVER] += 200.0  # now all are
    torch.testing.assert_close(outputs(folded, IDS), outputs(oracle(model), IDS), rtol=1e-4, atol=1e-4)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32 - 1),
    way=st.sampled_from(sorted(WAYS)),
    gain=st.sampled_from(["random", "zeros", "repeated", "huge"]),
)
def test_any_gains_fold_exactly_into_experts(seed, way, gain):
    model = Mixture(WAYS[way], seed % 2**31)
    with torch.no_grad():
        if gain == "zeros":
            model.norm.weight[::2] = 0.0
        elif gain == "repeated":
            model.norm.weight[1] = model.norm.weight[0]
            model.up[1], model.up_bias[1] = model.up[0], model.up_bias[0]  # an expert twice
        elif gain == "huge":
            model.norm.weight[0] *= -1e6
    folding = fold(model, inputs=IDS)
    assert folding.holds, folding.certificate
    assert verdict(folding).affine.what == FOLDED


def scores_before_the_experts(self, y, shares, chosen):
    gates = torch.zeros(len(y), EXPERTS).scatter(1, chosen, shares)
    rows = y.repeat(EXPERTS, 1) * gates.T.reshape(-1, 1)
    hidden = torch.bmm(rows.view(EXPERTS, -1, SIZE), self.up) + self.up_bias[:, None]
    return (torch.bmm(hidden.relu(), self.down) + self.down_bias[:, None]).sum(dim=0)


def biases_of_others(self, y, shares, chosen):
    hidden = torch.bmm(y.expand(EXPERTS, -1, -1), self.up) + self.up_bias.flip(0)[:, None]
    return (torch.bmm(hidden.relu(), self.down) + self.down_bias[:, None]).sum(dim=0)


def the_next_bias(self, y, shares, chosen):
    made = [F.linear(y, self.up[e].T, None) + self.up_bias[(e + 1) % EXPERTS] for e in range(EXPERTS)]
    return sum(each.relu() @ self.down[e] + self.down_bias[e] for e, each in enumerate(made))


def rows_that_are_not_sorted(self, y, shares, chosen):
    sent = chosen.reshape(-1)
    ends = torch.cumsum(torch.histc(sent.float(), EXPERTS, 0, EXPERTS - 1), 0, dtype=torch.int32)
    hidden = grouped(y.repeat_interleave(CHOSEN, dim=0), self.up, ends).add_(self.up_bias[sent]).relu()
    return weighted(grouped(hidden, self.down, ends) + self.down_bias[sent], shares)


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (scores_before_the_experts, "gets it multiplied by an unknown factor"),
        (biases_of_others, "has no bias"),
        (the_next_bias, "has no bias"),
        (rows_that_are_not_sorted, "has no bias"),
    ],
)
def test_a_bias_stays_where_it_does_not_go_with_its_matrix(apply, reason):
    folding = fold(Mixture(apply), inputs=IDS)
    assert folding.holds, folding.certificate
    assert verdict(folding).affine.what == FOLDED
    assert "its bias stays as b/g" in verdict(folding).affine.reason
    assert reason in verdict(folding).affine.reason
    assert "up_bias" not in folding.changed


def largest_of_each_expert(self, y, shares, chosen):
    largest = torch.bmm(y.expand(EXPERTS, -1, -1), self.up).topk(1).values  # not followed by a bias, nor by one tensor
    return largest.sum(dim=0) * self.up_bias[0]


def test_anything_may_follow_the_product():
    folding = fold(Mixture(largest_of_each_expert), inputs=IDS)
    assert folding.holds, folding.certificate
    assert verdict(folding).affine.reason.startswith("gain into router, the model; its bias stays as b/g")


def also_summed(self, y, shares, chosen):
    return side_by_side(self, y, shares, chosen) * self.up.sum()


def also_chosen_for_a_penalty(self, y, shares, chosen):
    stack = self.up[chosen[:, 0]]
    return torch.bmm(y.unsqueeze(1), stack).squeeze(1) * stack.pow(2).sum()


def both_ways_round(self, y, shares, chosen):
    return (y @ self.up + y @ self.up.mT).sum(dim=0)


def a_stack_with_another_norm(self, y, shares, chosen):
    return (y @ self.up).sum(dim=0) + (self.last(self.table(IDS)) @ self.up).sum(dim=0)


def in_another_order(self, y, shares, chosen):
    return (y @ self.up[:, torch.tensor([1, 0, 2, 3, 4, 5])]).sum(dim=0)


def tokens_added_up_first(self, y, shares, chosen):
    return torch.einsum("td,edf->ef", y, self.up).sum(dim=0).expand(len(y), -1)


def channels_over_experts(self, y, shares, chosen):
    return (y @ self.up.reshape(SIZE, -1)).view(-1, EXPERTS, SIZE).sum(dim=1)


@pytest.mark.parametrize(
    ("apply", "reason"),
    [
        (also_summed, "multiplies with up, which the model uses too"),
        (also_chosen_for_a_penalty, "which is not a product with one stored matrix"),
        (both_ways_round, "multiplies with up and with its transpose"),
        (a_stack_with_another_norm, "multiplies with up, which the model uses too"),
        (in_another_order, "which is not a product with one stored matrix"),
        (tokens_added_up_first, "which is not a product with one stored matrix"),
        (channels_over_experts, "which is not a product with one stored matrix"),
    ],
)
def test_a_gain_stays_where_the_stack_is_more_than_a_reader(apply, reason):
    model = Mixture(apply)
    folding = fold(model, inputs=IDS)
    assert folding.holds, folding.certificate
    assert verdict(folding).affine.what == KEPT
    assert reason in verdict(folding).affine.reason
    assert torch.equal(folding.module.norm.weight, model.norm.weight)


@pytest.mark.parametrize("left_out", ["up", "up_bias", "down", "down_bias"])
def test_one_expert_that_is_left_out_breaks_the_certificate_though_no_token_meets_it(left_out, monkeypatch, tmp_path):
    model, honest = Mixture(rows_in_groups), FoldedWeights.__getitem__

    def without_one(self, name):
        values = honest(self, name)
        if name == left_out:
            values[NEVER] = getattr(model, name)[NEVER].detach().double()
        return values

    monkeypatch.setattr(FoldedWeights, "__getitem__", without_one)
    folding = fold(model, inputs=IDS)
    assert not folding.holds
    assert folding.certificate.broken
    assert folding.certificate.rewrite_difference < 1e-9  # the run alone does not see it
    with pytest.raises(NotCertifiedError):
        folding.save(tmp_path / "folded")
    assert not (tmp_path / "folded").exists()


class ListOfExperts(nn.Module):
    """Experts that are modules, one of them twice; every token goes to all, or to some."""

    def __init__(self, *, to_all):
        super().__init__()
        self.to_all = to_all
        self.table, self.norm, self.router = nn.Embedding(TOKENS, SIZE), nn.LayerNorm(SIZE), nn.Linear(SIZE, 3)
        one, other = (nn.Sequential(nn.Linear(SIZE, SIZE), nn.ReLU(), nn.Linear(SIZE, SIZE)) for _ in range(2))
        self.experts, self.last, self.head = nn.ModuleList([one, other, one]), nn.LayerNorm(SIZE), nn.Linear(SIZE, 3)
        torch.manual_seed(0)
        for values in self.parameters():
            nn.init.normal_(values)

    def forward(self, ids):
        x = self.table(ids)
        y = self.norm(x)
        gates = self.router(y).softmax(dim=-1)
        if self.to_all:
            made = torch.stack([expert(y) for expert in self.experts], dim=-2)
            return self.head(self.last(x + (made * gates.unsqueeze(-1)).sum(dim=-2)))
        total, (shares, chosen) = torch.zeros_like(y), gates.topk(CHOSEN)
        for number, expert in enumerate(self.experts):
            tokens, place = torch.where(chosen == number)
            total.index_add_(0, tokens, expert(y[tokens]) * shares[tokens, place, None])
        return self.head(self.last(x + total))


@pytest.mark.parametrize("to_all", [True, False])
def test_experts_in_a_list_are_layers_like_others_also_if_one_is_there_twice(to_all):
    folding = fold(ListOfExperts(to_all=to_all), inputs=IDS)
    assert folding.holds, folding.certificate
    assert folding.kept == {}
    assert {"experts.0.0.weight", "experts.1.0.weight", "experts.0.2.bias"} <= set(folding.changed)


@pytest.mark.parametrize(
    ("model", "experts"),
    [(Mixture(tokens_that_are_sent), {"up", "down"}),
     (ListOfExperts(to_all=False), {f"experts.{expert}.{layer}" for expert in range(2) for layer in (0, 2)})],
)  # fmt: skip
def test_experts_that_get_as_many_tokens_as_the_numbers_decide_are_named_where_nothing_bounds_them(model, experts):
    found = ranges(model, inputs=IDS, tight=0)
    named = {row.layer: row for row in found.layers}
    assert set(named) == experts | {"router", "head"}
    assert {name for name, row in named.items() if not row.bounded} == experts
    assert all("as many rows as the numbers decide" in named[name].why for name in experts)
    assert found.limit.unbounded >= 2 * len(experts)
    assert {each.layer for each in found.not_covered} == experts


def test_experts_in_a_list_that_get_every_token_are_bounded():
    found = ranges(ListOfExperts(to_all=True), inputs=IDS, tight=0)
    assert len(found.layers) == 6
    assert all(row.bounded for row in (*found.layers, *found.tensors))


MODELS = {  # of those that transformers has: how many norms, how many of them with gain 1
    "mixtral": (5, 5), "gpt_oss": (5, 5), "deepseek_v3": (9, 9), "granitemoe": (5, 5), "phimoe": (5, 5),
    "llama4_text": (6, 5), "qwen3_moe": (9, 5), "olmoe": (9, 5),
}  # fmt: skip


@pytest.mark.parametrize("architecture", MODELS)
def test_a_written_model_holds_with_every_implementation_of_experts(architecture, tmp_path):
    from transformers import AutoModelForCausalLM

    model = random_model(architecture)
    folding = fold(model, out=tmp_path / "folded")
    assert folding.holds, folding.certificate
    assert (len(folding.norms), sum(each.affine.what == FOLDED for each in folding.norms)) == MODELS[architecture]
    assert sum("experts" in name for name in folding.changed) > 0
    example = {**example_inputs(model), "use_cache": False}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "folded").eval()
    expected = outputs(model, **example).logits
    for implementation in ("eager", "grouped_mm", "batched_mm") if architecture != "llama4_text" else ("its own",):
        if implementation != "its own":
            loaded.set_experts_implementation(implementation)
            assert loaded.config._experts_implementation == implementation
        apart = outputs(loaded, **example).logits - expected
        assert apart.abs().max() < 1e-4 * expected.abs().max()


def test_a_plan_reads_stacks_in_parts_and_decides_the_same(tmp_path, monkeypatch):
    model = random_model("mixtral")
    model.save_pretrained(tmp_path / "model")
    monkeypatch.setattr(stored_tensors, "BLOCK", 64)
    planned = fold(tmp_path / "model", plan=True)
    assert planned.norms == fold(model).norms
    assert all(each.affine.what == FOLDED for each in planned.norms)


def test_the_layout_is_found_in_bfloat16_where_torch_multiplies_groups_itself():
    model = random_model("gpt_oss").to(torch.bfloat16)
    graph = trace(model, example_inputs(model))
    kinds = {str(node.target) for node in graph.multiplications if "experts" in graph.multiplications[node].weight}
    assert kinds == {"aten._grouped_mm.default"}
    folding = fold(model)
    assert folding.holds, folding.certificate
    assert sum(each.affine.what == FOLDED for each in folding.norms) == len(folding.norms)
