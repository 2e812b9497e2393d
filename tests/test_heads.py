import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from normscope import capture
from tiny_models import CONFIGS, SMALL, TOKENS

GROUPED = {**SMALL, **TOKENS, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
MODELS = {
    "gpt2": CONFIGS["gpt2"],
    "bert": CONFIGS["bert"],
    "gptj": ("GPTJForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "rotary_dim": 4,
                                 "vocab_size": 50, **TOKENS}),
    "bloom": ("BloomForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, **TOKENS}),
    "mpt": ("MptForCausalLM", {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 16, "vocab_size": 50,
                               **TOKENS}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8, "attn_logit_softcapping": 3.0,
                                     "query_pre_attn_scalar": 5}),
    "llama": ("LlamaForCausalLM", GROUPED),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 2}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    "t5": CONFIGS["t5"],
    "longformer": ("LongformerModel", {**SMALL, "attention_window": 4}),
}  # fmt: skip
IDS = torch.arange(2, 16).reshape(2, 7)
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]])


def tiny(architecture, attention="eager"):
    """Every parameter random, but small enough that no attention weight is lost to rounding."""
    torch.manual_seed(0)
    name, choices = MODELS[architecture]
    config = transformers.AutoConfig.for_model(architecture, **choices, attn_implementation=attention)
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def captured_heads(model, **inputs):
    with torch.no_grad(), capture(model, norms=False, heads=True) as captured:
        answer = model(**inputs)
    return captured.heads, answer


def weights(heads, added=0.0):
    """Attention from its definition."""
    scores = heads.scale * torch.einsum("bhqd,bhkd->bhqk", heads.query, heads.key)
    if heads.softcap is not None:
        scores = heads.softcap * torch.tanh(scores / heads.softcap)
    return torch.softmax(scores + added, dim=-1)


def added_by(architecture):
    """Masks and, for the two models with linear position biases and two heads, 2^-4 and 2^-8 per position."""
    allowed = PADDED[:, None, None, :].bool()
    if architecture != "bert":
        allowed = allowed & torch.ones(7, 7, dtype=torch.bool).tril()
    slopes = torch.tensor([2.0**-4, 2.0**-8]) if architecture in ("bloom", "mpt") else torch.zeros(1)
    return torch.where(allowed, 0.0, -torch.inf) + slopes[:, None, None] * torch.arange(7)


@pytest.mark.parametrize(
    "architecture", ["gpt2", "bert", "gptj", "bloom", "mpt", "gemma2", "llama", "mixtral", "qwen3"]
)
def test_queries_and_keys_give_the_attention_weights_of_the_model(architecture):
    heads, answer = captured_heads(
        tiny(architecture), input_ids=IDS, attention_mask=PADDED, output_attentions=True, use_cache=False
    )
    assert len(heads) == len(answer.attentions) == 2
    real = PADDED.bool()  # a row of a padding query means nothing
    for layer, expected in zip(heads.values(), answer.attentions, strict=True):
        ours = weights(layer, added_by(architecture))
        torch.testing.assert_close(ours.transpose(1, 2)[real], expected.transpose(1, 2)[real], atol=1e-6, rtol=1e-4)
        assert torch.equal(layer.mask, real)


@pytest.mark.parametrize("padded", [None, PADDED], ids=["whole", "padded"])
@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "qwen3"])
def test_the_fused_function_shows_the_same_as_the_product(architecture, padded):
    inputs = {"input_ids": IDS, "attention_mask": padded}
    eager, _ = captured_heads(tiny(architecture, "eager"), **inputs)
    fused, _ = captured_heads(tiny(architecture, "sdpa"), **inputs)
    assert list(eager) == list(fused)
    real = torch.ones_like(IDS).bool() if padded is None else padded.bool()
    for name in eager:
        for side in ("query", "key"):
            ours, theirs = (getattr(seen[name], side).transpose(1, 2)[real] for seen in (eager, fused))
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        assert eager[name].scale == pytest.approx(fused[name].scale)
        assert eager[name].groups == fused[name].groups


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_heads_that_share_their_keys_are_named_as_a_group(attention):
    heads, _ = captured_heads(tiny("llama", attention), input_ids=IDS)
    layer = heads["model.layers.0.self_attn"]
    assert layer.query.shape == layer.key.shape == (2, 4, 7, 8)
    assert layer.groups == (0, 0, 1, 1)


