"""The matrix that scores tokens and the norm that it reads: found by trying the model out."""

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F

import tiny_models
from normscope.data import demo_model
from normscope.models.checkpoint import CheckpointError
from normscope.models.subject import Subject
from normscope.models.token_texts import token_texts
from normscope.models.unembedding import unembedding_of
from tiny_models import GROUPED, SMALL, TOKENS


def unembedding_for(model, inputs=None):
    return unembedding_of(Subject(model, inputs=inputs))


OPT = {"hidden_size": 16, "word_embed_proj_dim": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
MORE = {
    "bert": ("BertForMaskedLM", SMALL),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8, "query_pre_attn_scalar": 8}),  # caps its logits
    "cohere": ("CohereForCausalLM", GROUPED),  # scales its logits
    "granite": ("GraniteForCausalLM", GROUPED),  # divides its logits
    "opt": ("OPTForCausalLM", {**OPT, **TOKENS, "vocab_size": 50, "do_layer_norm_before": False}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SMALL, **TOKENS}),
}
EXPECTED = {  # unembedding, norm, linear layers between, whether there is a bias
    "gpt2": ("lm_head", "transformer.ln_f", (), False),
    "llama": ("lm_head", "model.norm", (), False),
    "gemma": ("lm_head", "model.norm", (), False),
    "t5": ("lm_head", "decoder.final_layer_norm", (), False),
    "qwen3": ("lm_head", "model.norm", (), False),
    "olmo2": ("lm_head", "model.norm", (), False),
    "whisper": ("proj_out", "model.decoder.layer_norm", (), False),
    "phi": ("lm_head", "model.final_layernorm", (), True),
    "bert": ("cls.predictions.decoder", "cls.predictions.transform.LayerNorm", (), True),
    "gemma2": ("lm_head", "model.norm", (), False),
    "cohere": ("lm_head", "model.norm", (), False),
    "granite": ("lm_head", "model.norm", (), False),
    "opt": ("lm_head", "model.decoder.layers.1.final_layer_norm", ("model.decoder.project_out",), False),
    "gpt_neox": ("lm_head", "gpt_neox.final_layer_norm", (), False),
}


@pytest.mark.parametrize("architecture", EXPECTED)
def test_finds_what_scores_tokens_without_knowing_the_architecture(architecture, monkeypatch):
    monkeypatch.setattr(tiny_models, "CONFIGS", tiny_models.CONFIGS | MORE)
    model = tiny_models.build(architecture)
    found = unembedding_for(model)
    assert (found.name, found.norm_name, found.through, found.bias is not None) == EXPECTED[architecture]
    assert found.problem is None
    assert found.assumed == ()
    assert found.norm.size == found.rows.shape[1] == 16
    assert len(found.rows) == 50


@pytest.mark.parametrize("architecture", ["gpt2", "gemma2", "opt", "bert", "phi"])
def test_scores_from_the_norm_put_tokens_in_the_order_of_the_model(architecture, monkeypatch):
    """The model's own output for its own inputs, against W·norm(x) + c from what the norm was given."""
    monkeypatch.setattr(tiny_models, "CONFIGS", tiny_models.CONFIGS | MORE)
    model = tiny_models.build(architecture).eval()
    found, seen = unembedding_for(model), []
    model.get_submodule(found.norm_name).register_forward_hook(lambda _, given, __: seen.append(given[0]))
    with torch.no_grad():
        logits = model(input_ids=torch.arange(5)[None]).logits[0].double().numpy()
    scores = found.norm(seen[-1][0].detach()) @ found.rows[:].T.astype(float) + (
        0.0 if found.bias is None else found.bias
    )
    for row, order in zip(logits, np.argsort(scores), strict=True):
        assert (np.diff(row[order]) >= -1e-4).all()


class Net(nn.Module):
    """Tokens to scores, with any step between the norm and the matrix, and any step after."""

    def __init__(self, between=None, after=None, norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.norm, self.head = nn.Embedding(9, 4), norm or nn.LayerNorm(4), nn.Linear(4, 9)
        self.between, self.after = between or (lambda x: x), after or (lambda x: x)

    def forward(self, tokens):
        return self.after(self.head(self.between(self.norm(self.embed(tokens)))))


EXAMPLE = {"tokens": torch.tensor([[0, 1, 2, 3]])}


def test_a_factor_between_scales_what_the_norm_writes():
    net = Net(between=lambda x: -0.5 * x)
    found = unembedding_for(net, EXAMPLE)
    assert (found.name, found.norm_name) == ("head", "norm")
    np.testing.assert_allclose(found.norm.gain, -0.5 * net.norm.weight.detach().numpy(), rtol=1e-6)


def test_what_is_not_linear_between_is_a_problem_that_is_named():
    found = unembedding_for(Net(between=F.gelu), EXAMPLE)
    assert found.norm is None
    assert found.problem == "norm is the last norm to run before it, but what stands between is not linear"
    assert found.rows.shape == (9, 4)


def test_a_norm_that_is_no_norm_of_the_family_is_a_problem_that_is_named():
    found = unembedding_for(Net(norm=nn.BatchNorm1d(4)), {"tokens": torch.tensor([0, 1, 2, 3])})
    assert found.norm is None
    assert found.problem


def test_a_model_without_a_norm_has_an_unembedding_all_the_same():
    found = unembedding_for(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5)), {"input": torch.tensor([[0, 1]])})
    assert found.norm is None
    assert found.problem == "no norm runs before it"


