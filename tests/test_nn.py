"""The module and the function, on the fused operator and without it, against torch and against the value type."""

import copy
import math
import pickle
import shutil
import sys
import warnings
from functools import partial

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import normscope.nn
from normscope import Norm, find
from normscope.nn import operator, pure
from strategies import FLAGS

FORMS = [(1, 40), (8, 4), (9, 3), (16, 12), (2, 33)]  # groups, channels


@pytest.fixture(params=["compiled", "without compiled passes"], autouse=True)
def compiled_or_not(request, monkeypatch):
    """Every test here runs twice: with the compiled passes, and as if they could not be had."""
    if request.param == "compiled":
        yield
        return
    monkeypatch.setitem(sys.modules, "normscope.nn.kernels", None)
    monkeypatch.setattr(operator, "_told", [])
    operator._passes.cache_clear()
    with pytest.warns(RuntimeWarning, match="compiled passes are not available"):
        normscope.nn.norm(torch.ones(1, 4))
    yield
    operator._passes.cache_clear()


each_form = pytest.mark.parametrize(("groups", "channels"), FORMS, ids=str)


def by_definition(x, gain, bias, project=True, scale=True, groups=1, eps=1e-5):
    """Straight from the formula, in float64, differentiable."""
    z = x.double().reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    if project:
        z = z - z.mean(-1, keepdim=True)
    if scale:
        z = z / (z.square().mean(-1, keepdim=True) + eps).sqrt()
    y = z.reshape(x.shape)
    y = y if gain is None else y * gain.double()
    return y if bias is None else y + bias.double()


