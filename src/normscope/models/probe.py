"""What a module computes, identified from its outputs, not from its class name.

A copy of the module gets parameters drawn at random and is run on a few inputs x and −x. For each member of the family,

    (f(x) − f(−x))/2 = gain · s(x)        (f(x) + f(−x))/2 = bias        s: project and scale in groups, eps = 0

must hold with one gain and bias per channel. Which parameters they are, and if the gain is w or 1 + w, follows from
the drawn values; the place of eps, from how the output shrinks with its input.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from normscope.checks import Floats, first_line
from normscope.models.copies import silent_copy

PROBES = 7  # inputs in a batch; never the number of channels, so that axes can't be confused
LOUD = 1e3  # size of inputs that makes eps negligible
FIT = 1e-4  # relative misfit that counts as rounding: modules run in float32, as models do
SEED = 0
ANY_WIDTH = 24
AFFINE = "neither projects nor scales: an affine map, such as BatchNorm in eval mode"
HOMOGENEOUS = "doubling the input doubles the output"
ANY = "normalizes vectors of any width, which is only known in use"

Function = Callable[[Floats], Floats]  # (PROBES, channels) → the same shape


@dataclass(frozen=True)
class Form:
    """What a module computes, apart from the values of its parameters."""

    size: int  # 0 if only known in use
    problem: str | None = None  # why it is not a member of the family; then the fields below are meaningless
    projects: bool = False
    scales: bool = False
    groups: int = 1
    gain: str | None = None  # name of the parameter, None if the gain is 1
    gain_convention: str | None = None
    bias: str | None = None
    eps: float = 0.0
    eps_place: str | None = None
    axis: int = -1
    pools_space: bool = False  # with further axes, it takes its statistics over them too


def form_of(module: nn.Module) -> Form | None:
    """The form of a module, or None if nothing about it suggests a normalization layer.

    >>> form = form_of(nn.RMSNorm(8, eps=1e-6))
    >>> form.projects, form.scales, form.gain, form.gain_convention, form.eps, form.eps_place
    (False, True, 'weight', 'w', 1e-06, 'inside')
    """
    shape, named = _channels(module), "norm" in type(module).__name__.lower()
    if shape is None:
        return _without_one_vector(module) if named else None
    parametric = any(values.numel() > 1 and values.ndim == 1 for values in module.parameters(recurse=False))
    try:
        form = _probe(module, shape)
    except _NoCopyError as refusal:
        form = Form(math.prod(shape), problem=str(refusal))
    if form.problem is None and not _says_its_width(module):
        form = Form(0, problem=ANY)
    if form.problem is None or named:
        return form
    return form if parametric and form.problem not in (AFFINE, HOMOGENEOUS) else None


def _channels(module: nn.Module) -> tuple[int, ...] | None:
    """The shape of what a candidate normalizes: all its parameters have it, or are single numbers."""
    own = list(module.parameters(recurse=False))
    parts = len(list(module.parameters())) > len(own) or (not own and next(module.children(), None) is not None)
    if parts or any(is_lazy(parameter) for parameter in own):
        return None  # a submodule may be a norm, or it has no shape yet
    declared = getattr(module, "normalized_shape", None)
    shapes = {tuple(parameter.shape) for parameter in own if parameter.numel() > 1}
    if declared is not None and shapes <= {tuple(declared)}:
        return tuple(declared)
    if shapes:
        *more, size = sorted(next(iter(shapes)))
        return (size,) if len(shapes) == 1 and all(extent == 1 for extent in more) else None
    # Without parameters and a declared shape only a name or an eps suggests a norm; any width will do to run it.
    if "norm" not in type(module).__name__.lower() and not any("eps" in key for key in vars(module)):
        return None
    return (1,) if any(True for _ in module.parameters(recurse=False)) else (_declared_channels(module) or ANY_WIDTH,)


def _without_one_vector(module: nn.Module) -> Form | None:
    """The form of a module that is named like a norm and has parameters, but not one vector of channels."""
    own = list(module.parameters(recurse=False))
    if not own or len(own) < len(list(module.parameters())) or any(is_lazy(parameter) for parameter in own):
        return None
    shapes = ", ".join(str(tuple(parameter.shape)) for parameter in own)
    return Form(
        max(parameter.numel() for parameter in own), problem=f"has parameters of shape {shapes}, not one vector"
    )


def _says_its_width(module: nn.Module) -> bool:
    vectors = any(parameter.numel() > 1 for parameter in module.parameters())
    return vectors or hasattr(module, "normalized_shape") or _declared_channels(module) is not None


def _declared_channels(module: nn.Module) -> int | None:
    """The number of channels that a module with channels in axis 1 declares."""
    count = getattr(module, "num_features", getattr(module, "num_channels", None))
    return count if isinstance(count, int) else None


def _probe(module: nn.Module, shape: tuple[int, ...]) -> Form:
    size = int(np.prod(shape))
    rng = np.random.default_rng(SEED)
    subject, drawn = _with_drawn_parameters(module, rng)
    if _normalizes_positions(subject, rng):
        return Form(size, problem="takes its statistics over positions, separately for each channel")
    refusals, problems, fitted = [], [], []
    for place, (axis, function) in enumerate(_layouts(subject, shape)):
        try:
            form = fit(function, size, drawn, rng)
        except NoOutputError as refusal:
            refusals.append(str(refusal))
            continue
        if form.problem is None:
            fitted.append(replace(with_declared_eps(form, module), axis=axis))
            if place == 0:
                break
        else:
            problems.append(form.problem)
    if not fitted:
        return Form(size, problem=(problems + refusals)[0])
    found = fitted[-1]  # vectors (samples, channels) are laid out the same for channels in axis 1 and in the last
    return replace(found, pools_space=bool(refusals) and found.axis == -1 and _pools_space(subject, shape, rng))


def with_declared_eps(form: Form, module: nn.Module) -> Form:
    """A form with the eps that its module declares, if that agrees with the measured one."""
    declared = [value for value in vars(module).values() if isinstance(value, float)]
    declared.append(torch.finfo(torch.float32).eps)  # torch's RMSNorm without an eps uses that of the dtype
    eps = next((value for value in declared if abs(value - form.eps) <= 0.02 * form.eps), form.eps)
    return replace(form, eps=eps)


class NoOutputError(Exception):
    """The module can't be called this way."""