def test_experts_that_are_chosen_by_a_softmax_are_no_heads():
    heads, _ = captured_heads(tiny("mixtral"), input_ids=IDS)
    assert list(heads) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]


def test_softcap_and_scale_are_told_apart():
    heads, _ = captured_heads(tiny("gemma2"), input_ids=IDS)
    layer = heads["model.layers.0.self_attn"]
    assert (layer.scale, layer.softcap) == (pytest.approx(5**-0.5), pytest.approx(3.0))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_mask_is_that_of_the_sequence_of_the_keys(attention):
    heads, _ = captured_heads(tiny("t5", attention), input_ids=IDS, attention_mask=PADDED, decoder_input_ids=IDS)
    assert torch.equal(heads["encoder.block.0.layer.0.SelfAttention"].mask, PADDED.bool())
    assert heads["decoder.block.0.layer.0.SelfAttention"].mask is None
    assert torch.equal(heads["decoder.block.0.layer.1.EncDecAttention"].mask, PADDED.bool())


def test_a_decoder_has_its_own_mask():
    of_decoder = PADDED.flip(0)
    heads, _ = captured_heads(
        tiny("t5"), input_ids=IDS, attention_mask=PADDED, decoder_input_ids=IDS, decoder_attention_mask=of_decoder
    )
    assert torch.equal(heads["decoder.block.0.layer.0.SelfAttention"].mask, of_decoder.bool())
    assert torch.equal(heads["decoder.block.0.layer.1.EncDecAttention"].mask, PADDED.bool())


def test_a_mask_of_another_sequence_of_the_same_length_is_not_taken():
    class TwoTowers(nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.image = tiny("bert"), Layer(by_matmul)

        def forward(self, input_ids, attention_mask, image):
            return self.text(input_ids, attention_mask=attention_mask), self.image(image)

    heads, _ = captured_heads(TwoTowers(), input_ids=IDS, attention_mask=PADDED, image=torch.randn(2, 7, 8))
    assert heads["image"].mask is None
    assert torch.equal(heads["text.encoder.layer.0.attention.self"].mask, PADDED.bool())


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_mask_without_padding_is_there_too(attention):
    heads, _ = captured_heads(tiny("llama", attention), input_ids=IDS, attention_mask=torch.ones_like(IDS))
    assert torch.equal(heads["model.layers.1.self_attn"].mask, torch.ones_like(IDS).bool())


def test_a_mask_is_found_where_it_is_given_by_position():
    model = tiny("bert")
    with torch.no_grad(), capture(model, norms=False, heads=True) as captured:
        model(IDS, PADDED)
        model(IDS)
    seen = captured.heads["encoder.layer.0.attention.self"]
    assert torch.equal(seen.mask, torch.cat([PADDED, torch.ones_like(PADDED)]).bool())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("appended", [True, False])
def test_multi_head_attention_of_torch_is_seen(batch_first, need_weights, appended):
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 4, batch_first=batch_first, add_zero_attn=appended).eval()
    x, sources = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 4 + [True]])
    inputs = [x, sources, sources] if batch_first else [y.transpose(0, 1) for y in (x, sources, sources)]
    with torch.no_grad(), capture(model, heads=True) as captured:
        model(*inputs, key_padding_mask=padding, need_weights=need_weights)
    _, expected = model(*inputs, key_padding_mask=padding, average_attn_weights=False)
    heads = captured.heads[""]
    assert torch.equal(heads.mask[:, :5], ~padding)
    assert heads.mask.shape == (2, 5 + appended)
    added = torch.where(heads.mask, 0.0, -torch.inf)[:, None, None]
    torch.testing.assert_close(weights(heads, added), expected)


def test_the_encoder_of_torch_takes_no_short_cut():
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    with torch.no_grad(), capture(model, heads=True) as captured:
        model(torch.randn(2, 5, 16))
    assert list(captured.heads) == ["layers.0.self_attn", "layers.1.self_attn"]


class Layer(nn.Module):
    """Attention by a given function of queries (B, T, H·D), keys and the number of heads, which returns its weights."""

    def __init__(self, attend, heads=2, size=8):
        super().__init__()
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
        self.attend, self.heads = attend, heads

    def forward(self, x):
        self.weights = self.attend(self.query(x), self.key(x), self.heads)
        return x + self.weights.sum()


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, H, T, D)


