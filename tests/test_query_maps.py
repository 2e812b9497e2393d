"""Maps from norms to queries and keys, against hand-written weights and against the models themselves."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from normscope import capture, find
from normscope.models.query_maps import HeadMaps, NoMapError, TracedRun, norms_before_keys, two_tokens
from tiny_models import CONFIGS, GROUPED, SMALL, TOKENS

TOKENS_RUN = torch.arange(2, 16).reshape(2, 7)
MODELS = {
    **{name: CONFIGS[name] for name in ("gpt2", "bert", "llama", "t5", "qwen3", "olmo2", "phi")},
    "gptj": ("GPTJForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "rotary_dim": 4,
                                 "vocab_size": 50, **TOKENS}),
    "bloom": ("BloomForCausalLM", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50, **TOKENS}),
    "mpt": ("MptForCausalLM", {"d_model": 16, "n_layers": 2, "n_heads": 2, "max_seq_len": 16, "vocab_size": 50,
                               **TOKENS}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 2}),
    "modernbert": ("ModernBertModel", {**SMALL, **TOKENS, "cls_token_id": 1, "sep_token_id": 2}),
}  # fmt: skip
FEEDING = {  # of the last layer: where queries come from, and where keys do
    "gpt2": ("transformer.h.1.ln_1", "transformer.h.1.ln_1"),
    "bert": ("encoder.layer.0.output.LayerNorm", "encoder.layer.0.output.LayerNorm"),
    "llama": ("model.layers.1.input_layernorm", "model.layers.1.input_layernorm"),
    "t5": ("decoder.block.0.layer.1.layer_norm", "encoder.final_layer_norm"),
    "qwen3": ("model.layers.1.self_attn.q_norm", "model.layers.1.self_attn.k_norm"),
    "olmo2": ("model.layers.1.self_attn.q_norm", "model.layers.1.self_attn.k_norm"),
    "phi": ("model.layers.1.input_layernorm", "model.layers.1.input_layernorm"),
    "gptj": ("transformer.h.1.ln_1", "transformer.h.1.ln_1"),
    "bloom": ("transformer.h.1.input_layernorm", "transformer.h.1.input_layernorm"),
    "mpt": ("transformer.blocks.1.norm_1", "transformer.blocks.1.norm_1"),
    "gemma2": ("model.layers.1.input_layernorm", "model.layers.1.input_layernorm"),
    "mixtral": ("model.layers.1.input_layernorm", "model.layers.1.input_layernorm"),
    "modernbert": ("layers.1.attn_norm", "layers.1.attn_norm"),
}
ROTARY = {"llama", "qwen3", "olmo2", "phi", "gptj", "gemma2", "mixtral"}


def tiny(architecture):
    """Every parameter random, in eval mode, float32 as models come."""
    torch.manual_seed(0)
    name, settings = MODELS[architecture]
    config = transformers.AutoConfig.for_model(architecture, **settings, attn_implementation="eager")
    model = getattr(transformers, name)(config).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def inputs_of(model):
    decodes = hasattr(model.config, "is_encoder_decoder") and model.config.is_encoder_decoder
    return {"input_ids": TOKENS_RUN, **({"decoder_input_ids": TOKENS_RUN} if decodes else {})}


def real_run(model, inputs):
    """Outputs of all norms and what the heads saw."""
    with capture(model, heads=True) as captured, torch.no_grad():
        model(**inputs)
    return {name: seen.output for name, seen in captured.norms.items()}, captured.heads


@pytest.mark.parametrize("architecture", MODELS)
def test_maps_give_the_queries_and_keys_of_the_real_run(architecture):
    model = tiny(architecture)
    inputs = inputs_of(model)
    outputs, heads = real_run(model, inputs)
    maps = HeadMaps(model, list(outputs), inputs)
    for layer, seen in heads.items():
        for side in ("query", "key"):
            states = getattr(seen, side).double().numpy()
            for head in range(states.shape[1]):
                for row, position in ((0, 6), (1, 6), (1, 3)):
                    found = maps.map(layer, side, head, outputs, row, position, states[row, head, position])
                    y = found.inputs(outputs[found.norm], row, position)
                    scale = np.abs(states[row, head]).max()
                    assert np.abs(found.matrix @ y + found.shift - states[row, head, position]).max() < 1e-5 * scale
    last = list(heads)[-1]
    fed_by = [maps.map(last, side, 0, outputs, 0, 6, getattr(heads[last], side)[0, 0, 6].double().numpy()).norm
              for side in ("query", "key")]  # fmt: skip
    assert tuple(fed_by) == FEEDING[architecture]


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3"])
def test_a_map_serves_all_positions_unless_they_are_embedded_by_rotation(architecture):
    model = tiny(architecture)
    inputs = inputs_of(model)
    outputs, heads = real_run(model, inputs)
    maps = HeadMaps(model, list(outputs), inputs)
    layer, seen = next(iter(heads.items()))
    keys = seen.key.double().numpy()
    found = maps.map(layer, "key", 0, outputs, 0, 6, keys[0, 0, 6])
    assert maps.serves_all(found, outputs, 0, keys[0, 0]) == (architecture not in ROTARY)


def test_the_map_of_gpt2_is_a_slice_of_its_weights():
    model = tiny("gpt2")
    run = TracedRun(model.double(), list(find(model)), two_tokens(model, inputs_of(model), position=6))
    projection = model.transformer.h[1].attn.c_attn
    weight, bias = projection.weight.detach().numpy().T, projection.bias.detach().numpy()
    for head in range(2):
        for start, side in ((0, "query"), (16, "key")):
            rows = slice(start + 8 * head, start + 8 * head + 8)
            found = run.map("transformer.h.1.attn", side, head)
            assert found.matrix == pytest.approx(weight[rows], abs=1e-15)
            assert found.shift == pytest.approx(bias[rows], abs=1e-13)
            assert (found.vector, found.axis) == ((0, 1), 1)


def test_the_map_of_llama_is_its_projection_turned_to_the_position():
    model = tiny("llama")
    run = TracedRun(model.double(), list(find(model)), two_tokens(model, inputs_of(model), position=6))
    angles = 6 * 10000.0 ** (-np.arange(4) / 4)
    turn = np.block(
        [[np.diag(np.cos(angles)), -np.diag(np.sin(angles))], [np.diag(np.sin(angles)), np.diag(np.cos(angles))]]
    )
    for side, weight, rows in (("query", "q_proj", slice(8, 16)), ("key", "k_proj", slice(0, 8))):
        matrix = getattr(model.model.layers[0].self_attn, weight).weight.detach().numpy()[rows]
        found = run.map("model.layers.0.self_attn", side, head=1)  # the two query heads share one key head
        assert found.matrix == pytest.approx(turn @ matrix, abs=1e-6)  # transformers keeps angles in float32


def test_norms_on_queries_read_the_head_of_their_own():
    model = tiny("qwen3").double()
    run = TracedRun(model, list(find(model)), two_tokens(model, inputs_of(model), position=6))
    found = run.map("model.layers.0.self_attn", "query", head=1)
    assert (found.norm, found.vector, found.axis) == ("model.layers.0.self_attn.q_norm", (0, 1, 1), 1)
    assert found.matrix @ found.matrix.T == pytest.approx(np.eye(8), abs=1e-6)  # a rotation


@pytest.mark.parametrize(
    ("architecture", "norms"),
    [
        ("gpt2", ["transformer.h.0.ln_1", "transformer.h.1.ln_1"]),
        ("bert", ["embeddings.LayerNorm", "encoder.layer.0.output.LayerNorm"]),
        ("qwen3", ["model.layers.0.input_layernorm", "model.layers.1.input_layernorm"]),
        ("olmo2", ["model.layers.0.self_attn.k_norm", "model.layers.1.self_attn.k_norm"]),
        (
            "t5",
            ["encoder.block.0.layer.0.layer_norm", "decoder.block.0.layer.0.layer_norm", "encoder.final_layer_norm"],
        ),
    ],
)
def test_the_norm_before_attention_gives_one_vector_per_token(architecture, norms):
    model = tiny(architecture)
    assert list(norms_before_keys(model, list(find(model)), inputs_of(model)).values()) == norms


class Attention(nn.Module):
    """One head; `bend` is done to what its queries are made of."""

    def __init__(self, bend=lambda x: x):
        super().__init__()
        self.q, self.k = nn.Linear(8, 4), nn.Linear(8, 4)
        self.bend = bend

    def forward(self, x):
        return torch.nn.functional.scaled_dot_product_attention(
            self.q(self.bend(x))[:, None], self.k(x)[:, None], self.k(x)[:, None]
        )


class Block(nn.Module):
    def __init__(self, bend=lambda x: x, before=lambda norm, other, x: norm(x)):
        super().__init__()
        self.norm, self.other, self.attention = nn.LayerNorm(8), nn.LayerNorm(8), Attention(bend)
        self.before = before

    def forward(self, x):
        return self.attention(self.before(self.norm, self.other, x))


def refused(block, dtype=torch.float64):
    torch.manual_seed(0)
    run = TracedRun(block.to(dtype).eval(), ["norm", "other"], {"x": torch.randn(1, 2, 8)})
    with pytest.raises(NoMapError) as error:
        run.map("attention", "query", 0)
    return str(error.value)


def test_what_has_no_affine_map_of_one_output_of_one_norm_is_refused_in_words():
    assert "an affine map of one output of norm does not give the query" in refused(Block(torch.tanh))
    assert "2 outputs of norm feed the query at once" in refused(Block(lambda x: x.cumsum(1)))
    assert "more than one norm feeds the query: norm, other" in refused(
        Block(before=lambda norm, other, x: norm(x) + other(x))
    )
    assert "no norm stands before the query" in refused(Block(before=lambda norm, other, x: x))
    assert "norm runs more than once" in refused(Block(before=lambda norm, other, x: norm(norm(x))))
    assert "an affine map of one output of norm does not give the query" in refused(
        Block(before=lambda norm, other, x: norm(x) + x)
    )
    assert "float32 or float64, got bfloat16" in refused(Block(), torch.bfloat16)


def test_a_map_that_the_real_run_contradicts_is_refused():
    block = Block().eval()
    x = torch.randn(1, 5, 8)
    outputs, heads = real_run(block, {"x": x})
    maps = HeadMaps(block, ["norm", "other"], {"x": x})
    seen = heads["attention"].query[0, 0, 4].double().numpy()
    assert maps.map("attention", "query", 0, outputs, 0, 4, seen).norm == "norm"
    maps = HeadMaps(block, ["norm", "other"], {"x": x})
    for _ in range(2):  # it is remembered
        with pytest.raises(NoMapError, match="in the real run, an affine map of norm does not give the query"):
            maps.map("attention", "query", 0, outputs, 0, 4, seen + 1.0)


def test_a_layer_that_runs_twice_is_not_guessed_at():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            for _ in range(2):
                x = self.attention(*[self.norm(x)] * 3)[0]
            return x

    run = TracedRun(Twice().eval(), ["norm"], {"x": torch.randn(1, 2, 8)})
    with pytest.raises(NoMapError, match="attention runs more than once"):
        run.map("attention", "key", 0)


def test_a_norm_that_a_residual_stream_goes_past_is_not_the_one_before_the_keys():
    block = Block(before=lambda norm, other, x: norm(x) + x).eval()
    (reason,) = norms_before_keys(block, ["norm", "other"], {"x": torch.randn(1, 2, 8)}).values()
    assert str(reason) == "the keys do not come from norm alone: other tokens change them past it"


def test_layer_norms_on_keys_are_looked_through_though_their_outputs_add_up_to_nothing():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.of_keys, self.q = nn.LayerNorm(8), nn.LayerNorm(4), nn.Linear(8, 8)

        def forward(self, x):
            heads = self.q(self.norm(x)).unflatten(-1, (2, 4))
            heads = self.of_keys(heads).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)

    model = nn.Sequential(Normed()).eval()
    assert norms_before_keys(model, ["0.norm", "0.of_keys"], {"input": torch.randn(1, 2, 8)}) == {"0": "0.norm"}


def test_the_model_is_left_as_it_was():
    model = tiny("gpt2")
    before = {name: values.clone() for name, values in model.state_dict().items()}
    outputs, heads = real_run(model, inputs_of(model))
    layer, seen = next(iter(heads.items()))
    HeadMaps(model, list(outputs), inputs_of(model)).map(
        layer, "query", 0, outputs, 0, 6, seen.query[0, 0, 6].double().numpy()
    )
    norms_before_keys(model, list(outputs), inputs_of(model))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(values, before[name]) for name, values in model.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_a_model_in_training_is_asked_without_its_dropout_and_goes_on_training():
    model = tiny("gpt2").train()
    before = [module.training for module in model.modules()]
    run = TracedRun(model, list(find(model)), two_tokens(model, inputs_of(model), position=6))
    assert run.map("transformer.h.1.attn", "query", 0).norm == "transformer.h.1.ln_1"
    assert [module.training for module in model.modules()] == before


def test_two_tokens_are_told_where_they_stand():
    model = tiny("llama")
    batch = {"input_ids": TOKENS_RUN, "attention_mask": torch.ones_like(TOKENS_RUN)}
    cut = two_tokens(model, batch, position=4)
    assert {name: values.tolist() for name, values in cut.items()} == {"input_ids": [[5, 6]], "position_ids": [[3, 4]]}
    assert {name: values.tolist() for name, values in two_tokens(model, batch, position=0).items()} == {
        "input_ids": [[2]],
        "position_ids": [[0]],
    }
    image = torch.zeros(2, 3, 4, 4)
    assert two_tokens(nn.Identity(), {"pixel_values": image}, position=5)["pixel_values"].shape == (1, 3, 4, 4)


def test_a_single_token_shows_no_positions():
    run = TracedRun(Block().double().eval(), ["norm"], {"x": torch.randn(1, 1, 8)})
    with pytest.raises(NoMapError, match="a sequence of one token"):
        run.map("attention", "query", 0)


def test_a_model_that_fails_is_a_reason_and_not_a_crash():
    block = Block(before=lambda norm, other, x: norm(x) if x.shape[1] > 2 else x.nonsense())
    with pytest.raises(NoMapError, match=r"Block can't be run on two tokens: .*nonsense"):
        TracedRun(block.double(), ["norm"], {"x": torch.randn(1, 2, 8)})
