import re

import pytest
import torch
from torch import nn

from normscope.models.probe import form_of


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of (batch, channels, height, width)."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Written(nn.Module):
    """A norm written by hand: `formula` gets the input and the module."""

    def __init__(self, size, formula, **vectors):
        super().__init__()
        self.formula = formula
        for name, value in ({"weight": 1.0} | vectors).items():
            self.register_parameter(name, nn.Parameter(torch.full((size,), value)))

    def forward(self, x):
        return self.formula(x, self)


def centred(x):
    return x - x.mean(-1, keepdim=True)


def rms(x):
    return x.pow(2).mean(-1, keepdim=True).sqrt()


IN_THE_FAMILY = {  # module, projects, scales, groups, gain, convention, bias, eps, its place, axis
    "LayerNorm": (nn.LayerNorm(16), True, True, 1, "weight", "w", "bias", 1e-5, "inside", -1),
    "LayerNorm without bias": (nn.LayerNorm(16, bias=False), True, True, 1, "weight", "w", None, 1e-5, "inside", -1),
    "LayerNorm without affine": (
        nn.LayerNorm(16, elementwise_affine=False), True, True, 1, None, None, None, 1e-5, "inside", -1,
    ),
    "LayerNorm with tiny eps": (nn.LayerNorm(16, eps=1e-12), True, True, 1, "weight", "w", "bias", 1e-12, "inside", -1),
    "LayerNorm with eps 1": (nn.LayerNorm(16, eps=1.0), True, True, 1, "weight", "w", "bias", 1.0, "inside", -1),
    "LayerNorm with eps 0": (nn.LayerNorm(16, eps=0.0), True, True, 1, "weight", "w", "bias", 0.0, None, -1),
    "LayerNorm of two axes": (nn.LayerNorm((4, 5)), True, True, 1, "weight", "w", "bias", 1e-5, "inside", -1),
    "LayerNorm of 2": (nn.LayerNorm(2), True, True, 1, "weight", "w", "bias", 1e-5, "inside", -1),
    "LayerNorm of 7": (nn.LayerNorm(7), True, True, 1, "weight", "w", "bias", 1e-5, "inside", -1),
    "LayerNorm2d": (LayerNorm2d(12), True, True, 1, "weight", "w", "bias", 1e-5, "inside", 1),
    "RMSNorm": (nn.RMSNorm(16, eps=1e-6), False, True, 1, "weight", "w", None, 1e-6, "inside", -1),
    "RMSNorm without eps": (
        nn.RMSNorm(16), False, True, 1, "weight", "w", None, torch.finfo(torch.float32).eps, "inside", -1,
    ),
    "GroupNorm": (nn.GroupNorm(4, 16), True, True, 4, "weight", "w", "bias", 1e-5, "inside", -1),
    "projection only": (
        Written(9, lambda x, m: centred(x) * m.weight + m.shift, shift=0.0),
        True, False, 1, "weight", "w", "shift", 0.0, None, -1,
    ),
    "gain 1 + w": (
        Written(9, lambda x, m: x / rms(x) * (1 + m.weight)), False, True, 1, "weight", "1+w", None, 0.0, None, -1,
    ),
    "eps outside": (
        Written(9, lambda x, m: centred(x) / (rms(centred(x)) + 1e-4) * m.weight),
        True, True, 1, "weight", "w", None, pytest.approx(1e-4, rel=1e-3), "outside", -1,
    ),
    "eps as a floor": (
        Written(9, lambda x, m: x / rms(x).clamp(min=1e-4) * m.weight),
        False, True, 1, "weight", "w", None, pytest.approx(1e-4, rel=1e-3), "floor", -1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_THE_FAMILY.values(), ids=IN_THE_FAMILY)
def test_a_member_of_the_family_is_told_by_its_answers(case):
    module, *expected = case
    form = form_of(module)
    assert form.problem is None
    seen = [
        form.projects,
        form.scales,
        form.groups,
        form.gain,
        form.gain_convention,
        form.bias,
        form.eps,
        form.eps_place,
    ]
    assert [*seen, form.axis] == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_dtype_of_the_weights_does_not_matter(dtype):
    assert form_of(nn.LayerNorm(16).to(dtype)) == form_of(nn.LayerNorm(16))


def test_a_module_without_weights_on_the_meta_device_answers_too():
    assert form_of(nn.RMSNorm(32, eps=1e-6, device="meta")) == form_of(nn.RMSNorm(32, eps=1e-6))


def test_probing_leaves_the_module_alone():
    module = nn.LayerNorm(8).train()
    before = module.weight.clone()
    form_of(module)
    assert module.training
    assert torch.equal(module.weight, before)


OUTSIDE = {
    "variance where RMS is claimed": (
        Written(9, lambda x, m: x / (x.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt() * m.weight),
        "divides by the standard deviation but does not subtract the mean",
    ),
    "DyT": (
        Written(9, lambda x, m: torch.tanh(0.7 * x) * m.weight),
        "doubling the input changes the output by .*; adding a constant changes it by",
    ),
    "gain that no parameter explains": (
        Written(9, lambda x, m: x / rms(x) * m.weight.exp()),
        "has a gain .* that is neither a parameter w, nor 1 \\+ w, nor 1",
    ),
    "BatchNorm in eval mode": (nn.BatchNorm1d(8), "neither projects nor scales"),
    "InstanceNorm": (nn.InstanceNorm1d(6), "over positions, separately for each channel"),
    "one channel": (nn.LayerNorm(1), "its output does not depend on its input"),
    "eps that nothing explains": (
        Written(9, lambda x, m: x / (rms(x) ** 3 + 1e-6) ** (1 / 3) * m.weight),
        "no place of eps explains",
    ),
}


@pytest.mark.parametrize(("module", "problem"), OUTSIDE.values(), ids=OUTSIDE)
def test_what_fits_no_member_is_unknown_with_the_failed_check(module, problem):
    form = form_of(module)
    assert form.problem is not None
    assert re.search(problem, form.problem)


def test_a_norm_whose_gain_is_a_matrix_is_unknown_and_not_passed_over():
    class HeadNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 8))

        def forward(self, x):
            return x / rms(x) * self.weight

    assert form_of(HeadNorm()).problem == "has parameters of shape (2, 8), not one vector"


def test_a_norm_that_needs_more_than_one_tensor_is_unknown():
    class AdaptiveNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))

        def forward(self, x, condition):
            return x * condition * self.weight

    assert "can't be called with one tensor" in form_of(AdaptiveNorm()).problem


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(8, 8),
        nn.Linear(8, 1),
        nn.Embedding(5, 8),
        nn.Conv1d(3, 3, 1),
        nn.Dropout(),
        nn.GELU(),
        nn.Softmax(-1),
        nn.PReLU(8),
        nn.PReLU(),
        nn.Identity(),
        nn.Sequential(nn.LayerNorm(8)),
        Written(8, lambda x, m: x * m.weight),
    ],
    ids=lambda module: type(module).__name__,
)
def test_what_is_no_norm_is_passed_over(module):
    assert form_of(module) is None


def test_a_group_norm_that_would_average_over_space_says_so():
    assert form_of(nn.GroupNorm(4, 16)).pools_space
    assert not form_of(nn.LayerNorm(16)).pools_space
    assert not form_of(LayerNorm2d(16)).pools_space
