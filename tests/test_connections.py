import pytest
import transformers as tr
from torch import nn

from normscope.models.connections import connections_of
from normscope.models.find import find
from tiny_models import EXPECTED, GROUPED, SMALL, tiny_model

PLACEMENT = dict.fromkeys(EXPECTED, "pre-norm") | {"bert": "post-norm", "olmo2": "post-norm"}
QK = {"qwen3", "olmo2"}


@pytest.mark.parametrize("name", EXPECTED)
def test_placement_and_qk_norm_show_in_the_graph(name):
    inventory = find(tiny_model(name))
    connections = connections_of(inventory)
    assert (connections.placement, connections.qk_norm) == (PLACEMENT[name], name in QK)
    assert set(connections.reads) == set(connections.read_by) == set(inventory)


def test_reads_and_readers_of_a_gpt_are_its_writers_and_layers():
    connections = connections_of(find(tiny_model("gpt2")))
    assert connections.reads["h.1.ln_1"] == ("wte", "wpe", "h.0.attn.c_proj", "h.0.mlp.c_proj")
    assert connections.read_by["h.1.ln_1"] == ("h.1.attn.c_attn",)


def test_the_architecture_of_a_checkpoint_is_enough(tmp_path):
    model = tiny_model("gemma")
    model.save_pretrained(tmp_path)
    assert connections_of(find(tmp_path)) == connections_of(find(model))


def test_without_a_graph_nothing_is_claimed(tmp_path):
    connections = connections_of(find(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))))
    assert (connections.reads, connections.read_by, connections.placement) == ({}, {}, None)


@pytest.mark.parametrize(
    ("config", "placement"),
    [
        (tr.BertConfig(**SMALL), "post-norm"),
        (tr.Gemma2Config(**GROUPED, head_dim=8), "both"),
        (tr.BloomConfig(hidden_size=16, n_layer=2, n_head=2, vocab_size=50), "pre-norm"),
    ],
    ids=["a norm in the head of BERT", "Gemma 2", "a norm behind the embeddings of BLOOM"],
)
def test_norms_at_the_ends_of_a_model_have_no_say_in_placement(config, placement):
    kinds = {"bert": tr.BertForMaskedLM, "gemma2": tr.Gemma2ForCausalLM, "bloom": tr.BloomForCausalLM}
    assert connections_of(find(kinds[config.model_type](config))).placement == placement
