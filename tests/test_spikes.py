import json

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from architectures import made, random_model
from normscope.models.example_inputs import example_inputs
from normscope.results.spike_list import SpikeList


def spiky_llama(layer=1, channel=5, neuron=3):
    """A Llama in which one neuron of one layer writes far more to one channel than anything else does."""
    model = random_model("llama")
    with torch.no_grad():
        model.model.layers[layer].mlp.down_proj.weight[channel, neuron] = 400.0
    return model


def test_the_layer_and_channel_that_stand_out_come_first():
    found = ns.spikes(spiky_llama())
    first = found.spikes[0]
    assert (first.layer, first.channel, first.module) == (1, 5, "model.layers.1.mlp.down_proj")
    assert first.times_median > 5
    assert abs(first.reached) <= abs(first.bound) < 1.1 * abs(first.reached)
    assert first.norm == "model.layers.1.post_attention_layernorm"
    assert found.remarks()[0].startswith("Layer 1, channel 5: one token can make it")
    ranks = [spike.times_median for spike in found.spikes]
    assert ranks == sorted(ranks, reverse=True)


def test_its_input_is_what_the_modules_need_to_write_it():
    model = spiky_llama()
    first = ns.spikes(model).spikes[0]
    block = model.double().model.layers[1]
    with torch.no_grad():
        wrote = block.mlp(block.post_attention_layernorm(torch.from_numpy(first.input.copy())[None]))[0, 5]
    assert float(wrote) == pytest.approx(first.reached, rel=1e-6)


def test_with_inputs_it_is_said_how_far_they_went():
    model = spiky_llama()
    tokens = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))
    first = ns.spikes(model, inputs={"input_ids": tokens}).spikes[0]
    seen = []
    hook = model.model.layers[1].mlp.register_forward_hook(lambda module, args, output: seen.append(output[..., 5]))
    with torch.no_grad():
        model(tokens)
    hook.remove()
    largest = seen[0].max() if first.bound > 0 else seen[0].min()
    assert first.observed == pytest.approx(float(largest), rel=1e-5)
    assert first.used == pytest.approx(max(0.0, first.observed / first.bound))


def test_the_result_fits_its_schema_and_has_a_picture(tmp_path):
    found = ns.spikes(ns.demo_model())
    jsonschema.validate(json.loads(json.dumps(found.to_dict(), allow_nan=False)), SpikeList.json_schema())
    assert len(found.writers) == len(found.peaks) == 8
    assert found.plot().axes[0].get_yscale() == "log"
    found.save(tmp_path / "spikes.safetensors")
    np.testing.assert_array_equal(ns.load(tmp_path / "spikes.safetensors").peaks, found.peaks)


def test_a_model_without_a_stream_has_none():
    found = ns.spikes(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4)), inputs=torch.zeros(1, 4))
    assert found.spikes == ()
    assert found.remarks() == ["No layer writes to a stream."]


def test_a_module_that_returns_its_channels_at_another_axis_is_not_compared_with_the_text():
    torch.manual_seed(0)
    model = made("convnext").eval()
    found = ns.spikes(model, inputs=example_inputs(model))
    assert found.spikes
    assert all(spike.observed is None or abs(spike.observed) <= abs(spike.bound) * (1 + 1e-5) for spike in found.spikes)


def test_a_channel_that_nothing_can_write_is_no_spike():
    torch.manual_seed(0)
    model = made("gpt2").eval()
    with torch.no_grad():
        for parameter in model.transformer.h[0].mlp.c_proj.parameters():
            parameter.zero_()
        model.transformer.h[1].mlp.c_proj.weight[:, 1:], model.transformer.h[1].mlp.c_proj.bias[1:] = 0.0, 0.0
    found = ns.spikes(model, inputs={"input_ids": torch.arange(8)[None]})
    assert (found.spikes[0].module, found.spikes[0].channel) == ("transformer.h.1.mlp.c_proj", 0)
    assert "transformer.h.0.mlp.c_proj" not in {spike.module for spike in found.spikes}
    json.dumps(found.to_dict(), allow_nan=False)
