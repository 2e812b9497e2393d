"""Replace the norms of a model: LayerNorm by LN-G, or by another member of the family.

Gain, bias, eps and the place in the model stay. Norms are identified from their outputs, not from their class name. One
that `normscope.nn.Norm` cannot replace, because its eps is elsewhere or it fits no member, is kept, and the
result says so.
"""

import copy
import inspect
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

from normscope.checks import as_count, quoted, shortened
from normscope.errors import InputError
from normscope.models.batches import Inputs
from normscope.models.find import find
from normscope.models.probe import form_of
from normscope.models.subject import Subject, Text
from normscope.nn import Norm as TorchNorm
from normscope.norm import Norm
from normscope.progress import Progress, silent
from normscope.results.inventory import FoundNorm, Inventory
from normscope.results.swapping import KeptNorm, SwappedNorm, Swapping

AUTO = "auto"
LEAST_CHANNELS = 4  # in a group, for "auto": H grows by at least g(d − 2g)/(d − 2), which is largest at g = d/4
USUAL_EPS = 1e-5  # for a norm that did not scale before
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
STEPS = {"layernorm": (True, True), "rmsnorm": (False, True), "projection": (True, False)}  # project, scale

Groups = int | str | Callable[[FoundNorm], int | None]


def swap(
    model: nn.Module | str | Path,
    *,
    groups: Groups,
    only: str | Iterable[str] | None = None,
    to: str | None = None,
    in_place: bool = False,
    text: Text | None = None,
    inputs: Inputs | None = None,
    device: str = "cpu",
    dtype: str | None = None,
    progress: Progress = silent,
) -> Swapping:
    """Replace every LayerNorm in a copy of a model by LN-G with the same gain, bias and eps.

    With groups=1 and without `to` the model computes the same. A state dict fits the swapped model if it fitted the
    original, unless gains had another name or were stored as 1 + w: then the result says so.

    Parameters
    ----------
    model
        A folder in Hugging Face format, or a torch module.
    groups
        A number, "auto" (as many as leave 4 channels or more in each), or a rule: a function of a `FoundNorm` that
        gives a number, or None to leave the norm alone.
    only
        Names of norms, with * as a wildcard; they are swapped regardless of their kind.
    to
        Other steps: "layernorm", "rmsnorm" or "projection"; without it they stay.
    in_place
        Change the module itself. Its parameters stay the same objects, so that an optimizer continues with them.
    text, inputs
        Text or inputs to trace the model on, to see what its norms compute inside it: the first batch. Models of
        transformers need neither; without them, norms of other modules are identified alone.
    device, dtype
        Device and floating-point type to load a folder in.
    progress
        Called with the norms and a description; see `normscope.progress`.

    Returns
    -------
    Swapping
        The model with its new norms (`module`), and what became of each of the old ones.

    >>> model = nn.Sequential(nn.Linear(4, 24), nn.LayerNorm(24), nn.Linear(24, 24), nn.RMSNorm(24))
    >>> swapping = swap(model, groups="auto")
    >>> swapping
    Swapping(Sequential: 1 swapped, 1 kept)
    >>> swapping.module[1], swapping.kept[0].reason
    (Norm(24, groups=6, eps=1e-05), 'is not a LayerNorm: name it with only= to swap it')
    """
    if to is not None and to not in STEPS:
        raise InputError(f"to must be one of {', '.join(STEPS)}, got {to!r}")
    subject = Subject(model, text=text, inputs=inputs, device=device, dtype=dtype)
    live = subject.module
    inventory = find(live, inputs=subject.example)
    named = _named(inventory, only)
    decisions = {name: _decide(live, found, named, groups, to) for name, found in inventory.items()}
    if in_place and isinstance(decisions.get(""), Norm):
        raise InputError("in_place must be False for a model that is itself a norm: it has no submodule to replace")
    result = live if in_place or subject.path is not None else copy.deepcopy(live)
    swapped, kept = [], []
    for name, found in progress(inventory.items(), "norms"):
        after = decisions[name]
        if isinstance(after, str) or found.norm is None:
            kept.append(KeptNorm(name, found.kind, str(after)))
            continue
        module, note = _module(after, result.get_submodule(name), found)
        result = _put(result, name, module)
        swapped.append(SwappedNorm(name, found.kind, after.kind, found.size, found.norm.groups, after.groups, note))
    _call_the_norms(result)
    return Swapping(subject.name, tuple(swapped), tuple(kept), result)