def by_matmul(query, key, heads):
    return ((split(query, heads) @ split(key, heads).mT) / 3).softmax(-1)


def by_operators_in_place(query, key, heads):
    scores = torch.matmul(split(query, heads), split(key, heads).transpose(2, 3))
    scores *= torch.tensor(0.5)
    scores /= 2.0
    scores += torch.zeros(scores.shape[-1])
    scores.masked_fill_(torch.zeros_like(scores, dtype=torch.bool), -torch.inf)
    return nn.Softmax(dim=3)(scores)


def by_einsum(query, key, heads):
    query, key = query.unflatten(-1, (heads, -1)), key.unflatten(-1, (heads, -1))
    return functional.softmax(3.0 * torch.einsum("bkhd, bqhd -> bhqk", key, query), dim=-1, dtype=torch.float32)


def by_batches_of_matrices(query, key, heads):
    query, key = (split(x, heads).flatten(0, 1) for x in (query, key))
    bias = query.new_zeros(1, 1, 1)
    return torch.softmax(torch.baddbmm(bias, query, key.mT, beta=1.0, alpha=0.7), dim=2)


def by_a_cap_and_a_mask_of_ones(query, key, heads):
    scores = split(query, heads) @ split(key, heads).mT
    capped = 4 * torch.tanh(scores * 0.3 / 4)
    return torch.softmax((capped * torch.ones(scores.shape[-2:])).float(), dim=-1)


def by_groups(query, key, heads):
    query, key = split(query, heads)[:, None], split(key, heads)[:, None, :1]
    return torch.softmax(query @ key.mT, dim=-1).flatten(1, 2)


WAYS = [by_matmul, by_operators_in_place, by_einsum, by_batches_of_matrices, by_a_cap_and_a_mask_of_ones, by_groups]


@settings(deadline=None, max_examples=60)
@given(
    way=st.sampled_from(WAYS),
    batch=st.integers(1, 3),
    tokens=st.integers(1, 5),
    heads=st.integers(1, 3),
    size=st.integers(1, 4),
    seed=st.integers(0, 2**16),
)
def test_any_way_to_write_attention_is_seen(way, batch, tokens, heads, size, seed):
    torch.manual_seed(seed)
    model = Layer(way, heads, heads * size)
    x = torch.randn(batch, tokens, heads * size)
    with capture(model, heads=True) as captured:
        answer = model(x)
    seen = captured.heads[""]
    assert seen.query.shape == seen.key.shape == (batch, heads, tokens, size)
    assert not seen.query.requires_grad
    torch.testing.assert_close(weights(seen), model.weights.detach().view(batch, heads, tokens, tokens))
    assert torch.equal(answer, model(x))


def by_numpy(query, key, heads):
    scores = np.einsum("bqd,bkd->bqk", query.detach().numpy(), key.detach().numpy())
    return torch.softmax(torch.from_numpy(scores), dim=-1)


def by_sigmoid(query, key, heads):
    return torch.softmax(torch.sigmoid(split(query, heads) @ split(key, heads).mT), dim=-1)


def by_two_products(query, key, heads):
    query, key = split(query, heads), split(key, heads)
    return torch.softmax(query @ key.mT + key @ query.mT, dim=-1)


def over_the_queries(query, key, heads):
    return torch.softmax(split(query, heads) @ split(key, heads).mT, dim=-2)


def with_a_cap_after_a_bias(query, key, heads):
    return torch.softmax(torch.tanh(split(query, heads) @ split(key, heads).mT + torch.rand(1)), dim=-1)


def with_a_factor_per_head(query, key, heads):
    return torch.softmax(split(query, heads) @ split(key, heads).mT * torch.rand(heads, 1, 1), dim=-1)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (by_sigmoid, "1: sigmoid between product and softmax"),
        (by_two_products, "1: a sum of products"),
        (over_the_queries, "1: a softmax over axis -2 of 4, not over the keys"),
        (with_a_cap_after_a_bias, "1: tanh between product and softmax"),
        (with_a_factor_per_head, "1: mul between product and softmax"),
        (by_numpy, "1: Layer showed none"),
    ],
)
def test_a_layer_whose_attention_is_not_understood_is_an_error_that_names_it(way, reason):
    model = nn.Sequential(Layer(by_matmul), Layer(way))
    with capture(model, heads=True) as captured:
        model(torch.randn(2, 5, 8))
    with pytest.raises(RuntimeError, match=reason):
        _ = captured.heads


