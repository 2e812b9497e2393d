"""Bounds hold for inputs of every size, not only for that of the traced call."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from architectures import random_model
from normscope import ranges
from normscope.models.graph import trace
from normscope.models.second_trace import TwoSizes
from test_tensor_ranges import Bounds, Case, attended, drawn, written_up_to_eight

LENGTHS = (1, 2, 3, 5, 8, 13, 40)


def outside(module, value, lengths=LENGTHS):
    """Outputs of a module beyond the bounds of its output, for inputs of several lengths and batches."""
    low, high = value.hull()
    slack = 1e-9 * (1 + min(abs(low), 1e300) + min(abs(high), 1e300))
    found = []
    for length in lengths:
        torch.manual_seed(length)
        for batch, factor in ((1, 1.0), (3, 30.0)):
            made = module.double()(factor * torch.randn(batch, length, 6, dtype=torch.float64))
            if made.numel() and not (low - slack <= made.min() and made.max() <= high + slack):
                found.append((batch, length, float(made.min()), float(made.max()), low, high))
    return found


def joined(m, x, y):
    """Eight rows of a table before the tokens."""
    return torch.cat([m.table[None, :8, None].expand(len(x), 8, 6), y], 1)


def weights_over_all(m, y):
    return torch.softmax(m.a(y) @ m.b(y).mT, -1)


def token_by_token(m, x, y):
    state = torch.zeros_like(y[:, 0])
    for at in range(x.shape[1]):
        state = state + m.a(y)[:, at]
    return state


def in_place(m, x, y):
    state = torch.zeros_like(y[:, 0])
    for at in range(x.shape[1]):
        state.add_(m.a(y)[:, at])
    return state


def written_in_place(m, x, y):
    made = torch.zeros_like(y)
    total = torch.zeros_like(y[:, 0])
    for at in range(x.shape[1]):
        total = total + m.a(y)[:, at]
        made[:, at] = total
    return made


def in_pieces(m, x, y, size=64):
    """Sums of every piece of 64 tokens, added up: one piece at 8 and at 13 tokens."""
    padded = F.pad(y, (0, 0, 0, -y.shape[1] % size))
    return padded.view(len(x), -1, size, 6).mean(2).sum(1) * 64


ROWS = torch.arange(8.0) * 100
DEPENDS = {  # modules that are another function at another length, or reach further there
    "product with a root": lambda m, x, y: m.a(y) * math.sqrt(x.shape[1]),
    "quotient by a count": lambda m, x, y: m.a(y) / x.shape[1],
    "mean as a sum": lambda m, x, y: m.a(y).sum(1) * (1 / x.shape[1]),
    "sum": lambda m, x, y: m.a(y).sum(1),
    "length of a column": lambda m, x, y: m.a(y).norm(dim=1),
    "scale of attention": lambda m, x, y: F.scaled_dot_product_attention(y, y, m.c(y), scale=float(x.shape[1])) * 2,
    "softmax of a number of tokens": lambda m, x, y: weights_over_all(m, y) @ m.c(y) * math.log(1 + x.shape[1]),
    "power": lambda m, x, y: torch.pow(m.a(y), 1 + x.shape[1] % 3),
    "limit": lambda m, x, y: torch.clamp(x, -float(x.shape[1]), float(x.shape[1])),
    "filled": lambda m, x, y: y + torch.full((6,), float(x.shape[1])),
    "filled, whole": lambda m, x, y: y + torch.full((6,), x.shape[1]),
    "constant in the code": lambda m, x, y: y + torch.tensor([float(x.shape[1])] * 6),
    "row of a table by the length": lambda m, x, y: y + m.table[min(x.shape[1], 40) - 1 :][:1],
    "last row of a table": lambda m, x, y: y + m.table[: x.shape[1]][-1:],
    "rows after eight": lambda m, x, y: joined(m, x, y * 1e4)[:, : x.shape[1]],
    "weights of the first eight": lambda m, x, y: weights_over_all(m, y)[..., :8] @ (m.c(y) + 50)[:, :8],
    "sum of the first of weights": lambda m, x, y: (weights_over_all(m, y)[..., :8, None] * (y + 50)[:, None, :8]).sum(
        2
    ),
    "a branch by the length": lambda m, x, y: m.a(y) if x.shape[1] <= 8 else 100 * m.b(y),
    "token by token": token_by_token,
    "in place": in_place,
    "written in place": written_in_place,
    "in pieces": in_pieces,
    "a norm over tokens": lambda m, x, y: F.layer_norm(x.mT, (x.shape[1],)),
    "a norm over tokens beside a loop": lambda m, x, y: (
        F.layer_norm(x.mT, (x.shape[1],))[:, :, 0] + token_by_token(m, x, y)
    ),
    "a number from a list": lambda m, x, y: y * torch.tensor([1, 2, 3, 4, 5, 6, 7, 8, 900])[min(x.shape[1], 9) - 1],
    "written up to eight": written_up_to_eight,
    "rows that see nothing beyond eight": lambda m, x, y: attended(
        m, y + 100, (torch.arange(x.shape[1])[:, None] <= 7).expand(x.shape[1], x.shape[1])
    ),
    "squares over tokens": lambda m, x, y: x.mT * torch.rsqrt((x.mT**2).mean(-1, keepdim=True) + 1e-6),
    "as many heads as tokens": lambda m, x, y: torch.einsum("btc,bsc->bts", m.a(y), m.b(y)).sum(-1),
    "turned by the length": lambda m, x, y: (y * m.table[:6]).roll(x.shape[1], -1)[..., :1],
    "channels by the length": lambda m, x, y: (y * m.table[:6])[..., x.shape[1] % 6 :][..., :1],
    "unbound": lambda m, x, y: joined(m, x, y * 1e4).unbind(1)[x.shape[1]],
}


@pytest.mark.parametrize("name", DEPENDS)
def test_what_depends_on_the_length_stays_within_its_bounds_at_every_length(name):
    module = Case(DEPENDS[name], table=torch.cat([ROWS, torch.arange(40.0) * 1000]))
    found = Bounds(module, torch.randn(1, 8, 6)).output
    assert outside(module, found) == []


ALIKE = {  # modules that are the same function at every length
    "a layer": lambda m, x, y: m.a(y),
    "attention": lambda m, x, y: attended(m, y),
    "causal attention": lambda m, x, y: attended(m, y, torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()),
    "mean": lambda m, x, y: m.a(y).mean(1),
    "neurons": lambda m, x, y: m.c(F.silu(m.a(y)) * m.b(y)),
    "as many channels as tokens": lambda m, x, y: m.a(y).sum(-1),
    "heads of as many channels as a batch": lambda m, x, y: m.a(y).view(*x.shape[:2], 3, 2).sum(-1),
    "first token": lambda m, x, y: m.a(y)[:, 0],
    "last token": lambda m, x, y: m.a(y)[:, -1:],
}


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("shape", [(1, 8, 6), (2, 6, 6), (3, 2, 6), (6, 1, 6)])
def test_bounds_of_the_same_function_are_the_same_at_every_length(name, shape):
    module = Case(ALIKE[name])
    found, long = (Bounds(module, torch.randn(each)).output for each in (shape, (2, 23, 6)))
    assert np.isfinite(found.hull()).all()
    assert np.allclose(found.hull(), long.hull(), rtol=1e-12)
    assert outside(module, found) == []


def test_the_reason_names_the_number_and_both_sizes():
    found = Bounds(Case(lambda m, x, y: m.a(y) / x.shape[1]), torch.randn(1, 8, 6)).output
    assert found.why == "a number that follows from the size of the input: 8 for x 1 × 8 × 6, 263 for x 2 × 263 × 6"


def test_a_model_of_one_size_says_so_and_is_bounded_at_that_size():
    module = Case(lambda m, x, y: m.a(y.view(1, 8, 6)).sum(1))
    found = ranges(module, inputs=torch.randn(1, 8, 6))
    assert np.isfinite(found.tensors[-1].high)
    assert found.sizes == "Traced with x 1 × 8 × 6; the model takes inputs of no other size"
    assert found.sizes in " ".join(found.remarks())


def test_positions_end_where_a_table_does():
    """Lengths beyond a table of positions can't be traced: a shorter one is."""
    module = Case(lambda m, x, y: y + m.table[: x.shape[1], None], table=torch.arange(9.0))
    sizes = TwoSizes(module, trace(module, (torch.randn(1, 8, 6),)))
    assert sizes.second_size == "x 2 × 5 × 6"


def test_the_second_size_is_no_dimension_of_the_model():
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 263), nn.Linear(263, 2))
    assert TwoSizes(model, trace(model, (torch.randn(1, 8, 6),))).second_size == "input 3 × 264 × 6"


def slowly(*names):
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", ["gpt2", "clip", *slowly("whisper", "vit", "wav2vec2")])
def test_architectures_are_the_same_function_at_both_sizes(name):
    model = random_model(name)
    sizes = TwoSizes(model, Bounds(model, drawn(model) if name == "vit" else None).search.graph)
    assert sizes.second is not None
    assert [why for node in sizes.graph.nodes if (why := sizes.differs(node))] == []


@pytest.mark.parametrize("name", ["gemma3_text", "mamba", *slowly("llama", "t5", "deepseek_v3", "gpt_oss")])
def test_outputs_of_longer_texts_stay_within_the_bounds(name):
    model = random_model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)
        low, high = Bounds(model, drawn(model)).output.hull()
        for length in (1, 3, 24):
            made = model(**drawn(model, length=length))[0]
            assert low <= made.min()
            assert made.max() <= high