def _named(inventory: Inventory, only: str | Iterable[str] | None) -> set[str] | None:
    """The norms that `only` names; None without it."""
    if only is None:
        return None
    named: set[str] = set()
    for pattern in [only] if isinstance(only, str) else only:
        matched = {name for name in inventory if fnmatchcase(name, pattern)}
        if not matched:
            raise InputError(
                f"only must name norms of the model, got {quoted(pattern)}; they are "
                f"{shortened(', '.join(inventory), 200)}"
            )
        named |= matched
    return named


def _decide(model: nn.Module, found: FoundNorm, named: set[str] | None, groups: Groups, to: str | None) -> Norm | str:
    """The new norm, or why the old one is kept."""
    if named is not None and found.name not in named:
        return "is not named by only="
    if found.norm is None or found.function is not None:
        return found.problem or "is a function call inside a larger module, not a module of its own"
    if named is None and not (found.norm.projects and found.norm.scales):
        return "is not a LayerNorm: name it with only= to swap it"
    obstacle = _obstacle(model.get_submodule(found.name), found)
    count = None if obstacle else _count(found, groups)
    if count is None:
        return obstacle or "is left alone by the rule"
    if found.size % count:
        return f"has {found.size} channels, which {count} groups do not divide"
    project, scale = (found.norm.projects, found.norm.scales) if to is None else STEPS[to]
    eps = found.norm.eps if found.norm.scales else USUAL_EPS
    return Norm(gain=found.norm.gain, bias=found.norm.bias, eps=eps, project=project, scale=scale, groups=count)


def _obstacle(module: nn.Module, found: FoundNorm) -> str | None:
    """What replacing the module by a `normscope.nn.Norm` would change beyond the groups."""
    if found.gate is not None:
        return f"is gated, {found.gate}, where normscope.nn.Norm takes its input alone"
    taken = inspect.signature(module.forward).parameters
    if found.unchecked is not None and (len(taken) > 1 or any(one.kind in VARIADIC for one in taken.values())):
        given = ", ".join(str(one.replace(annotation=one.empty, default=one.empty)) for one in taken.values())
        return f"takes more than its input ({given}), and its calls were not checked: {found.unchecked}"
    if found.eps_place not in ("inside", None):
        where = {"outside": "adds eps outside the root", "floor": "has eps as a floor of the root"}[found.eps_place]
        return f"{where}, where normscope.nn.Norm adds it inside"
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return "has hooks, which would be lost: remove them first"
    return None


def _count(found: FoundNorm, groups: Groups) -> int | None:
    if groups == AUTO:
        return next(g for g in range(max(1, found.size // LEAST_CHANNELS), 0, -1) if found.size % g == 0)
    if isinstance(groups, str):
        raise InputError(f"groups must be a number, {AUTO!r} or a function of a found norm, got {groups!r}")
    count = groups(found) if callable(groups) else groups
    return None if count is None and callable(groups) else as_count(count, "groups", least=1)


def _module(norm: Norm, old: nn.Module, found: FoundNorm) -> tuple[TorchNorm, str | None]:
    """A norm as a module with the parameters of an old one, the same objects where they fit; and what is new."""
    shape = tuple(getattr(old, "normalized_shape", (norm.size,)))
    axis = old.axis if isinstance(old, TorchNorm) else found.axis
    new = TorchNorm(shape, norm.projects, norm.scales, norm.groups, affine=False, eps=norm.eps, axis=axis)
    form = form_of(old)
    if form is None:
        raise InputError(f"{found.name} must compute what it did when it was found, but is no longer a norm")
    notes = []
    for role, name, added in (("weight", form.gain, int(form.gain_convention == "1+w")), ("bias", form.bias, 0)):
        if name is None:
            continue
        parameter = old.get_parameter(name)
        if added or parameter.shape != shape:
            values = parameter.detach().clone().reshape(shape)
            if added:  # in half precision, 1 + w would lose the digits of w
                values = 1 + values.to(torch.promote_types(values.dtype, torch.float32))
            parameter = nn.Parameter(values, requires_grad=parameter.requires_grad)
        new.register_parameter(role, parameter)
        if added or name != role:
            notes.append(f"{'1 + ' * added}{name} is {role} now")
    return new.train(old.training), ", ".join(notes) or None


def _put(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    """The model with the module of that name replaced wherever it occurs."""
    old = model.get_submodule(name)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is old and path:
            model.set_submodule(path, new)
    return new if old is model else model


def _call_the_norms(model: nn.Module) -> None:
    """Make torch's encoder layers call their norms: in eval mode their fast path always computes LayerNorm."""
    for module in model.modules():
        if not any(isinstance(inner, TorchNorm) for inner in module.modules()):
            continue
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0  # "neither": disables the fast path
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # only for the fast path