def drawn(rows, size, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(rows, size, generator=generator) + torch.randn(rows, 1, generator=generator)
    gain, bias = 1 + 0.3 * torch.randn(2, size, generator=generator)
    return x.to(dtype), gain.to(dtype), bias.to(dtype)


def gradients(function, tensors, cotangent):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    return torch.autograd.grad(function(*leaves), leaves, cotangent)


def assert_near(actual, expected, relative):
    """Within a share of the largest expected value."""
    assert actual.shape == expected.shape
    assert (actual.double() - expected.double()).abs().max() <= relative * expected.double().abs().max()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from(FORMS),
    rows=st.integers(0, 5),
    scale_of_x=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_outputs_are_those_of_the_value_type(seed, form, rows, scale_of_x):
    groups, channels = form
    x, gain, bias = drawn(rows, groups * channels, seed=seed)
    x = scale_of_x * x
    reference = Norm(gain=gain, bias=bias, groups=groups)
    y = normscope.nn.norm(x, gain, bias, groups=groups)
    assert y.shape == x.shape
    assert y.numpy() == pytest.approx(reference(x), abs=2e-5)


@pytest.mark.parametrize(("groups", "channels"), [(9, 3), (3, 8), (2, 33)])
@pytest.mark.parametrize(("project", "scale"), FLAGS)
def test_every_member_computes_its_formula_and_its_gradients(groups, channels, project, scale):
    flags = {"project": project, "scale": scale, "groups": groups, "eps": 1e-3}
    tensors = drawn(7, groups * channels, torch.float64)
    cotangent = torch.randn(7, groups * channels, generator=torch.Generator().manual_seed(1)).double()
    assert_near(normscope.nn.norm(*tensors, **flags), by_definition(*tensors, **flags), 1e-14)
    ours = gradients(lambda *t: normscope.nn.norm(*t, **flags), tensors, cotangent)
    expected = gradients(lambda *t: by_definition(*t, **flags), tensors, cotangent)
    for actual, wanted in zip(ours, expected, strict=True):
        assert_near(actual, wanted, 1e-13)


@pytest.mark.parametrize(("project", "scale"), FLAGS)
@pytest.mark.parametrize(("groups", "channels"), [(1, 6), (3, 3)])
def test_derivatives_are_right_to_second_order(groups, channels, project, scale):
    tensors = [tensor.requires_grad_() for tensor in drawn(2, groups * channels, torch.float64)]

    def call(x, gain, bias):
        return normscope.nn.norm(x, gain, bias, project=project, scale=scale, groups=groups, eps=1e-3)

    assert torch.autograd.gradcheck(call, tensors)
    assert torch.autograd.gradgradcheck(call, tensors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [33, 96])
def test_one_group_is_torch_layer_norm_in_every_precision(dtype, size):
    tensors = drawn(9, size, dtype)
    cotangent = torch.randn(9, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    step = torch.finfo(dtype).eps
    ours = normscope.nn.norm(*tensors)
    assert ours.dtype == dtype
    assert_near(ours, F.layer_norm(tensors[0], (size,), *tensors[1:]), 2 * step)
    wanted = gradients(lambda x, gain, bias: F.layer_norm(x, (size,), gain, bias), tensors, cotangent)
    for actual, expected in zip(gradients(normscope.nn.norm, tensors, cotangent), wanted, strict=True):
        assert actual.dtype == dtype
        assert_near(actual, expected, 4 * step)


LARGE = [
    (torch.float32, 1e13),
    (torch.float32, 1e18),
    (torch.float32, 1e20),
    (torch.float32, 1e36),
    (torch.bfloat16, 1e20),
    (torch.bfloat16, 1e36),
    (torch.float16, 6e4),
    (torch.float64, 1e160),
    (torch.float64, 1e300),
    (torch.float32, 1e-30),
    (torch.bfloat16, 1e-30),
    (torch.float16, 1e-7),
]


@pytest.mark.parametrize(("dtype", "size_of_x"), LARGE, ids=str)
@pytest.mark.parametrize(
    ("groups", "channels", "project"), [(1, 40, True), (9, 3, True), (2, 33, False), (8, 4, False)]
)
def test_inputs_whose_squares_overflow_or_vanish(dtype, size_of_x, groups, channels, project):
    """In one of three rows. The reference: float64, with inputs and eps in units of the large ones."""
    x, gain, bias = drawn(3, groups * channels, torch.float64)
    x, gain, bias = x / 16, gain.to(dtype), bias.to(dtype)
    x[1] *= size_of_x
    x = x.to(dtype)
    unit = size_of_x if size_of_x > 1 else 1.0
    shrunk = x.double() / torch.tensor([[1.0], [unit], [1.0]], dtype=torch.float64)
    cotangent = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    call = partial(normscope.nn.norm, project=project, groups=groups)
    step = torch.finfo(dtype).eps

    def reference(x, gain, bias):
        rows = (
            by_definition(x[row : row + 1], gain, bias, project, True, groups, eps)
            for row, eps in enumerate((1e-5, 1e-5 / unit / unit, 1e-5))
        )
        return torch.cat(list(rows))

    assert_near(call(x, gain, bias), reference(shrunk, gain, bias), 4 * step)
    expected = gradients(reference, (shrunk, gain.double(), bias.double()), cotangent.double())
    paths = {"fused": call, "torch's operations": partial(pure_norm, project=project, groups=groups)}
    for path in paths.values():
        dx, dgain, dbias = gradients(path, (x, gain, bias), cotangent)
        assert_near(dgain, expected[1], 8 * step)
        assert_near(dbias, expected[2], 8 * step)
        smallest = torch.finfo(dtype).smallest_normal
        for row, size in enumerate((1.0, unit, 1.0)):
            wanted_row = expected[0][row] / size
            assert (dx[row].double() - wanted_row).abs().max() <= 32 * step * wanted_row.abs().max() + step * smallest


def pure_norm(x, gain, bias, project, groups):
    """Differentiated by autograd, as under transforms and on other devices."""
    return pure.forward(x, gain, bias, project, True, groups, 1e-5)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [8, 40, 64])
def test_infinities_and_nan_go_through_as_in_torch(value, dtype, size):
    tensors = drawn(3, size, dtype)
    tensors[0][1, 1] = value
    cotangent = torch.randn(3, size, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch_ways = {
        True: lambda x, gain, bias: F.layer_norm(x, (size,), gain, bias),
        False: lambda x, gain, bias: F.rms_norm(x, (size,), gain, eps=1e-5) + bias,
    }
    for project, torch_way in torch_ways.items():
        call = partial(normscope.nn.norm, project=project)
        assert torch.equal(call(*tensors).isnan(), torch_way(*tensors).isnan())
        ours, theirs = gradients(call, tensors, cotangent), gradients(torch_way, tensors, cotangent)
        for actual, expected in zip(ours, theirs, strict=True):
            assert torch.equal(actual.isnan(), expected.isnan())
        assert torch.isfinite(ours[0][[0, 2]]).all()


@pytest.mark.parametrize("channels", [4, 40])
def test_where_even_the_sum_overflows_there_is_no_number(channels):
    x = torch.full((2, channels), 3e38)
    x[0] = torch.arange(channels)
    y = normscope.nn.norm(x)
    assert y[0].isfinite().all()
    assert y[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@each_form
def test_half_precision_is_float32_inside(dtype, groups, channels):
    x, gain, bias = drawn(5, groups * channels, dtype)
    expected = by_definition(x, gain, bias, groups=groups)
    for weights in ((gain, bias), (gain.float(), bias.float())):
        y = normscope.nn.norm(x, *weights, groups=groups)
        assert y.dtype == dtype
        assert ((y.double() - expected).abs() <= 0.51 * torch.finfo(dtype).eps * expected.abs() + 2e-6).all()


def test_gradients_follow_the_dtype_of_each_parameter():
    x, gain, bias = drawn(4, 12, torch.bfloat16)
    dx, dgain, dbias = gradients(
        lambda *t: normscope.nn.norm(*t, groups=3), (x, gain.float(), bias), torch.ones_like(x)
    )
    assert (dx.dtype, dgain.dtype, dbias.dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)


@pytest.mark.parametrize("missing", ["gain", "bias", "both"])
def test_gain_and_bias_may_be_missing(missing):
    x, gain, bias = drawn(4, 24, torch.float64)
    gain = None if missing in ("gain", "both") else gain.requires_grad_()
    bias = None if missing in ("bias", "both") else bias.requires_grad_()
    x.requires_grad_()
    leaves = [leaf for leaf in (x, gain, bias) if leaf is not None]
    cotangent = torch.randn(4, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y, expected = normscope.nn.norm(x, gain, bias, groups=6), by_definition(x, gain, bias, groups=6)
    assert_near(y, expected, 1e-14)
    for actual, wanted in zip(*(torch.autograd.grad(out, leaves, cotangent) for out in (y, expected)), strict=True):
        assert_near(actual, wanted, 1e-12)


def test_only_the_gradients_that_are_asked_for_are_given():
    x, gain, bias = drawn(3, 8)
    gain.requires_grad_()
    normscope.nn.norm(x, gain, bias, groups=2).sum().backward()
    assert x.grad is None
    assert bias.grad is None
    assert gain.grad.shape == (8,)


def test_input_that_is_not_contiguous_and_a_gradient_that_is_expanded():
    x, gain, bias = drawn(24, 10)
    view = x.T.requires_grad_()  # (10, 24)
    y = normscope.nn.norm(view, gain.repeat(3)[:24], bias.repeat(3)[:24], groups=4)
    assert_near(y, by_definition(view, gain.repeat(3)[:24], bias.repeat(3)[:24], groups=4), 1e-6)
    (dx,) = torch.autograd.grad(y.sum(), view)
    (expected,) = torch.autograd.grad(by_definition(view, gain.repeat(3)[:24], None, groups=4).sum(), view)
    assert_near(dx, expected, 1e-5)


@pytest.mark.parametrize("shape", [(24,), (1, 24), (2, 1, 3, 24)], ids=str)
def test_any_number_of_axes_before_the_channels(shape):
    x, gain, bias = drawn(6, 24, torch.float64)
    tensors = (x.flatten()[: torch.Size(shape).numel()].view(shape), gain, bias)
    cotangent = torch.linspace(-1, 2, tensors[0].numel(), dtype=torch.float64).view(shape)
    ours = gradients(lambda *t: normscope.nn.norm(*t, groups=6), tensors, cotangent)
    expected = gradients(lambda *t: by_definition(*t, groups=6), tensors, cotangent)
    assert_near(normscope.nn.norm(*tensors, groups=6), by_definition(*tensors, groups=6), 1e-14)
    for actual, wanted in zip(ours, expected, strict=True):
        assert_near(actual, wanted, 1e-12)


def test_numbers_that_torch_has_not_written_yet_are_those_that_count():
    x, gain, bias = drawn(3, 8)
    x.requires_grad_()
    negated = torch._neg_view(x)  # the memory of x, to be read as −x
    y = normscope.nn.norm(negated, torch._neg_view(gain), bias, groups=2)
    assert_near(y, by_definition(-x, -gain, bias, groups=2), 1e-6)
    (dx,), (expected,) = (
        torch.autograd.grad(out.square().sum(), x) for out in (y, by_definition(-x, -gain, bias, groups=2))
    )
    assert_near(dx, expected, 1e-5)
    (nothing,) = torch.autograd.grad(normscope.nn.norm(x, gain, groups=2), x, torch._efficientzerotensor(3, 8))
    assert not nothing.any()


def test_an_empty_batch_goes_both_ways():
    x = torch.empty(0, 3, 24, requires_grad=True)
    layer = normscope.nn.Norm(24, groups=6)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 3, 24)
    assert layer.weight.grad.abs().max() == layer.bias.grad.abs().max() == 0


def test_nan_and_infinity_stay_in_their_group():
    x = torch.ones(2, 16) * torch.arange(16)
    x[0, 1], x[1, 15] = float("nan"), float("inf")
    spoilt = normscope.nn.norm(x, groups=4).isnan()
    assert spoilt.nonzero().tolist() == [[0, i] for i in range(4)] + [[1, i] for i in range(12, 16)]


@pytest.mark.parametrize("layer_norm", [nn.LayerNorm((3, 8)), nn.LayerNorm((3, 8), elementwise_affine=False)])
def test_a_shape_of_several_axes_is_that_of_layer_norm(layer_norm):
    layer = normscope.nn.Norm((3, 8), affine=layer_norm.elementwise_affine)
    layer.load_state_dict(layer_norm.state_dict())
    x = drawn(10, 24)[0].view(5, 2, 3, 8)
    assert_near(layer(x), layer_norm(x), 1e-6)
    grouped = normscope.nn.Norm((3, 8), groups=3)
    assert_near(grouped(x), normscope.nn.norm(x.flatten(-2), groups=3).view(x.shape), 1e-6)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_channels_of_images(layout):
    x = drawn(2 * 12 * 5, 7)[0].view(2, 12, 5, 7).contiguous(memory_format=layout).requires_grad_()
    layer = normscope.nn.Norm(12, groups=3, axis=1)
    nn.init.normal_(layer.weight)
    expected = by_definition(x.permute(0, 2, 3, 1), layer.weight, layer.bias, groups=3).permute(0, 3, 1, 2)
    assert_near(layer(x), expected, 1e-6)
    (dx,), (wanted,) = (torch.autograd.grad(out.square().sum(), x) for out in (layer(x), expected))
    assert_near(dx, wanted, 1e-5)


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_gives_the_dtype_of_layer_norm(dtype, enabled):
    x = drawn(3, 8, dtype)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        assert normscope.nn.Norm(8, groups=2)(x).dtype == nn.LayerNorm(8)(x).dtype


def test_autocast_trains_a_network():
    network = nn.Sequential(nn.Linear(8, 24), normscope.nn.Norm(24, groups=6), nn.Linear(24, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        network(drawn(4, 8)[0]).float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in network.parameters())


BACKENDS = ["aot_eager"] + (["inductor"] if shutil.which("g++") else [])


@pytest.mark.parametrize("backend", BACKENDS)
def test_torch_compile_needs_no_break_and_changes_nothing(backend):
    torch._dynamo.reset()
    network = nn.Sequential(nn.Linear(8, 24), normscope.nn.Norm(24, groups=6), nn.GELU())
    x = drawn(5, 8)[0].requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's compilers, about themselves
        compiled = torch.compile(network, fullgraph=True, backend=backend)
        y = compiled(x)
        (dx,) = torch.autograd.grad(y.square().sum(), x)
    expected = network(x)
    (wanted,) = torch.autograd.grad(expected.square().sum(), x)
    assert_near(y, expected, 1e-6)
    assert_near(dx, wanted, 1e-5)


def test_an_exported_program_needs_nothing_but_torch():
    layer = normscope.nn.Norm(24, groups=6)
    x = drawn(5, 24)[0]
    batch = torch.export.Dim("batch")
    program = torch.export.export(layer, (x,), dynamic_shapes=({0: batch},))
    assert not [node for node in program.graph.nodes if "normscope" in str(node.target)]
    assert_near(program.module()(x[:3]), layer(x[:3]), 1e-6)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:`torch.jit.*:DeprecationWarning")
def test_a_traced_layer_needs_nothing_but_torch():
    layer, x = normscope.nn.Norm(24, groups=6), drawn(5, 24)[0]
    traced = torch.jit.trace(layer, (x,))
    assert "normscope::" not in str(traced.graph)
    assert_near(traced(x[:3]), layer(x[:3]), 1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")  # in torch's own rules
def test_transforms_of_torch_func():
    x, gain, bias = drawn(4, 6, torch.float64)

    def ours(row):
        return normscope.nn.norm(row, gain, bias, groups=2, eps=1e-3)

    def expected(row):
        return by_definition(row, gain, bias, groups=2, eps=1e-3)

    for transform in (torch.func.vmap, torch.func.jacrev, torch.func.jacfwd, torch.func.hessian):
        given = x if transform is torch.func.vmap else x[0]
        assert_near(transform(ours)(given), transform(expected)(given), 1e-10)


def test_gradients_of_each_sample_by_torch_func():
    layer = normscope.nn.Norm(6, groups=2, eps=1e-3, dtype=torch.float64)
    x = drawn(4, 6, torch.float64)[0]

    def loss(parameters, row):
        return torch.func.functional_call(layer, parameters, (row,)).square().cumsum(-1).sum()

    parameters = dict(layer.named_parameters())
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for row in range(4):
        one_by_one = torch.autograd.grad(loss(parameters, x[row]), list(parameters.values()))
        for name, expected in zip(parameters, one_by_one, strict=True):
            assert_near(each[name][row], expected, 1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.*:DeprecationWarning")
def test_forward_differentiation():
    x, gain, bias = drawn(2, 12, torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x).cumsum(-1))
        ours, expected = (
            forward_ad.unpack_dual(call(dual, gain, bias, groups=3)).tangent
            for call in (normscope.nn.norm, by_definition)
        )
    assert_near(ours, expected, 1e-12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_state_dicts_load_from_and_into_layer_norm(affine, bias):
    layer, layer_norm = normscope.nn.Norm(12, affine=affine, bias=bias), nn.LayerNorm(12, 1e-5, affine, bias)
    for parameter in layer_norm.parameters():
        nn.init.normal_(parameter)
    layer.load_state_dict(layer_norm.state_dict())
    x = drawn(3, 12)[0]
    assert_near(layer(x), layer_norm(x), 1e-6)
    back = nn.LayerNorm(12, 1e-5, affine, bias)
    back.load_state_dict(layer.state_dict())
    assert torch.equal(back(x), layer_norm(x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_and_pickles_compute_the_same(duplicate):
    layer = normscope.nn.Norm((2, 6), groups=3, bias=False, eps=1e-3)
    nn.init.normal_(layer.weight)
    again, x = duplicate(layer), drawn(3, 12)[0].view(3, 2, 6)
    assert torch.equal(again(x), layer(x))
    assert repr(again) == repr(layer) == "Norm((2, 6), groups=3, eps=0.001, bias=False)"
    assert again.weight is not layer.weight


@pytest.mark.parametrize(
    ("settings", "kind"),
    [({}, "layernorm"), ({"groups": 3}, "lng"), ({"project": False}, "rmsnorm"), ({"scale": False}, "projection")],
)
def test_the_module_is_found_for_what_it_is(settings, kind):
    (found,) = find(nn.Sequential(normscope.nn.Norm(12, **settings))).values()
    assert (found.kind, found.norm.groups, found.axis) == (kind, settings.get("groups", 1), -1)


def test_the_module_over_channels_of_images_is_found_too():
    (found,) = find(nn.Sequential(normscope.nn.Norm(12, groups=2, axis=1))).values()
    assert (found.kind, found.norm.groups) == ("lng", 2)


def test_devices_without_values_work_too():
    layer = normscope.nn.Norm(12, groups=3, device="meta", dtype=torch.bfloat16)
    y = layer(torch.empty(2, 12, device="meta", dtype=torch.bfloat16))
    assert (y.device.type, y.dtype, y.shape) == ("meta", torch.bfloat16, (2, 12))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be a whole number, 1 or more, got 0"),
        ({"size": 2.5}, "size must be a whole number, 1 or more, got 2.5"),
        ({"size": ()}, "got an empty shape"),
        ({"size": 12, "groups": 5}, "groups must divide the number of channels, got 5 groups of 12 channels"),
        ({"size": 12, "groups": 0}, "groups must be a whole number"),
        ({"size": 12, "eps": -1.0}, "eps must be one number, 0 or more"),
        ({"size": 12, "project": 1e-5}, "project must be True or False, got 1e-05"),
        ({"size": (3, 4), "axis": 1}, "axis must be -1"),
    ],
)
def test_what_makes_no_norm_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        normscope.nn.Norm(**arguments)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (normscope.nn.Norm(12), (3, 11)),
        (normscope.nn.Norm(12, affine=False), ()),
        (normscope.nn.Norm((3, 4)), (12,)),
        (normscope.nn.Norm(12, axis=1), (12,)),
        (normscope.nn.Norm(12, axis=1), (2, 7, 12)),
    ],
)
def test_an_input_of_another_shape_is_refused(layer, shape):
    with pytest.raises(ValueError, match=r"x must have .* channels in .*, got shape"):
        layer(torch.ones(shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(2, 4, dtype=torch.int64),), "x must have a floating-point dtype, got torch.int64"),
        ((torch.ones(()),), "one or more channels"),
        ((torch.ones(2, 4), torch.ones(3)), "gain must have one value for each of the 4 channels"),
        ((torch.ones(2, 4), None, torch.ones(2, 4)), "bias must have one value for each of the 4 channels"),
        ((torch.ones(2, 4), torch.ones(4, device="meta")), "gain must be on the device of x, cpu, got meta"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        normscope.nn.norm(*arguments)


def test_a_large_mean_costs_no_more_digits_than_in_torch():
    x = 1e4 + torch.randn(500, 96, generator=torch.Generator().manual_seed(0))
    exact = by_definition(x, None, None)
    ours, theirs = ((y - exact).abs().max() for y in (normscope.nn.norm(x), F.layer_norm(x, (96,))))
    assert ours <= 1.5 * theirs