class _NoCopyError(Exception):
    """The module can't be copied, so it can't be run at all."""


def _with_drawn_parameters(module: nn.Module, rng: np.random.Generator) -> tuple[nn.Module, dict[str, Floats]]:
    """A float32 copy in eval mode on the CPU, with parameters drawn from [0.5, 1.5], and the vectors drawn."""
    try:
        subject = silent_copy(module)
        if any(tensor.is_meta for tensor in (*subject.parameters(), *subject.buffers())):
            subject = subject.to_empty(device="cpu")
        subject = subject.to(device="cpu", dtype=torch.float32)
    except Exception as error:
        raise _NoCopyError(f"can't be copied to be run: {first_line(error)}") from None
    drawn: dict[str, Floats] = {}
    with torch.no_grad():
        for name, parameter in subject.named_parameters(recurse=False):
            values = rng.uniform(0.5, 1.5, tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values))
            drawn[name] = values.reshape(-1)
    return subject, drawn


def _layouts(subject: nn.Module, shape: tuple[int, ...]) -> Iterator[tuple[int, Function]]:
    """Ways to lay out vectors of channels for the module, with the axis that holds the channels."""

    def run(x: Floats, arrange: Callable[[Tensor], Tensor], restore: Callable[[Tensor], Tensor]) -> Floats:
        arranged = arrange(torch.from_numpy(x).float())
        shape = tuple(arranged.shape)
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("error")  # a module that warns about the shape is not meant for it
                output = subject(arranged)
        except Exception as error:
            raise NoOutputError(f"can't be called with one tensor of shape {shape}: {first_line(error)}") from None
        if not isinstance(output, Tensor) or output.shape != shape:
            what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise NoOutputError(f"turns an input of shape {shape} into {what}")
        values: Floats = restore(output).double().numpy()
        return values.reshape(x.shape)

    channels = int(np.prod(shape))
    yield -1, lambda x: run(x, lambda t: t.reshape(1, len(x), *shape), lambda t: t)
    yield -1, lambda x: run(x, lambda t: t.reshape(len(x), *shape), lambda t: t)
    yield 1, lambda x: run(x, lambda t: t.T.reshape(1, channels, len(x), 1), lambda t: t.reshape(channels, len(x)).T)


