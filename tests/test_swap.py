"""Models with other norms in place of their own: what they compute, train, store, and what is said about it."""

import json
import sys

import pytest
import torch
from torch import nn

import normscope.nn
from normscope import swap
from normscope.models.find import find
from normscope.nn import operator
from normscope.results.result import load
from tiny_models import build

TOKENS = {"input_ids": torch.tensor([[3, 14, 15, 9, 2, 6]])}
INPUTS = {"gpt2": TOKENS, "bert": TOKENS, "vit": {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 8, 8)}}


@pytest.fixture(params=["compiled", "without compiled passes"], autouse=True)
def compiled_or_not(request, monkeypatch):
    """Every test here runs twice: with the compiled passes, and as if they could not be had."""
    if request.param == "compiled":
        yield
        return
    monkeypatch.setitem(sys.modules, "normscope.nn.kernels", None)
    monkeypatch.setattr(operator, "_told", ["told already"])
    operator._passes.cache_clear()
    yield
    operator._passes.cache_clear()


def first_output(model, inputs):
    return model(**inputs)[0]


@pytest.mark.parametrize("architecture", INPUTS)
def test_one_group_computes_what_the_model_computed(architecture):
    model, inputs = build(architecture).eval(), INPUTS[architecture]
    swapping = swap(model, groups=1)
    assert len(swapping.swapped) == len(find(model))
    assert not swapping.kept
    assert not any(isinstance(module, nn.LayerNorm) for module in swapping.module.modules())
    expected = first_output(model, inputs)
    assert (first_output(swapping.module, inputs) - expected).abs().max() <= 1e-6 * expected.abs().max()


@pytest.mark.parametrize("architecture", INPUTS)
def test_a_swapped_transformer_trains_and_comes_back_from_disk(architecture, tmp_path):
    inputs = INPUTS[architecture]
    model = swap(build(architecture), groups="auto").module.train()
    kinds = {found.kind for found in find(model).values()}
    assert kinds == {"lng"}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    before = first_output(model.eval(), inputs).detach()
    first_output(model.train(), inputs).square().mean().backward()
    norms = [module for module in model.modules() if isinstance(module, normscope.nn.Norm)]
    assert all(norm.weight.grad.abs().max() > 0 for norm in norms)
    optimizer.step()
    after = first_output(model.eval(), inputs)
    assert not torch.allclose(after, before)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    again = swap(build(architecture), groups="auto").module.eval()
    again.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(first_output(again, inputs), after)


@pytest.mark.parametrize("architecture", INPUTS)
def test_the_folder_of_a_swapped_model_loads_as_the_model_and_is_swapped_again(architecture, tmp_path):
    inputs = INPUTS[architecture]
    model = swap(build(architecture).eval(), groups=4).module
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path, attn_implementation="eager").eval()
    again = swap(loaded, groups=4).module
    assert torch.equal(first_output(again, inputs), first_output(model, inputs))


def two_norms(size=24):
    return nn.Sequential(nn.Linear(4, size), nn.LayerNorm(size), nn.Linear(size, size), nn.LayerNorm(size))


def test_the_model_itself_stays_as_it_is():
    model = two_norms()
    swapping = swap(model, groups=3)
    assert isinstance(model[1], nn.LayerNorm)
    assert swapping.module is not model
    assert swapping.module[1].weight is not model[1].weight


def test_in_place_the_parameters_are_the_same_objects():
    model = two_norms().train()
    weights, order = model[1].weight, list(model.state_dict())
    model[3].weight.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    swapping = swap(model, groups=3, in_place=True)
    assert swapping.module is model
    assert model[1].weight is weights
    assert model[1].training
    assert not model[3].weight.requires_grad
    assert list(model.state_dict()) == order
    model(torch.randn(5, 4)).square().sum().backward()
    before = weights.clone()
    optimizer.step()
    assert not torch.equal(weights, before)


@pytest.mark.parametrize(("size", "groups"), [(24, 6), (768, 192), (30, 6), (7, 1), (3, 1), (4, 1), (8, 2)])
def test_auto_leaves_at_least_four_channels(size, groups):
    swapping = swap(nn.Sequential(nn.LayerNorm(size)), groups="auto")
    assert swapping.swapped[0].groups == swapping.module[0].groups == groups


def test_a_rule_decides_norm_by_norm():
    swapping = swap(two_norms(), groups=lambda found: {"1": 8}.get(found.name))
    assert swapping.module[1].groups == 8
    assert [(left.norm, left.reason) for left in swapping.kept] == [("3", "is left alone by the rule")]


def test_only_takes_names_with_stars_and_norms_of_all_kinds():
    model = build("qwen3")
    swapping = swap(model, groups=2, only=["*.q_norm", "model.norm"])
    names = [change.norm for change in swapping.swapped]
    assert names == [name for name in find(model) if name.endswith((".q_norm", "model.norm"))]
    assert {change.after for change in swapping.swapped} == {"rmsnorm"}
    assert {left.reason for left in swapping.kept} == {"is not named by only="}


