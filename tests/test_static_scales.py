"""Certified static scales: their names in a file, that no text passes them, and what they are said to cost."""

import json
import signal
import sys

import jsonschema
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn

import normscope as ns
from architectures import random_model
from normscope import cli
from normscope.errors import InputError
from normscope.models.cache_watch import cache_watch
from normscope.results.static_scales import ROOM, StaticScale, StaticScales, scale_of

IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))
LLAMA_LAYERS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
LLAMA_LAYERS += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
NAMES = {
    "llama": {f"model.layers.{i}.self_attn.{of}_scale" for i in range(2) for of in "kv"}
    | {f"model.layers.{i}.{layer}.input_scale" for i in range(2) for layer in LLAMA_LAYERS}
    | {"lm_head.input_scale"},
    "gpt2": {f"transformer.h.{i}.attn.{of}_scale" for i in range(2) for of in "kv"}
    | {
        f"transformer.h.{i}.{layer}.input_scale"
        for i in range(2)
        for layer in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    }
    | {"lm_head.input_scale"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of two models, and a file of inputs in each."""
    made = {}
    for name in NAMES:
        made[name] = tmp_path_factory.mktemp(name)
        random_model(name).save_pretrained(made[name])
        np.savez(made[name] / "ids.npz", input_ids=IDS.numpy())
    return made


@pytest.fixture(scope="module")
def results():
    """Scales of models of several kinds, with inputs."""
    return {
        name: (model := random_model(name), ns.static_scales(model, inputs={"input_ids": IDS}))
        for name in ("llama", "gpt2", "qwen3", "bert")
    }


@pytest.fixture
def run(monkeypatch, capfd):
    """The command in this process: exit code, standard output and standard error."""
    before = signal.getsignal(signal.SIGPIPE)

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["normscope", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return (end.value.code, *capfd.readouterr())

    yield command
    signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize("name", NAMES)
def test_names_shapes_and_types_are_those_of_checkpoints(run, folders, tmp_path, name):
    file = tmp_path / "scales.safetensors"
    code, table, told = run("ranges", folders[name], "--scales", file)
    assert code == 0, told
    assert f"wrote {file}" in told
    assert "Static scales of" in table
    tensors = load_file(file)
    assert set(tensors) == NAMES[name]
    for tensor in tensors.values():
        assert tensor.shape == (1,)
        assert tensor.dtype == torch.float32
        assert tensor.item() > 0


def test_a_file_is_not_replaced_unless_asked(run, folders, tmp_path):
    file, inputs = tmp_path / "scales.safetensors", folders["llama"] / "ids.npz"
    file.write_bytes(b"mine")
    code, _, told = run("ranges", folders["llama"], "--scales", file)
    assert code == 2
    assert "exists: choose another name, or give --force to replace it" in told
    assert file.read_bytes() == b"mine"
    code, printed, told = run("ranges", folders["llama"], "--scales", file, "--force", "--json", "--inputs", inputs)
    assert code == 0, told
    assert set(load_file(file)) == NAMES["llama"]
    payload = json.loads(printed)
    jsonschema.validate(payload, StaticScales.json_schema())
    assert payload["holds"] is True
    assert all(row["e4m3"] is not None for row in payload["scales"])


def test_one_file_for_scales_and_result_is_refused(run, folders, tmp_path):
    file = tmp_path / "a.safetensors"
    code, _, told = run("ranges", folders["llama"], "--scales", file, "-o", f"{tmp_path}/./a.safetensors")
    assert code == 2
    assert "must be different files" in told
    assert not file.exists()
    code, _, told = run("ranges", folders["llama"], "--scales", tmp_path / "scales.json")
    assert code == 2
    assert "must end in .safetensors" in told
    code, _, told = run("ranges", folders["llama"], "--scales", file, "--limit", "bfloat16")
    assert code == 2
    assert "--scales cannot be combined with --limit" in told
    code, _, told = run("ranges", folders["llama"], "--scales", file, "--workers", "2")
    assert code == 2
    assert "--scales cannot be combined with --engine or --workers" in told


@given(amax=st.floats(0.0, 1e38), largest=st.sampled_from([448.0, 127.0]))
def test_a_scale_is_rounded_up(amax, largest):
    scale = np.float32(scale_of(amax, largest))
    assert float(scale) == scale_of(amax, largest)
    assert scale > 0
    assert float(scale) * largest >= amax
    assert float(scale * np.float32(largest)) >= amax
    assert np.isfinite(1 / scale)
    if amax > 1e-30:
        assert float(scale) <= amax / largest * (1 + 1e-6)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "bert"])
def test_no_input_passes_a_certified_maximum(results, name):
    model, found = results[name]
    assert found.holds
    assert all(row.observed is not None and row.observed <= row.amax * (1 + 1e-6) for row in found.scales)
    tokens = torch.randint(0, 50, (4, 16), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)
    larger = ns.static_scales(model, inputs={"input_ids": tokens})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(8)
    assert larger.holds
    assert all(row.observed <= row.amax * (1 + 1e-6) for row in larger.scales)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_is_observed_is_what_the_cache_of_transformers_holds(results, name, attention):
    model, found = results[name]
    model.set_attn_implementation(attention)
    seen = {}

    def note(layer, what, tensor):
        seen[layer, what] = float(tensor.abs().max())

    with cache_watch(model, note), torch.no_grad():
        cache = model(input_ids=IDS, use_cache=True).past_key_values
    rows = {row.name: row.observed for row in found.scales}
    layers = [layer for layer, what in seen if what == "keys"]
    assert len(layers) == len(cache.layers) == 2
    for layer, held in zip(layers, cache.layers, strict=True):
        for what, tensor, suffix in (("keys", held.keys, "k_scale"), ("values", held.values, "v_scale")):
            assert seen[layer, what] == pytest.approx(float(tensor.abs().max()), rel=1e-6)
            assert rows[f"{layer}.{suffix}"] == pytest.approx(float(tensor.abs().max()), rel=1e-4)


def nearest_e4m3(values, scale):
    """Straight from the definition: the nearest of all finite numbers of the type."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    numbers = every[torch.isfinite(every)]
    distance = (values.double() / scale)[:, None] - numbers
    return numbers[distance.abs().argmin(dim=1)] * scale


def test_costs_are_those_of_a_direct_computation(results):
    model, found = results["llama"]
    row = next(row for row in found.scales if row.name == "model.layers.1.mlp.gate_proj.input_scale")
    kept = []
    handle = model.model.layers[1].mlp.gate_proj.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    with torch.no_grad():
        model(input_ids=IDS)
    handle.remove()
    x = kept[0].reshape(-1)
    assert row.observed == float(x.abs().max())

    def error(rounded):
        return float(((rounded - x.double()) ** 2).sum() / (x.double() ** 2).sum()) ** 0.5

    for amax, e4m3, int8 in ((row.amax, row.e4m3, row.int8), (row.observed, row.e4m3_observed, row.int8_observed)):
        assert e4m3 == pytest.approx(error(nearest_e4m3(x, amax / 448)), rel=1e-3)
        assert int8 == pytest.approx(error((x.double() / (amax / 127)).round() * (amax / 127)), rel=1e-3)


def test_several_batches_cost_what_one_batch_of_all_costs():
    model = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3))
    x = torch.randn(12, 6, generator=torch.Generator().manual_seed(0))
    (whole,) = ns.static_scales(model, inputs=x).scales
    (parts,) = ns.static_scales(model, inputs=[{"input": part} for part in x.split(4)]).scales
    assert parts.observed == whole.observed
    assert parts.int8 == pytest.approx(whole.int8, rel=1e-9)
    assert whole.amax == pytest.approx(5**0.5, rel=1e-9)