def fit(function: Function, size: int, drawn: dict[str, Floats], rng: np.random.Generator) -> Form:
    """The first member of the family that explains the outputs, the usual ones first."""
    x = rng.normal(size=(probes(size), size)) + rng.normal(size=(probes(size), 1))
    quiet, loud = _Outputs(function, x), _Outputs(function, LOUD * x)
    if max(deviation(seen.plus, seen.bias) for seen in (quiet, loud)) <= FIT:
        return Form(size, problem="its output does not depend on its input")
    for projects, scales, groups in _members(size):
        seen = loud if scales else quiet  # without scaling, loud inputs would drown the bias
        s = _steps(seen.x, projects, scales, groups)
        gain, misfit = _regress(seen.odd, s)
        if misfit > FIT or deviation(seen.plus, gain * s + seen.bias) > FIT:
            continue
        if not projects and not scales:
            return Form(size, problem=AFFINE)
        named = _name_parameters(gain, seen.bias, drawn)
        if isinstance(named, str):
            return Form(size, problem=named)
        form = Form(size, None, projects, scales, groups, *named)
        return _with_eps(form, function, gain, seen.bias, rng) if scales else form
    return Form(size, problem=_failed_check(function, quiet, loud))


class _Outputs:
    """The outputs of a module for x and −x: its odd part, and its bias if it is a member of the family."""

    def __init__(self, function: Function, x: Floats) -> None:
        self.x = x
        self.plus, minus = function(x), function(-x)
        self.odd: Floats = (self.plus - minus) / 2
        self.bias: Floats = (self.plus + minus).mean(axis=0) / 2


def probes(size: int) -> int:
    return PROBES if size != PROBES else PROBES + 2


