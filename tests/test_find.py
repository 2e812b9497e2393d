"""Norms found in live models and in checkpoints, against the modules themselves."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from normscope import Norm
from normscope.models.checkpoint import CheckpointError
from normscope.models.find import find
from normscope.results.inventory import FoundNorm
from normscope.results.result import load
from tiny_models import EXPECTED, build, tiny_model


@pytest.mark.parametrize("name", EXPECTED)
def test_every_norm_of_a_transformer_is_found_and_computes_what_its_module_does(name):
    model = tiny_model(name)
    inventory = find(model)
    count, kind, convention, eps = EXPECTED[name]
    assert len(inventory) == count
    for path, found in inventory.items():
        assert (found.kind, found.gain_convention, found.norm.eps, found.eps_place) == (kind, convention, eps, "inside")
        assert (found.name, found.path, found.assumed, found.problem) == (path, path, (), None)
        x = torch.randn(4, found.size, generator=torch.Generator().manual_seed(1))
        expected = model.get_submodule(path)(x[None])[0].detach().double().numpy()
        assert found.norm(x) == pytest.approx(expected, abs=1e-5 * np.abs(expected).max())
    assert inventory.norm_parameters == sum(
        parameter.numel() for path in inventory for parameter in model.get_submodule(path).parameters()
    )


@pytest.mark.parametrize("make", [build, tiny_model], ids=["with head", "without head"])
@pytest.mark.parametrize("name", EXPECTED)
def test_a_checkpoint_gives_the_same_norms_as_the_live_model(name, make, tmp_path):
    model = make(name)
    save(model, tmp_path)
    stored, live = find(tmp_path), find(model)
    assert [found.path for found in stored.values()] == list(live)
    for found in stored.values():
        assert found.norm == live[found.path].norm
        assert found.gain_convention == live[found.path].gain_convention


def test_weights_from_before_safetensors_are_read_too(tmp_path):
    model = tiny_model("bert")
    save(model, tmp_path, safe=False)
    stored, live = find(tmp_path), find(model)
    assert {name: found.norm for name, found in stored.items()} == {name: found.norm for name, found in live.items()}


def test_names_from_before_modules_were_moved_are_understood(tmp_path):
    """ViT on disk has encoder.layer.0.layernorm_before; the model of today calls it layers.0.layernorm_before."""
    save(tiny_model("vit"), tmp_path)
    assert find(tmp_path)["layers.0.layernorm_before"].stored_as == "encoder.layer.0.layernorm_before"


def test_gamma_and_beta_are_weight_and_bias(tmp_path):
    model = tiny_model("bert")
    save(model, tmp_path, safe=False)
    old = {}
    for name, values in model.state_dict().items():
        renamed = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        old[renamed] = values
    torch.save(old, tmp_path / "pytorch_model.bin")
    stored = find(tmp_path)["embeddings.LayerNorm"]
    assert stored.norm == find(model)["embeddings.LayerNorm"].norm


def save(model, folder, safe=True):
    """As transformers saves it; with safe=False, as it did before safetensors."""
    model.save_pretrained(folder)
    if not safe:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")


def test_names_are_those_of_the_model_whatever_prefix_it_was_saved_with(tmp_path):
    model = tiny_model("gpt2")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))
    found = find(tmp_path)["transformer.ln_f"]
    assert (found.path, found.stored_as) == ("transformer.ln_f", "ln_f")
    assert np.array_equal(found.norm.gain, model.ln_f.weight.detach().double().numpy())


def test_without_a_config_names_show_the_gains_and_the_rest_is_said_to_be_assumed(tmp_path):
    model = tiny_model("bert")
    file = tmp_path / "weights.pt"
    torch.save(model.state_dict(), file)
    live = find(model)
    stored = find(file)
    assert set(stored) == set(live)
    for path, found in stored.items():
        assert np.array_equal(found.norm.gain, live[path].norm.gain)
        assert np.array_equal(found.norm.bias, live[path].norm.bias)
        assert found.kind == "layernorm"
        assert found.assumed == ("kind", "eps", "gain_convention")
    assert stored.module is None


def test_a_gguf_file_says_kind_and_eps_and_its_gains_already_hold_the_one_of_1_plus_w(tmp_path):
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "gemma.gguf"
    writer = gguf.GGUFWriter(file, "gemma")
    writer.add_layer_norm_rms_eps(1e-6)
    stored = 1 + 0.5 * np.random.default_rng(0).normal(size=32).astype(np.float32)  # what converters write for 1 + w
    for layer in (0, 1, 10, 2):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    inventory = find(file)
    assert list(inventory) == [f"blk.{layer}.attn_norm" for layer in (0, 1, 2, 10)]
    for found in inventory.values():
        assert np.array_equal(found.norm.gain, stored.astype(float))
        assert (found.kind, found.gain_convention, found.assumed) == ("rmsnorm", "w", ())
        assert found.norm.eps == pytest.approx(1e-6)


def test_an_unknown_architecture_falls_back_to_names(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"rms_norm_eps": 3e-4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "no_such_model"}))
    inventory = find(tmp_path)
    assert len(inventory) == 5
    assert {(found.kind, found.norm.eps, found.assumed) for found in inventory.values()} == {
        ("rmsnorm", 3e-4, ("kind", "gain_convention"))
    }
    (note,) = inventory.notes
    assert "has model_type 'no_such_model', which transformers 5" in note
    del config["model_type"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Model"}}))
    (note,) = find(tmp_path).notes
    assert note.startswith("config.json has no model_type: norms are found by the names of tensors.")
    assert note.endswith("The code that its auto_map names is not run.")


@pytest.mark.parametrize("said", [{}, {"norm_eps": 1e-6, "layer_norm_epsilon": 1e-5}, {"norm_eps": "small"}])
def test_an_eps_that_the_config_does_not_settle_is_assumed(tmp_path, said):
    tiny_model("llama").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(said))
    assert {(found.norm.eps, "eps" in found.assumed) for found in find(tmp_path).values()} == {(1e-5, True)}


def test_code_that_a_config_asks_for_is_not_run(tmp_path):
    tiny_model("llama").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    mark = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Model: pass\n")
    asks = {"auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config | asks))
    assert len(find(tmp_path)) == 5
    assert not mark.exists()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gains_that_are_not_numbers_are_refused_by_name(bad, tmp_path):
    model = tiny_model("gpt2")
    with torch.no_grad():
        model.h[1].ln_2.weight[3] = bad
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"h\.1\.ln_2: gain must be finite, got 1 NaN or infinite of 16 values"):
        find(tmp_path)


def test_shapes_that_do_not_fit_the_config_are_refused(tmp_path):
    tiny_model("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_embd": 32}))
    with pytest.raises(
        CheckpointError, match=r"h\.0\.ln_1\.weight has shape \(16,\), but config.json makes it \(32,\)"
    ):
        find(tmp_path)


def test_a_norm_that_the_checkpoint_lacks_is_refused(tmp_path):
    tiny_model("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    with pytest.raises(CheckpointError, match=r"config.json describes a norm h\.2\.ln_1, but there is no tensor"):
        find(tmp_path)


def test_a_config_that_makes_no_model_is_refused_in_one_line(tmp_path):
    tiny_model("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_head": 3}))
    with pytest.raises(CheckpointError) as error:
        find(tmp_path)
    assert "config.json does not describe a model of kind 'gpt2'" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_group_norm_is_a_grouped_layer_norm_unless_there_is_space_to_average_over():
    tokens = find(nn.Sequential(nn.Linear(8, 16), nn.GroupNorm(4, 16)))["1"]
    assert (tokens.kind, tokens.norm.groups) == ("lng", 4)
    image = find(nn.Sequential(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16)))["1"]
    assert image.kind == "unknown"
    assert image.problem == "averages over space as well, in a model with convolutions"


def test_a_norm_by_itself_is_found_under_the_empty_path():
    (found,) = find(nn.LayerNorm(4)).values()
    assert found.norm == Norm(gain=np.ones(4))


def test_equal_modules_with_other_settings_are_asked_apart():
    inventory = find(nn.Sequential(nn.LayerNorm(4, eps=1e-5), nn.LayerNorm(4, eps=1e-3)))
    assert [found.norm.eps for found in inventory.values()] == [1e-5, 1e-3]


def test_a_model_without_values_is_refused():
    with pytest.raises(
        ValueError, match=r"0\.weight has no values \(it is on the meta device\): load the weights first"
    ):
        find(nn.Sequential(nn.LayerNorm(4, device="meta")))


def test_something_that_is_no_model_is_refused():
    with pytest.raises(ValueError, match="model must be a torch module or a path to a checkpoint, got int"):
        find(3)


def test_an_inventory_reads_like_a_mapping_and_sums_itself_up():
    inventory = find(nn.Sequential(nn.LayerNorm(4), nn.RMSNorm(4), nn.BatchNorm1d(4), nn.RMSNorm(4)))
    assert list(inventory) == ["0", "1", "2", "3"]
    assert repr(inventory) == "Inventory(Sequential: 1 layernorm, 2 rmsnorm, 1 unknown)"
    none = find(nn.Linear(2, 2))
    assert repr(none) == "Inventory(Linear: no norms as modules; calls of functions were not looked for)"
    assert "an example input must be given" in none.untraced
    assert repr(find(nn.Linear(2, 2), inputs=(torch.zeros(1, 2),))) == "Inventory(Linear: no norms)"


def test_an_inventory_is_saved_and_loaded_with_its_norms(tmp_path):
    model = nn.Sequential(nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.RMSNorm(4), nn.BatchNorm1d(4))
    inventory = find(model)
    inventory.save(tmp_path / "norms.safetensors")
    again = load(tmp_path / "norms.safetensors")
    assert again == inventory
    assert {name: found.norm for name, found in again.items()} == {name: one.norm for name, one in inventory.items()}
    assert (again.module, again.graph, inventory.module) == (None, None, model)
    assert "The model was not traced" in str(again)


def test_a_saved_norm_without_its_gains_is_refused():
    with pytest.raises(ValueError, match="gain must be"):
        FoundNorm("ln", "layernorm", 4, groups=1, eps=0.0).norm  # noqa: B018


def test_inputs_are_a_batch_or_several():
    model, batch = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), torch.zeros(2, 4)
    for inputs in (batch, (batch,), {"input": batch}, [batch, batch], iter([{"input": batch}])):
        assert find(model, inputs=inputs)["1"].unchecked is None
    with pytest.raises(ValueError, match="inputs must hold at least one batch, got none"):
        find(model, inputs=[])


def test_norms_that_are_stored_but_not_described_are_listed_and_not_dropped(tmp_path):
    tiny_model("gpt2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_layer": 1}))
    inventory = find(tmp_path)
    left_over = {name: found for name, found in inventory.items() if found.path is None}
    assert list(left_over) == ["h.1.ln_1", "h.1.ln_2"]
    for found in left_over.values():
        assert found.kind == "layernorm"
        assert "kind" in found.assumed
        assert found.unchecked == "config.json does not describe it"


def test_a_batch_norm_in_a_state_dict_is_not_taken_for_a_layer_norm(tmp_path):
    model = nn.ModuleDict({"batch_norm": nn.BatchNorm1d(4)})
    torch.save(model.state_dict() | {"norm.weight": torch.ones(2, 3)}, tmp_path / "model.pt")
    inventory = find(tmp_path / "model.pt")
    assert "running statistics" in inventory["batch_norm"].problem
    assert inventory["norm"].problem == "has a gain of shape (2, 3), which is not a vector"


def test_modules_that_differ_in_what_is_not_plain_are_asked_apart():
    class Either(nn.Module):
        def __init__(self, step):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(6))
            self.step = step

        def forward(self, x):
            return self.step(x) / self.step(x).pow(2).mean(-1, keepdim=True).sqrt() * self.weight

    model = nn.Sequential(Either(lambda x: x - x.mean(-1, keepdim=True)), Either(lambda x: x))
    assert [found.kind for found in find(model).values()] == ["layernorm", "rmsnorm"]


def test_probing_does_not_fire_hooks():
    model, calls = nn.Sequential(nn.LayerNorm(4)), []
    model[0].register_forward_hook(lambda *_: calls.append(1))
    assert find(model)["0"].kind == "layernorm"
    assert not calls


def test_a_norm_that_can_not_be_copied_is_unknown_and_the_others_are_found():
    model = nn.Sequential(nn.LayerNorm(4), nn.LayerNorm(4))
    model[0].last = model[0](torch.ones(2, 4))  # a tensor inside a graph can't be copied
    first, second = find(model).values()
    assert "can't be copied to be run" in first.problem
    assert second.kind == "layernorm"


def test_a_norm_of_any_width_is_unknown_until_it_is_used():
    class FreeNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.eps = 1e-6

        def forward(self, x):
            return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()

    (found,) = find(nn.Sequential(FreeNorm())).values()
    assert (found.kind, found.size) == ("unknown", 0)
    assert "only known in use" in found.problem


def test_gains_with_axes_of_length_one_are_vectors():
    class ChannelNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(1, 6, 1, 1))

        def forward(self, x):
            return x / (x.pow(2).mean(1, keepdim=True) + 1e-6).sqrt() * self.weight

    model = nn.Sequential(ChannelNorm())
    found = find(model)["0"]
    assert (found.kind, found.axis) == ("rmsnorm", 1)
    assert np.array_equal(found.norm.gain, model[0].weight.detach().double().numpy().reshape(-1))


def test_embeddings_are_tied_if_their_weights_are_one():
    model = build("gpt2")
    assert find(model).tied_embeddings
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    assert not find(model).tied_embeddings
