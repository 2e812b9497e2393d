"""Dropout with four numbers in a draw, against what it must do, and attention with it against torch's."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from normscope.errors import InputError
from normscope_lab.training.dropout import Dropout, dropped
from normscope_lab.training.transformer import Attention, attention_weights


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 3 / 65536])
def test_as_many_entries_are_dropped_as_the_rate_says(rate):
    torch.manual_seed(0)
    lost = int((dropped(torch.ones(1001, 1003), rate) == 0).sum())
    assert binomtest(lost, 1001 * 1003, round(rate * 65536) / 65536).pvalue > 1e-3


def test_what_is_kept_is_scaled_and_so_is_its_gradient():
    torch.manual_seed(1)
    x = torch.randn(7, 9, dtype=torch.float64, requires_grad=True)
    out = dropped(x, 0.25)
    kept = out != 0
    assert torch.allclose(out, torch.where(kept, x / 0.75, 0.0))
    out.sum().backward()
    assert torch.allclose(x.grad, kept.double() / 0.75)


def test_entries_are_dropped_independently():
    torch.manual_seed(2)
    kept = (dropped(torch.ones(200_000, 4), 0.3) != 0).double().numpy()  # the four numbers of a draw side by side
    together = np.corrcoef(np.hstack([kept[:-1], kept[1:]]).T) - np.eye(8)
    assert np.abs(together).max() < 5 / np.sqrt(200_000)


@pytest.mark.parametrize("shape", [(0,), (1,), (), (3, 5)])
def test_any_shape_is_kept(shape):
    out = dropped(torch.ones(shape), 0.5)
    assert out.shape == torch.Size(shape)
    assert set(out.flatten().tolist()) <= {0.0, 2.0}


def test_nothing_is_dropped_when_a_model_is_judged():
    x = torch.randn(4, 4)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    assert torch.equal(Dropout(1.0)(x), nn.Dropout(1.0)(x))


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_rates_that_are_no_share_are_refused(rate):
    with pytest.raises(InputError, match="dropout must be from 0 to 1, got"):
        Dropout(rate)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_weights_are_those_of_torch(causal, masked):
    torch.manual_seed(3)
    query, key, value = torch.randn(3, 2, 3, 6, 4, dtype=torch.float64)
    mask = (torch.rand(2, 1, 1, 6) < 0.6).logical_or(torch.arange(6) == 0) if masked else None
    both = mask if not causal else torch.ones(6, 6, dtype=torch.bool).tril() & (mask if masked else True)
    theirs = scaled_dot_product_attention(query, key, value, attn_mask=both)
    assert torch.allclose(attention_weights(query, key, mask, causal=causal) @ value, theirs)


def test_attention_in_training_is_that_without_dropout_on_average():
    torch.manual_seed(4)
    attention, x = Attention(8, 2, dropout=0.2).double(), torch.randn(1, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        drawn = torch.stack([attention(x, causal=True) for _ in range(4000)])
        expected = attention.eval()(x, causal=True)
    error = drawn.std(dim=0) / len(drawn) ** 0.5
    assert ((drawn.mean(dim=0) - expected).abs() <= 5 * error + 1e-12).all()