class Named(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.add_module(name, nn.Linear(4, 2))
        self.which = name

    def forward(self, x):
        return getattr(self, self.which)(self.norm(x))


@pytest.mark.parametrize("name", ["__metadata__", "\x1b[2J<b>", "scale\n", "[red]", "naïve ☃"])
def test_hostile_names_stay_names(tmp_path, name):
    found = ns.static_scales(Named(name), inputs=torch.ones(1, 4))
    file = tmp_path / "scales.safetensors"
    found.save_scales(file)
    assert list(load_file(file)) == [f"{name}.input_scale"]
    assert "\x1b" not in str(found)
    assert "<b>" not in found._repr_html_()
    with pytest.raises(FileExistsError):
        found.save_scales(file)
    found.save_scales(file, force=True)


def test_two_scales_of_one_name_are_refused():
    row = StaticScale("a.k_scale", "keys", 1.0, "exact")
    with pytest.raises(InputError, match="unique"):
        StaticScales("m", None, (row, row)).scales_file()
    with pytest.raises(InputError, match="unique"):
        StaticScales("m", None, (StaticScale("__metadata__", "keys", 1.0, "exact"),)).scales_file()


def test_what_is_not_bounded_has_no_scale_and_a_reason():
    found = ns.static_scales(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)), inputs=torch.ones(1, 4))
    assert [row.name for row in found.scales] == ["2.input_scale"]
    (left,) = found.left_out
    assert left.layer == "0"
    assert "without a bound" in left.reason


class HalfBounded(nn.Module):
    """Attention with keys behind a norm, and values behind none."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        return nn.functional.scaled_dot_product_attention(self.q(y), self.k(y), self.v(x))


def test_keys_get_no_scale_without_one_of_values():
    found = ns.static_scales(HalfBounded(), inputs=torch.ones(1, 3, 4))
    assert [row.name for row in found.scales] == ["q.input_scale", "k.input_scale"]
    assert {left.layer for left in found.left_out} == {"", "v"}


def test_a_layer_that_is_called_twice_gets_the_larger_scale():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.small, self.large, self.reader = nn.LayerNorm(4), nn.LayerNorm(4), nn.Linear(4, 4)
            nn.init.constant_(self.large.weight, 3.0)

        def forward(self, x):
            return self.reader(self.small(x)) + self.reader(self.large(x))

    (row,) = ns.static_scales(Twice(), inputs=torch.randn(2, 4)).scales
    assert row.amax == pytest.approx(3 * 3**0.5, rel=1e-9)


def test_a_tensor_of_zeros_gets_a_scale_to_divide_by():
    model = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
    nn.init.zeros_(model[0].weight)
    (row,) = ns.static_scales(model, inputs=torch.randn(2, 4)).scales
    assert (row.amax, row.scale, row.observed, row.e4m3) == (0.0, 1.0, 0.0, None)


def test_a_result_is_saved_loaded_and_shown(results, tmp_path):
    _, found = results["llama"]
    file = tmp_path / "result.safetensors"
    found.save(file)
    assert ns.load(file) == found
    assert "with certified scales" in str(found)
    assert repr(found) == "StaticScales(LlamaForCausalLM: 2 of keys, 2 of values, 15 of layer inputs; 0 left out)"


def test_values_up_to_the_room_for_rounding_are_not_lost():
    just_below = torch.tensor([448.0 * ROOM * (1 - 1e-6)])
    assert just_below.to(torch.float8_e4m3fn).float().item() == 448.0
