"""A folded model whose norms no longer subtract means: replaced by RMSNorm modules, fused on the CPU.

A table that must stay unchanged, because a head shares it, is centred once after its rows are looked up. Norms whose
input still has a mean are not replaced.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.errors import InputError
from normscope.models.graph import ModelGraph
from normscope.models.probe import form_of
from normscope.nn import Norm as TorchNorm
from normscope.norm import Norm
from normscope.results.folding import AFTER_LOOKUP, FOLDED, NOTHING
from normscope.results.inventory import FoundNorm
from normscope.rewrite.folded_weights import FoldedWeights
from normscope.rewrite.plan import Plan

NEAR = 0.02  # relative error of eps by probing


class CentredLookUp(nn.Module):
    """A table whose rows lose their mean when they are looked up; otherwise it acts like the table.

    >>> _ = torch.manual_seed(0)
    >>> rows = CentredLookUp(nn.Embedding(5, 8))(torch.tensor([1, 4]))
    >>> bool(rows.mean(dim=-1).abs().max() < 1e-6)
    True
    """

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        rows: Tensor = self.table(*args, **kwargs)
        return rows - rows.mean(dim=-1, keepdim=True)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("table"), name)


@dataclass(frozen=True)
class Replaced:
    """The replaced modules, and the tensors of the new ones by name, in float64."""

    norms: tuple[str, ...]
    look_ups: tuple[str, ...]
    _values: Mapping[str, Tensor]
    _tables: Mapping[str, str]  # new → old prefix of names
    _weights: FoldedWeights

    def __getitem__(self, name: str) -> Tensor:
        if name in self._values:
            return self._values[name]
        for new, old in self._tables.items():
            if name.startswith(f"{new}."):
                return self._weights[f"{old}.{name.removeprefix(f'{new}.')}"]
        return self._weights[name]


def replace_norms(
    model: nn.Module, graph: ModelGraph, plan: Plan, norms: Iterable[FoundNorm], weights: FoldedWeights
) -> Replaced:
    """Replace all norms of a folded model that need no centring by RMSNorms, and centre look-ups that need it.

    The graph is that of the model before folding; a norm whose eps does not appear there is not replaced.
    """
    after_look_up = all(look_up.can_be_wrapped for look_up in plan.look_ups)
    free = (FOLDED, NOTHING, *((AFTER_LOOKUP,) if after_look_up else ()))
    wanted = {verdict.norm for verdict in plan.verdicts if verdict.centring.what in free}
    values: dict[str, Tensor] = {}
    replaced: list[str] = []
    for found in norms:
        path, eps = found.path, _eps(graph, found)
        if path and path in wanted and found.norm is not None and eps is not None:
            replaced.append(path)
            values |= _replace(model, path, found.norm, eps, weights)
    look_ups = tuple(dict.fromkeys(look_up.module for look_up in plan.look_ups)) if after_look_up else ()
    tables: dict[str, str] = {}
    for path in look_ups:
        names = _put(model, path, CentredLookUp(model.get_submodule(path)))
        tables |= {f"{name}.table": name for name in names}
    return Replaced(tuple(replaced), look_ups, values, tables, weights)


def _eps(graph: ModelGraph, found: FoundNorm) -> float | None:
    """The eps of a norm from its calls: probing gives it only up to rounding. None if not found."""
    if found.norm is None or found.path is None or found.eps_place not in ("inside", None):
        return None
    near = found.norm.eps
    if near == 0:
        return 0.0
    nodes = [node for call in graph.calls_of(found.path) for node in call]
    numbers = {value for node in nodes for value in (*node.args, *node.kwargs.values()) if isinstance(value, float)}
    exact = [value for value in numbers if abs(value - near) <= NEAR * near]
    return exact[0] if len(exact) == 1 else None


def _replace(model: nn.Module, path: str, norm: Norm, eps: float, weights: FoldedWeights) -> dict[str, Tensor]:
    """Replace a norm by an RMSNorm with the rest of its gain and bias; return these in float64."""
    module = model.get_submodule(path)
    form = form_of(module)
    if form is None:
        raise InputError(f"{path} must be a known norm to be replaced")
    gain = torch.ones(norm.size).double()
    if form.gain is not None:
        gain = weights[f"{path}.{form.gain}"].reshape(-1) + (1.0 if form.gain_convention == "1+w" else 0.0)
    bias = torch.zeros_like(gain) if form.bias is None else weights[f"{path}.{form.bias}"].reshape(-1)
    has_bias = bool(bias.any())
    like = next(module.parameters(), next(model.parameters()))
    new = TorchNorm(
        norm.size,
        project=False,
        groups=norm.groups,
        bias=has_bias,  # always with a gain: some models read it, and the fused kernels multiply by it anyway
        eps=eps,
        device=like.device,
        dtype=like.dtype,
    )
    left = {"weight": gain, "bias": bias} if has_bias else {"weight": gain}
    with torch.no_grad():
        for name, vector in left.items():
            new.get_parameter(name).copy_(vector)
    names = _put(model, path, new.train(module.training))
    return {f"{put}.{name}": vector for put in names for name, vector in left.items()}


def _put(model: nn.Module, path: str, new: nn.Module) -> list[str]:
    """Replace a module by another under all its names."""
    old = model.get_submodule(path)
    names = [name for name, module in model.named_modules(remove_duplicate=False) if module is old]
    for name in names:
        model.set_submodule(name, new)
    return names