def test_a_layer_can_be_asked_for_where_others_show_nothing():
    model = nn.Sequential(Layer(by_matmul), Layer(by_numpy))
    with capture(model, heads=["0"]) as captured:
        model(torch.randn(2, 5, 8))
    assert list(captured.heads) == ["0"]
    with capture(model, heads=["1"]) as captured:
        model(torch.randn(2, 5, 8))
    with pytest.raises(RuntimeError, match="got none in 1: nothing seen"):
        _ = captured.heads
    with pytest.raises(ValueError, match=r"names of modules of the model, got \['2'\]"):
        capture(model, heads=["2"])


def test_attention_of_another_kind_is_named():
    model = tiny("longformer")
    with torch.no_grad(), capture(model, norms=False, heads=True) as captured:
        model(input_ids=IDS)
    with pytest.raises(RuntimeError, match=r"encoder.layer.1.attention.self: LongformerSelfAttention showed none"):
        _ = captured.heads


def test_a_model_without_attention_has_no_empty_result():
    model = nn.Sequential(nn.Linear(3, 3), nn.Softmax(dim=-1))
    with capture(model, heads=True) as captured:
        with pytest.raises(RuntimeError, match="must run inside"):
            _ = captured.heads
        model(torch.zeros(1, 2, 3))
    with pytest.raises(RuntimeError, match="got none in any module"):
        _ = captured.heads


def test_heads_must_be_asked_for():
    with capture(Layer(by_matmul)) as captured:
        pass
    with pytest.raises(RuntimeError, match="heads=True"):
        _ = captured.heads


def test_calls_of_one_length_are_joined_until_cleared():
    model = Layer(by_matmul)
    with capture(model, heads=True) as captured:
        model(torch.randn(2, 5, 8))
        model(torch.randn(1, 5, 8))
        assert captured.heads[""].query.shape == (3, 2, 5, 4)
        captured.clear()
        with pytest.raises(RuntimeError, match="must run"):
            _ = captured.heads
        model(torch.randn(1, 3, 8))
        assert captured.heads[""].key.shape == (1, 2, 3, 4)
        model(torch.randn(1, 4, 8))
    with pytest.raises(ValueError, match="same shape to be joined"):
        _ = captured.heads[""].key


def test_what_was_seen_is_kept_when_the_model_goes_on_in_the_same_memory():
    def attend_and_overwrite(query, key, heads):
        weights = by_matmul(query, key, heads)
        query.detach().zero_()
        return weights

    model = Layer(attend_and_overwrite)
    with torch.no_grad(), capture(model, heads=True) as captured:
        model(torch.ones(1, 2, 8))
    assert captured.heads[""].query.abs().min() > 0


def hooks(model):
    return [hook for module in model.modules() for hook in (*module._forward_hooks, *module._forward_pre_hooks)]


def test_the_model_is_as_it_was_afterwards_even_after_an_error():
    def stop(query, key, heads):
        raise RuntimeError("stop")

    model = nn.Sequential(Layer(by_matmul), Layer(stop))
    with pytest.raises(RuntimeError, match="stop"), capture(model, heads=True):
        model(torch.randn(1, 2, 8))
    assert not hooks(model)
    assert not torch.overrides._get_current_function_mode_stack()


def test_an_error_inside_the_model_does_not_disturb_the_next_call():
    model = nn.Sequential(Layer(by_matmul), nn.LayerNorm(8))
    with capture(model, heads=True) as captured:
        with pytest.raises(RuntimeError):
            model(torch.randn(1, 2, 9))
        captured.clear()
        model(torch.randn(1, 2, 8))
    assert list(captured.heads) == ["0"]
    assert captured.norms["1"].input.shape == (1, 2, 8)


def test_attention_outside_the_model_is_not_recorded():
    model = Layer(by_matmul)
    x = torch.randn(1, 2, 3, 4)
    with capture(model, heads=True) as captured:
        functional.scaled_dot_product_attention(x, x, x)
        Layer(by_matmul)(torch.randn(4, 2, 8))
        model(torch.randn(1, 2, 8))
    assert captured.heads[""].query.shape == (1, 2, 2, 4)