def _members(size: int) -> Iterator[tuple[bool, bool, int]]:
    """(projects, scales, groups), likely ones first. Groups of one channel are left out: they keep at most a sign."""
    groups = [g for g in range(1, size + 1) if size % g == 0 and (size // g > 1 or size == 1)]
    for count in groups:
        for projects, scales in ((True, True), (False, True), (True, False)):
            yield projects, scales, count
    yield False, False, 1


def _steps(x: Floats, projects: bool, scales: bool, groups: int) -> Floats:
    grouped = x.reshape(len(x), groups, -1)
    if projects:
        grouped = grouped - grouped.mean(axis=-1, keepdims=True)
    if scales:
        root = np.sqrt(np.mean(grouped**2, axis=-1, keepdims=True))
        grouped = grouped / np.where(root == 0, 1.0, root)
    return grouped.reshape(x.shape)


def _regress(y: Floats, s: Floats) -> tuple[Floats, float]:
    """The gain per channel that best fits y by gain · s, and the error of the fit, relative to y."""
    power = np.sum(s**2, axis=0)
    gain: Floats = np.sum(y * s, axis=0) / np.where(power == 0, 1.0, power)
    return gain, deviation(y, gain * s)


def deviation(a: Floats, b: Floats) -> float:
    """Largest difference, relative to the size of a; 0 where both vanish."""
    size = float(np.abs(a).max(initial=0.0))
    return float(np.abs(a - b).max(initial=0.0)) / size if size > 0 else float(np.abs(b).max(initial=0.0))


def _name_parameters(
    gain: Floats, bias: Floats, drawn: dict[str, Floats]
) -> tuple[str | None, str | None, str | None] | str:
    """(gain's parameter, its convention, bias's parameter), or the problem: values that no parameter explains."""
    gain_name, convention, bias_name = None, None, None
    for name, values in drawn.items():
        if deviation(gain, values) <= FIT:
            gain_name, convention = name, "w"
        elif deviation(gain, 1 + values) <= FIT:
            gain_name, convention = name, "1+w"
        elif deviation(bias, values) <= FIT:
            bias_name = name
    if gain_name is None and deviation(gain, np.ones_like(gain)) > FIT:
        return f"has a gain (median {np.median(gain):.3g}) that is neither a parameter w, nor 1 + w, nor 1"
    if bias_name is None and np.abs(bias).max() > FIT * np.abs(gain).max():
        return f"has a bias (median {np.median(bias):.3g}) that is not one of its parameters"
    return gain_name, convention, bias_name


def _with_eps(form: Form, function: Function, gain: Floats, bias: Floats, rng: np.random.Generator) -> Form:
    """Add eps and its place, from the outputs for inputs of a given root mean square as they shrink.

    inside  s/√(s² + eps)        outside  s/(s + eps)        floor  s/max(s, eps)
    """
    unit = _steps(rng.normal(size=(probes(form.size), form.size)), form.projects, True, form.groups)

    def shrinkage(s: float) -> float:
        expected = gain * unit
        return float(np.sum((function(s * unit) - bias) * expected) / np.sum(expected**2))

    scale = 1.0
    while shrinkage(scale) > 0.8:
        scale /= 2
        if scale < 1e-15:
            return form
    places: dict[str, list[float]] = {"inside": [], "outside": [], "floor": []}
    for s in (scale, scale / 2, scale / 5):
        r = shrinkage(s)
        places["inside"].append(s**2 * (1 / r**2 - 1))
        places["outside"].append(s * (1 / r - 1))
        places["floor"].append(s / r)
    spread = {place: np.ptp(values) / np.abs(values[-1]) for place, values in places.items()}
    place = min(spread, key=lambda name: spread[name])
    if spread[place] > 0.01:
        return Form(form.size, problem="shrinks small inputs in a way that no place of eps explains")
    return replace(form, eps=float(np.median(places[place])), eps_place=place)


def _pools_space(subject: nn.Module, shape: tuple[int, ...], rng: np.random.Generator) -> bool:
    """Whether, given (batch, channels, height, width), it takes statistics over height and width as well."""
    if len(shape) > 1:
        return False
    x = torch.from_numpy(LOUD * rng.normal(size=(1, *shape, 2, 3))).float()
    try:
        with torch.no_grad():
            together = subject(x)
            alone = subject(x[..., :1, :1])
    except Exception:
        return False  # it does not take such inputs
    return together.shape == x.shape and not torch.allclose(together[..., :1, :1], alone, rtol=1e-3, atol=1e-3)


def _normalizes_positions(subject: nn.Module, rng: np.random.Generator) -> bool:
    """Whether moving one channel by a constant at all positions changes nothing, for (batch, channels, positions)."""
    channels = _declared_channels(subject)
    if channels is None:
        return False
    x = torch.from_numpy(rng.normal(size=(1, channels, PROBES))).float()
    moved = x.clone()
    moved[:, 0] += 1.0
    try:
        with torch.no_grad():
            return torch.allclose(subject(x), subject(moved), rtol=1e-3, atol=1e-3)
    except Exception:
        return False  # it does not take such inputs


def _failed_check(function: Function, quiet: _Outputs, loud: _Outputs) -> str:
    """The properties of the family that a module lacks, with the measured change."""
    if _regress(loud.odd, loud.x / loud.x.std(axis=1, keepdims=True))[1] <= FIT:
        return "divides by the standard deviation but does not subtract the mean"
    x, y = quiet.x, quiet.plus
    doubled = function(2 * x)
    if deviation(doubled, 2 * y) <= FIT:
        return HOMOGENEOUS
    facts = [
        f"doubling the input changes the output by {deviation(y, doubled):.1%} of its largest value",
        f"adding a constant changes it by {deviation(y, function(x + 1)):.1%}",
    ]
    if deviation(y, np.concatenate([function(row[None]) for row in x])) > FIT:
        facts.append("the output for one vector depends on the others in the batch")
    return "; ".join(facts)