def test_a_name_that_only_gets_wrong_is_refused():
    with pytest.raises(ValueError, match=r"only must name norms of the model, got 'h\.\*'; they are 1, 3"):
        swap(two_norms(), groups=2, only="h.*")


@pytest.mark.parametrize(
    ("to", "flags", "kind"),
    [
        ("rmsnorm", (False, True), "rmsnorm"),
        ("projection", (True, False), "projection"),
        ("layernorm", (True, True), "lng"),
    ],
)
def test_other_members_of_the_family(to, flags, kind):
    swapping = swap(two_norms(), groups=2, to=to)
    assert (swapping.module[1].project, swapping.module[1].scale) == flags
    assert {change.after for change in swapping.swapped} == {kind}
    assert swapping.module[1].groups == 2


class Written(nn.Module):
    """A norm written by hand."""

    def __init__(self, formula, size=12):
        super().__init__()
        self.formula, self.scale = formula, nn.Parameter(torch.linspace(-1, 1, size))

    def forward(self, x):
        return self.formula(x, self.scale)


def rms(x):
    return x.square().mean(-1, keepdim=True).sqrt()


def test_gains_stored_without_their_one_are_kept():
    model = nn.Sequential(Written(lambda x, w: x / (rms(x).square() + 1e-3).sqrt() * (1 + w)))
    swapping = swap(model, groups=1, only="*")
    assert swapping.swapped[0].note == "1 + scale is weight now"
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(swapping.module(x), model(x), atol=1e-6)


def test_small_gains_beside_a_one_keep_their_digits_in_half_precision():
    model = build("gemma").base_model.bfloat16()
    swapping = swap(model, groups=1, only="*")
    name, change = "norm", swapping.swapped[-1]
    assert (change.norm, change.note) == (name, "1 + weight is weight now")
    weight = swapping.module.get_submodule(name).weight
    assert torch.equal(weight.double(), 1 + model.get_submodule(name).weight.double())


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Written(lambda x, w: x / (rms(x) + 1e-3) * w), "adds eps outside the root, where normscope.nn.Norm adds"),
        (Written(lambda x, w: x / rms(x).clamp(min=1e-3) * w), "has eps as a floor of the root, where"),
        (Written(lambda x, w: torch.tanh(x) * w), "doubling the input changes the output"),
        (nn.LayerNorm(10), "has 10 channels, which 4 groups do not divide"),
    ],
)
def test_what_can_not_be_swapped_is_kept_with_the_reason(module, reason):
    swapping = swap(nn.Sequential(module), groups=4, only="0")
    assert not swapping.swapped
    assert swapping.module[0].__class__ is module.__class__
    assert reason in swapping.kept[0].reason


def test_a_norm_with_hooks_is_kept():
    model = two_norms()
    model[1].register_forward_hook(lambda *_: None)
    (left,) = swap(model, groups=2).kept
    assert (left.norm, left.reason) == ("1", "has hooks, which would be lost: remove them first")


def test_a_norm_that_stands_in_two_places_is_replaced_in_both():
    norm = nn.LayerNorm(8)
    model = nn.ModuleDict({"a": norm, "b": nn.Sequential(norm)})
    swapped = swap(model, groups=2).module
    assert isinstance(swapped["a"], normscope.nn.Norm)
    assert swapped["a"] is swapped["b"][0]


def test_a_gain_that_two_norms_share_stays_shared():
    model = two_norms()
    model[3].weight = model[1].weight
    swapped = swap(model, groups=2).module
    assert swapped[1].weight is swapped[3].weight


def test_a_model_that_is_a_norm_becomes_another():
    assert isinstance(swap(nn.LayerNorm(8), groups=2).module, normscope.nn.Norm)
    with pytest.raises(ValueError, match="in_place must be False for a model that is itself a norm"):
        swap(nn.LayerNorm(8), groups=2, in_place=True)


@pytest.mark.parametrize("masked", [False, True])
def test_encoder_layers_of_torch_call_their_new_norms_in_eval_mode_too(masked):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2)
    swapped = swap(model, groups=4).module
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if masked else None
    expected = swapped.train()(x, src_key_padding_mask=mask)
    with torch.no_grad():
        assert torch.allclose(swapped.eval()(x, src_key_padding_mask=mask), expected, atol=1e-6)
    assert model.layers[0].activation_relu_or_gelu  # the model itself may take its shortcut


