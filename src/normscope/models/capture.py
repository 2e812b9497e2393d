"""Record the inputs and outputs of every norm, and the queries and keys of attention, while a model runs.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
>>> with capture(model) as captured:
...     _ = model(torch.zeros(2, 3))
>>> captured.norms["1"].output.shape
torch.Size([2, 4])
"""

from collections.abc import Iterable
from itertools import permutations
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normscope.errors import InputError
from normscope.models.find import find_alone
from normscope.models.heads import AttentionWatch, Heads
from normscope.models.in_place import activation
from normscope.results.inventory import FoundNorm, Inventory

ROWS = 16  # vectors of a gated call compared with the output of its norm
ROUNDING = 5e-2  # of the largest output, in half precision too


class Activations:
    """Inputs and outputs of one norm since the last `clear`, over all calls: tensors, or None if it was not called."""

    def __init__(self) -> None:
        self._inputs: list[Tensor] = []
        self._outputs: list[Tensor] = []

    @property
    def input(self) -> Tensor | None:
        return _joined(self._inputs)

    @property
    def output(self) -> Tensor | None:
        return _joined(self._outputs)

    def add(self, x: Tensor, output: Tensor) -> None:
        self._inputs.append(x.detach())
        self._outputs.append(output.detach())

    def clear(self) -> None:
        self._inputs.clear()
        self._outputs.clear()


def _joined(calls: list[Tensor]) -> Tensor | None:
    """One call as it is; several along the first axis or, where their shapes differ, vector by vector."""
    if len(calls) <= 1:
        return calls[0] if calls else None
    if len({call.shape[1:] for call in calls}) == 1:
        return torch.cat(calls)
    return torch.cat([call.reshape(-1, call.shape[-1]) for call in calls])


class capture:  # noqa: N801  (read as a verb: `with capture(model) as captured`)
    """Record the activations of a model's norms while inside the `with`; the model is as it was afterwards.

    Calls of one norm are joined along the first axis (vector by vector if lengths differ). `clear()` forgets them, so
    that a long text can be run piece by piece in constant memory. `captured.skipped` names the norms that were called
    with more than one tensor; nothing is recorded for them.

    Parameters
    ----------
    model
        A torch module, which is then run inside the `with`.
    norms
        True: all norms that are modules, in `captured.norms` by name. A list of names: only those. A result of `find`:
        then the input of a gated norm is the value it normalizes, x ∘ act(gate) if the gate comes first. False: none.
    heads
        True: the queries and keys of every attention layer, in `captured.heads` by name; or the names of some layers.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    >>> with capture(attention, norms=False, heads=True) as captured:
    ...     _ = attention(*torch.ones(3, 1, 5, 8))
    >>> captured.heads[""].key.shape
    torch.Size([1, 2, 5, 4])
    """

    def __init__(
        self, model: nn.Module, norms: bool | Inventory | Iterable[str] = True, heads: bool | Iterable[str] = False
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model must be a torch module, which you run inside the `with`, got {type(model).__name__}"
            )
        self._model = model
        if isinstance(norms, str):
            raise InputError(
                f"norms must be True, False or a list of names, got the one name {norms!r}: put it in a list"
            )
        known = find_alone(model) if norms is True else norms if isinstance(norms, Inventory) else None
        found = {} if known is None else {one.path: one for one in known.values() if one.norm and not one.function}
        names = list(norms or ()) if known is None else [path for path in found if path is not None]  # type: ignore[arg-type]
        self._gated = {path: one for path, one in found.items() if one.gate is not None}
        self.norms = {name: Activations() for name in names}
        self.skipped: dict[str, str] = {}  # norms with a call that was not recorded, and why
        self._attention = AttentionWatch(model, None if heads is True else heads) if heads else None
        self._hooks: list[RemovableHandle] = []

    @property
    def heads(self) -> dict[str, Heads]:
        """The attention layers that ran, in the order of the model; an error if the attention of one was not seen."""
        if self._attention is None:
            raise RuntimeError("heads were not captured: use capture(model, heads=True)")
        return self._attention.seen

    def clear(self) -> None:
        """Discard everything recorded so far."""
        for activations in self.norms.values():
            activations.clear()
        if self._attention is not None:
            self._attention.clear()

    def __enter__(self) -> Self:
        modules = [self._model.get_submodule(name) for name in self.norms]  # all, before the first is hooked
        for module, name in zip(modules, self.norms, strict=True):
            self._hooks.append(module.register_forward_hook(self._recorder(name), with_kwargs=True))
        if self._attention is not None:
            self._attention.start()
        return self

    def _recorder(self, name: str) -> Any:
        def record(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if not tensors or not isinstance(output, Tensor):
                return
            normalized = _normalized(self._gated.get(name), tensors, output)
            if normalized is None:
                self.skipped[name] = f"is called with {len(tensors)} tensors, not with its input alone"
            else:
                self.norms[name].add(normalized, output)

        return record

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attention is not None:
            self._attention.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _normalized(found: FoundNorm | None, tensors: list[Tensor], output: Tensor) -> Tensor | None:
    """The value that a call with these tensors normalizes; None if unknown."""
    if len(tensors) == 1:
        return tensors[0]
    if found is None or found.gate is None or found.norm is None or len(tensors) != 2:
        return None
    act = activation(found.gate)
    for x, gate in permutations(tensors):
        before = found.gate.place == "before"
        normalized = x * act(gate).to(x.dtype) if before else x
        if normalized.shape != output.shape:
            continue
        rows = slice(0, ROWS)
        some = normalized.reshape(-1, found.size)[rows].cpu().double().numpy()
        expected = found.norm(some)
        if not before:
            expected = expected * act(gate.reshape(-1, found.size)[rows].double()).cpu().numpy()
        seen = output.reshape(-1, found.size)[rows].cpu().double().numpy()
        if np.abs(seen - expected).max(initial=0.0) <= ROUNDING * np.abs(expected).max(initial=0.0):
            return normalized
    return None
