"""What goes into and comes out of every norm, and what attention compares, while a model runs.

>>> import torch
>>> from torch import nn
>>> model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
>>> with capture(model) as captured:
...     _ = model(torch.zeros(2, 3))
>>> captured.norms["1"].output.shape
torch.Size([2, 4])
"""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from normscope.models.find import find
from normscope.models.heads import AttentionWatch, Heads


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

    def add(self, given: Tensor, answer: Tensor) -> None:
        self._inputs.append(given.detach())
        self._outputs.append(answer.detach())

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

    Calls of one norm are joined along the first axis (vector by vector if lengths differ). `clear()` forgets them,
    so that a long text can be run piece by piece in constant memory. With `heads` (True, or the names of some attention
    layers), `captured.heads` has the queries and keys of every attention layer by its name.
    """

    def __init__(
        self, model: nn.Module, norms: bool | Iterable[str] = True, heads: bool | Iterable[str] = False
    ) -> None:
        self._model = model
        if isinstance(norms, str):
            raise ValueError(
                f"norms must be True, False or a list of names, got the one name {norms!r}: put it in a list"
            )
        names = [name for name, found in find(model).items() if found.norm] if norms is True else list(norms or ())
        self.norms = {name: Activations() for name in names}
        self._attention = AttentionWatch(model, None if heads is True else heads) if heads else None
        self._hooks: list[RemovableHandle] = []

    @property
    def heads(self) -> dict[str, Heads]:
        """The attention layers that ran, in the order of the model; an error if one did not show its attention."""
        if self._attention is None:
            raise RuntimeError("heads must be asked for: capture(model, heads=True)")
        return self._attention.seen

    def clear(self) -> None:
        """Forget what was recorded."""
        for activations in self.norms.values():
            activations.clear()
        if self._attention is not None:
            self._attention.clear()

    def __enter__(self) -> Self:
        modules = [self._model.get_submodule(name) for name in self.norms]  # all, before the first is hooked
        for module, activations in zip(modules, self.norms.values(), strict=True):
            self._hooks.append(module.register_forward_hook(_recorder(activations), with_kwargs=True))
        if self._attention is not None:
            self._attention.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._attention is not None:
            self._attention.stop()
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()


def _recorder(activations: Activations) -> Any:
    def record(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], answer: Any) -> None:
        tensors = [value for value in (*given, *named.values()) if isinstance(value, Tensor)]
        if tensors and isinstance(answer, Tensor):
            activations.add(tensors[0], answer)

    return record