def test_shapes_and_axes_are_kept():
    class LayerNorm2d(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    images = torch.randn(2, 12, 3, 3, generator=torch.Generator().manual_seed(0))
    for module in (LayerNorm2d(12), nn.LayerNorm((12, 3, 3)), normscope.nn.Norm(12, axis=1)):
        model = nn.Sequential(module)
        swapped = swap(model, groups=1).module
        assert torch.allclose(swapped(images), model(images), atol=1e-6)
        assert swapped[0].weight.shape == module.weight.shape


def test_bias_and_gain_may_be_missing():
    for norm in (nn.LayerNorm(8, bias=False), nn.LayerNorm(8, elementwise_affine=False)):
        swapped = swap(nn.Sequential(norm), groups=2).module[0]
        assert swapped.state_dict().keys() == norm.state_dict().keys()


def test_groups_can_be_taken_back():
    model = two_norms()
    there_and_back = swap(swap(model, groups=4).module, groups=1).module
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(there_and_back(x), model(x), atol=1e-6)


def test_a_norm_that_did_not_scale_gets_the_usual_eps():
    swapping = swap(nn.Sequential(normscope.nn.Norm(8, scale=False)), groups=2, only="0", to="layernorm")
    assert swapping.module[0].eps == 1e-5


def test_the_result_reads_as_a_table_and_as_json():
    model = nn.Sequential(nn.LayerNorm(12), nn.RMSNorm(12))
    swapping = swap(model, groups=3)
    assert repr(swapping) == "Swapping(Sequential: 1 swapped, 1 kept)"
    cells = [line.split() for line in str(swapping).splitlines()]
    assert ["0", "layernorm", "lng", "12", "3", "4"] in cells
    assert [
        "1",
        "rmsnorm",
        *["is", "not", "a", "LayerNorm:", "name", "it", "with", "only=", "to", "swap", "it"],
    ] in cells
    stored = json.loads(json.dumps(swapping.to_dict(), allow_nan=False))
    assert stored["swapped"][0]["groups"] == 3
    assert stored["kept"][0]["kind"] == "rmsnorm"
    assert "<td>rmsnorm</td>" in swapping._repr_html_()


def test_a_saved_result_has_all_but_the_model(tmp_path):
    swapping = swap(nn.LayerNorm(12), groups=3)
    assert "(the model)" in str(swapping)
    swapping.save(tmp_path / "swapping.safetensors")
    again = load(tmp_path / "swapping.safetensors")
    assert (again.to_dict(), again.module) == (swapping.to_dict(), None)


def test_a_folder_is_loaded_and_swapped(tmp_path):
    build("gpt2").save_pretrained(tmp_path)
    swapping = swap(tmp_path, groups=2, dtype="bfloat16")
    assert swapping.model == str(tmp_path)
    assert len(swapping.swapped) == len(find(tmp_path))
    assert swapping.module.dtype == torch.bfloat16
    assert first_output(swapping.module, TOKENS).isfinite().all()


class ScaledNorm(nn.LayerNorm):
    def forward(self, x, scale=1.0):
        return super().forward(x) * scale


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = ScaledNorm(8)

    def forward(self, x):
        return self.norm(x, x.exp())


def test_inputs_show_what_a_norm_computes_inside_the_model():
    (left,) = swap(Scales(), groups=2, inputs=torch.ones(1, 8)).kept
    assert left.reason.startswith("is gated, norm(x) ∘ gate")
    (left,) = swap(Scales(), groups=2).kept
    assert left.reason.startswith("takes more than its input (x, scale), and its calls were not checked")


class ChannelsNorm(nn.Module):
    """A LayerNorm over the channels of (N, C, ...), as convolutional networks write it."""

    def __init__(self, channels):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        apart = x - x.mean(1, keepdim=True)
        scaled = apart / (apart.square().mean(1, keepdim=True) + 1e-6).sqrt()
        shape = (1, -1) + (1,) * (x.ndim - 2)
        return scaled * self.weight.view(shape) + self.bias.view(shape)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize(
    "norm", [ChannelsNorm, lambda channels: normscope.nn.Norm(channels, axis=1)], ids=["own", "ours"]
)
def test_norms_over_the_channels_of_images_are_swapped(norm, traced):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), norm(8), nn.ReLU(), nn.Conv2d(8, 12, 3), norm(12), nn.Flatten())
    images = torch.randn(2, 3, 8, 8)
    swapping = swap(model, groups=lambda found: found.size // 4, inputs=images if traced else None)
    assert [each.norm for each in swapping.swapped] == ["1", "4"]
    assert [(swapping.module[place].groups, swapping.module[place].axis) for place in (1, 4)] == [(2, 1), (3, 1)]
    x = swapping.module[0](images)
    parts = [part - part.mean(1, keepdim=True) for part in x.chunk(2, dim=1)]
    expected = torch.cat([part / part.square().mean(1, keepdim=True).sqrt() for part in parts], dim=1)
    torch.testing.assert_close(swapping.module[1](x), expected, atol=1e-3, rtol=1e-3)
    same = swap(model, groups=1, inputs=images if traced else None)
    torch.testing.assert_close(same.module(images), model(images))


def test_a_model_without_norms_is_said_to_have_none():
    assert str(swap(nn.Linear(2, 2), groups=2)) == "No norm was swapped."


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"groups": 0}, "groups must be a whole number, 1 or more, got 0"),
        ({"groups": "many"}, "groups must be a number, 'auto' or a function of a found norm, got 'many'"),
        ({"groups": lambda found: 2.5}, "groups must be a whole number, 1 or more, got 2.5"),
        ({"groups": 2, "to": "batchnorm"}, "to must be one of layernorm, rmsnorm, projection, got 'batchnorm'"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        swap(two_norms(), **settings)


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = two_norms()
    with pytest.raises(ValueError, match="load the weights first"):
        swap(model, groups=2)