@pytest.mark.parametrize("after", [lambda x: -x, lambda x: x + torch.arange(9) ** 2, lambda x: x.roll(1, -1)])
def test_a_model_that_reorders_tokens_afterwards_is_refused(after):
    with pytest.raises(ValueError, match="changes the order of tokens after head"):
        unembedding_for(Net(after=after), EXAMPLE)


def test_a_cap_on_scores_keeps_their_order():
    assert unembedding_for(Net(after=lambda x: 3 * torch.tanh(x / 3)), EXAMPLE).assumed == ()


def test_an_output_that_does_not_show_the_scores_is_assumed_to_keep_their_order():
    found = unembedding_for(Net(after=lambda x: x.argmax(-1)), EXAMPLE)
    assert found.assumed == ("nothing after it changes the order of tokens",)


def test_models_that_score_no_tokens_are_refused():
    with pytest.raises(ValueError, match="BertModel has no unembedding"):
        unembedding_for(tiny_models.build("bert").base_model)
    with pytest.raises(ValueError, match="must be a path or a torch module"):
        unembedding_for(7)


def test_half_precision_is_kept_exactly():
    net = Net().to(torch.bfloat16)
    found = unembedding_for(net, EXAMPLE)
    assert found.rows.dtype == np.float32
    np.testing.assert_array_equal(found.rows, net.head.weight.detach().float().numpy())
    assert unembedding_for(Net().double(), EXAMPLE).rows.dtype == np.float64


def test_a_module_in_training_and_its_hooks_are_as_they_were():
    net = Net().train()
    unembedding_for(net, EXAMPLE)
    assert net.training
    assert not any(module._forward_hooks for module in net.modules())


def test_the_bundled_model_by_running_it_and_by_names():
    run, named = unembedding_for(demo_model()), unembedding_for(demo_model() / "model.safetensors")
    assert (run.name, run.norm_name, run.tied) == ("lm_head", "transformer.ln_f", True)
    assert (named.name, named.norm_name, named.tied) == ("transformer.wte.weight", "transformer.ln_f", True)
    np.testing.assert_array_equal(run.rows, named.rows)
    assert run.norm == named.norm
    assert run.assumed == ()
    assert "which norm it reads, by its name" in named.assumed


def test_names_that_do_not_decide_are_refused_or_a_problem(tmp_path):
    torch.save({"some.weight": torch.ones(3, 2)}, tmp_path / "odd.pt")
    with pytest.raises(CheckpointError, match=r"odd\.pt: one tensor must be named like an unembedding .*got none"):
        unembedding_for(tmp_path / "odd.pt")
    torch.save({"lm_head.weight": torch.ones(3, 2), "lm_head.bias": torch.ones(3)}, tmp_path / "head.pt")
    found = unembedding_for(tmp_path / "head.pt")
    assert found.problem == "one norm must be outside the numbered layers, to be the last one, got none"
    assert found.bias.tolist() == [1, 1, 1]
    assert not found.tied


def test_a_table_that_is_not_finite_is_refused():
    net = Net()
    net.head.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match="must be finite"):
        unembedding_for(net, EXAMPLE)


def test_tokens_are_read_from_the_tokenizer(tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_model())
    texts = token_texts(demo_model(), [0, 40, 10_000])
    assert texts == [tokenizer.decode([0]), tokenizer.decode([40]), None]
    assert token_texts(tmp_path, [1, 2]) == [None, None]
    (tmp_path / "config.json").write_text("{}")
    assert token_texts(tmp_path, [1]) == [None]
    assert token_texts(tmp_path, []) == []


def test_tokens_of_a_gguf_file_are_read_from_it(tmp_path):
    gguf = pytest.importorskip("gguf")
    for kind, pieces in (("gpt2", ["Ġthe", "Ċ", "âĢ"]), ("llama", ["▁the", "a", "b"])):
        writer = gguf.GGUFWriter(tmp_path / f"{kind}.gguf", "llama")
        writer.add_tokenizer_model(kind)
        writer.add_token_list(pieces)
        writer.add_tensor("output.weight", np.eye(3, dtype=np.float32))
        for write in ("header", "kv_data", "tensors"):
            getattr(writer, f"write_{write}_to_file")()
        writer.close()
    assert token_texts(tmp_path / "gpt2.gguf", [0, 1, 2, 3]) == [" the", "\n", "âĢ", None]
    assert token_texts(tmp_path / "llama.gguf", [0]) == [" the"]
    assert unembedding_for(tmp_path / "llama.gguf").name == "output.weight"
