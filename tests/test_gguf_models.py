"""Models in .gguf files of other architectures than Llama, whose tensors are stored in other ways.

Qwen 2 has biases, and its queries and keys keep their order; gains of Gemma 2 are stored with 1 added; matrices of
GPT-2 are transposed, and queries, keys and values are one tensor; gate and up of experts are two stacks, whose width
transformers does not read. What transformers loads from the file is the oracle.
"""

import numpy as np
import pytest
import torch
import transformers

import normscope as ns
from architectures import ARCHITECTURES, GROUPED, HEADS, random_model
from normscope.errors import CheckpointError
from normscope.models.load import load_model

SETTINGS = {
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "gemma2": ARCHITECTURES["gemma2"],
    "gpt2": ("GPT2LMHeadModel", {**ARCHITECTURES["gpt2"][1], "n_positions": 1024}),  # which the file does not say
}
EXPERTS = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 16}  # as many as channels, square
SETTINGS |= {
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**HEADS, **EXPERTS, "norm_topk_prob": True}),
}
NAMES = {"qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}  # of architectures in files, where they differ
FOLDED = {"gemma2": (4, 9), "gpt2": (4, 5), "qwen3_moe": (5, 9)}  # gains of 1 and norms, if not 5 of 5
TOKENS = torch.arange(3, 15).reshape(2, 6)


@pytest.fixture(params=SETTINGS)
def stored(request, tmp_path, monkeypatch):
    """A tiny model, and the file that it was written to as llama.cpp does."""
    gguf = pytest.importorskip("gguf")
    kind = request.param
    monkeypatch.setitem(ARCHITECTURES, kind, SETTINGS[kind])
    model = random_model(kind)
    config, folder = model.config, tmp_path / "stored"
    folder.mkdir()
    writer = gguf.GGUFWriter(folder / "model.gguf", NAMES.get(kind, kind))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if kind == "gpt2":
        writer.add_feed_forward_length(4 * config.hidden_size)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_key_length(getattr(config, "head_dim", None) or 8)
    if "moe" in kind:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[NAMES.get(kind, kind).upper()], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.numpy()
        if kind == "gemma2" and "norm" in name:
            values = values + 1
        if kind == "gpt2" and values.ndim == 2 and ".c_" in name:
            values = values.T
        stored = {names.get_name(name, try_suffixes=(".weight", ".bias")): values}
        if "experts." in name:
            stack = f"blk.{name.split('.')[2]}.ffn_{{}}_exps.weight".format
            apart = ("gate", "up") if "gate_up" in name else ("down",)
            stored = dict(zip(map(stack, apart), np.split(values, len(apart), axis=1), strict=True))
        for place, each in stored.items():
            writer.add_tensor(place, np.ascontiguousarray(each[0] if "ffn_gate_inp_shexp" in place else each))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, folder / "model.gguf"


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=TOKENS).logits


def test_a_file_is_loaded_and_folded_as_transformers_loads_it(stored, tmp_path):
    model, file = stored
    own = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    expected = logits(own)
    torch.testing.assert_close(expected, logits(model), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(logits(load_model(file)), expected, rtol=0, atol=0)
    folding = ns.fold(file, out=tmp_path / "folded")
    assert folding.holds, folding.certificate
    assert folding.unused_tensors == ()
    counted = sum(verdict.affine.what == "folded" for verdict in folding.norms), len(folding.norms)
    assert counted == FOLDED.get(model.config.model_type, (5, 5))
    folded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folded")
    apart = logits(folded) - expected
    assert apart.abs().max() < 1e-5 * expected.abs().max()


def test_ranges_of_a_file_are_those_of_its_model(stored):
    model, file = stored
    found, expected = ns.ranges(file), ns.ranges(model)
    assert found.holds
    assert [row.layer for row in found.layers] == [row.layer for row in expected.layers]
    bounds = [[row.bound for row in each.layers] for each in (found, expected)]
    np.testing.assert_allclose(*bounds, rtol=1e-5)


@pytest.mark.parametrize("stored", ["qwen2"], indirect=True)
def test_a_file_without_a_tokenizer_takes_tokens_and_no_text(stored):
    _, file = stored
    assert ns.keys(file, inputs={"input_ids": TOKENS}).layers
    for question in (ns.keys, ns.inspect, ns.spikes):
        with pytest.raises(CheckpointError, match=r"a text needs a tokenizer, and the file has none: give tokens by"):
            question(file, text="to be or not to be")


@pytest.mark.parametrize("stored", ["qwen2"], indirect=True)
def test_a_truncated_file_is_refused_by_every_question_and_named_once(stored, tmp_path):
    _, file = stored
    short = tmp_path / "short.gguf"
    short.write_bytes(file.read_bytes()[:-1000])
    questions = (ns.fold, ns.ranges, ns.inspect, lambda model: ns.keys(model, inputs={"input_ids": TOKENS}))
    for question in questions:
        with pytest.raises(CheckpointError, match=r"the file is truncated or damaged") as caught:
            question(short)
        assert str(caught.value).count(str(short)) == 1
