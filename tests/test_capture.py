import pytest
import torch
from torch import nn

from normscope import capture
from tiny_models import tiny_model


def test_inputs_and_outputs_are_those_of_the_modules():
    model = tiny_model("gpt2")
    with capture(model) as captured, torch.no_grad():
        model(input_ids=torch.arange(8)[None], use_cache=False)
    assert list(captured.norms) == ["h.0.ln_1", "h.0.ln_2", "h.1.ln_1", "h.1.ln_2", "ln_f"]
    for name, seen in captured.norms.items():
        assert seen.input.shape == (1, 8, 16)
        assert torch.equal(model.get_submodule(name)(seen.input), seen.output)


def test_calls_are_joined_until_cleared():
    model = nn.Sequential(nn.LayerNorm(4))
    with capture(model) as captured:
        model(torch.zeros(2, 4))
        model(torch.ones(3, 4))
        assert captured.norms["0"].input.shape == (5, 4)
        captured.clear()
        assert captured.norms["0"].input is None
        model(torch.ones(1, 4))
    assert captured.norms["0"].output.shape == (1, 4)


def test_pieces_of_other_lengths_are_joined_token_by_token():
    model = nn.Sequential(nn.LayerNorm(4))
    with capture(model) as captured:
        model(torch.zeros(1, 5, 4))
        model(torch.ones(1, 3, 4))
    assert captured.norms["0"].input.shape == (8, 4)


def test_the_model_is_as_it_was_afterwards_even_after_an_error():
    model = nn.Sequential(nn.LayerNorm(4))
    with pytest.raises(RuntimeError, match="stop"), capture(model):
        raise RuntimeError("stop")
    assert not model[0]._forward_hooks
    with capture(model, norms=["0"]) as captured:
        pass
    model(torch.zeros(2, 4))
    assert captured.norms["0"].input is None


def test_a_norm_called_with_keywords_is_seen():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(4)

        def forward(self, x):
            return self.norm(input=x)

    model = Model()
    with capture(model) as captured:
        model(torch.ones(2, 4))
    assert captured.norms["norm"].input.shape == (2, 4)


def test_an_unknown_norm_leaves_no_hook_behind():
    model = nn.Sequential(nn.LayerNorm(4))
    with pytest.raises(AttributeError, match="other"):
        capture(model, norms=["0", "other"]).__enter__()
    assert not model[0]._forward_hooks


def test_norms_and_heads_are_captured_together():
    model = tiny_model("gpt2")
    with capture(model, heads=True) as captured, torch.no_grad():
        model(input_ids=torch.arange(8)[None], use_cache=False)
    assert captured.norms["h.0.ln_1"].output.shape == (1, 8, 16)
    assert captured.heads["h.0.attn"].query.shape == (1, 2, 8, 8)


def test_one_name_instead_of_a_list_is_refused():
    with pytest.raises(ValueError, match="norms must be True, False or a list of names, got the one name 'ln_f'"):
        capture(nn.Sequential(nn.LayerNorm(4)), norms="ln_f")
