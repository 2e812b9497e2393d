"""Queries and keys of every attention head, exactly as attention compares them.

    weights = softmax(scores + what the model adds: masks, position biases)
    scores  = scale · query · keyᵀ   or   softcap · tanh(scale · query · keyᵀ / softcap)

This works for any architecture. Calls of torch functions are watched while the model runs. scaled_dot_product_attention
has query and key among its arguments. Elsewhere a product of two batches of matrices is followed while it is scaled,
capped, masked, added to, cast and reshaped; it is attention if it reaches a softmax over its last axis. If an
operation is not one of these, the product is lost, and the layer is reported, not guessed.

>>> model = nn.MultiheadAttention(8, 2)
>>> watch = AttentionWatch(model)
>>> watch.start()
>>> _ = model(*torch.ones(3, 5, 1, 8))
>>> watch.stop()
>>> watch.seen[""].query.shape
torch.Size([1, 2, 5, 4])
"""

from collections.abc import Callable, Iterable, MutableMapping
from contextlib import ExitStack
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from normscope.errors import InputError
from normscope.models.attention_products import (
    MULTIPLYING,
    Product,
    Running,
    followed,
    of_fused,
    padding_mask,
    plain_name,
    product_of,
    tensors_in,
)


@dataclass(frozen=True)
class Attention:
    """One attention product of the tensors as multiplied: after rotary embedding and query and key norms."""

    query: Tensor  # (B, H, Tq, D)
    key: Tensor  # (B, H, Tk, D): where several heads read one key head, it is repeated
    scale: float  # the factor that is not in the query yet: 1.0 where the model multiplied the query itself
    softcap: float | None = None
    mask: Tensor | None = None  # (B, Tk)


class Heads:
    """The heads of one attention layer since the last `clear`, its calls joined along the first axis."""

    def __init__(self) -> None:
        self._calls: list[Attention] = []

    @property
    def query(self) -> Tensor:
        """(B, H, Tq, D)"""
        return _joined([call.query for call in self._calls])

    @property
    def key(self) -> Tensor:
        """(B, H, Tk, D): a key head that several query heads read is repeated for each of them (see `groups`)."""
        return _joined([call.key for call in self._calls])

    @property
    def scale(self) -> float:
        """The factor on query · keyᵀ. A factor that the model has already multiplied into the query is not included."""
        return float(self._same([call.scale for call in self._calls]))

    @property
    def softcap(self) -> float | None:
        """The bound c of scores that go through c · tanh(· / c), or None."""
        softcap = self._same([call.softcap for call in self._calls])
        return None if softcap is None else float(softcap)

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of every query head's key head: (0, 0, 1, 1) if two share the first, and two the second."""
        groups: list[int] = []
        leaders: list[Tensor] = []
        for key in self.key.unbind(1):
            same = [number for number, leader in enumerate(leaders) if torch.equal(leader, key)]
            groups.append(same[0] if same else len(leaders))
            if not same:
                leaders.append(key)
        return tuple(groups)

    @property
    def mask(self) -> Tensor | None:
        """(B, Tk), False at padding: the attention_mask that the model was given for these keys, None without one."""
        if all(call.mask is None for call in self._calls):
            return None
        return _joined(
            [call.key.new_ones(call.key.shape[0], call.key.shape[2]).bool() if call.mask is None else call.mask
             for call in self._calls]
        )  # fmt: skip

    def add(self, call: Attention) -> None:
        self._calls.append(call)

    def _same(self, values: list[Any]) -> Any:
        if len(set(values)) > 1:
            raise InputError(
                f"all calls must scale their scores alike to be joined, got {values}; clear() between them"
            )
        return values[0]

    def __repr__(self) -> str:
        return f"Heads({len(self._calls)} calls, last query {tuple(self._calls[-1].query.shape)})"


def _joined(calls: list[Tensor]) -> Tensor:
    shapes = {tuple(call.shape[1:]) for call in calls}
    if len(shapes) > 1:
        raise InputError(f"calls must have the same shape to be joined, got {sorted(shapes)}; clear() between them")
    return calls[0] if len(calls) == 1 else torch.cat(calls)


class AttentionWatch:
    """Records the attention of a model between `start` and `stop`, by the name of the layer in which it happens.

    The layer is the deepest running module that holds parameters. `seen` is an error that names the layers if

    - a product was lost on its way to a softmax,
    - a layer ran and showed no attention, though another of its class did,
    - a module ran whose class calls itself attention, and none was seen in it, in its parts, or around it,
    - a layer that was requested by name showed none, or no attention was seen at all.
    """

    def __init__(self, model: nn.Module, layers: Iterable[str] | None = None) -> None:
        self._modules = dict(model.named_modules())
        self._asked = None if layers is None else list(layers)
        unknown = set(self._asked or ()) - set(self._modules)
        if unknown:
            raise InputError(f"heads must be names of modules of the model, got {sorted(unknown)}")
        self._layers = {name for name, module in self._modules.items() if next(module.parameters(), None) is not None}
        self._running: list[Running] = []
        self._products: MutableMapping[Tensor, Product] = WeakTensorKeyDictionary()  # scores on their way to a softmax
        self._heads_of_torch: int | None = None  # told by torch's own multi-head attention while it runs
        self._active = ExitStack()
        self.clear()

    def clear(self) -> None:
        self._heads: dict[str, Heads] = {}
        self._ran: set[str] = set()
        self._lost: dict[str, str] = {}  # layer -> why its product is not understood

    def start(self) -> None:
        for name, module in self._modules.items():
            entered = module.register_forward_pre_hook(self._enters(name), prepend=True, with_kwargs=True)
            left = module.register_forward_hook(self._leaves, always_call=True)
            self._active.callback(entered.remove)
            self._active.callback(left.remove)
        self._active.callback(self._running.clear)
        self._active.enter_context(_Mode(self))

    def stop(self) -> None:
        self._active.close()

    @property
    def seen(self) -> dict[str, Heads]:
        """Attention layers in the order of the model."""
        if not self._ran:
            raise RuntimeError(
                "the model must run inside the `with` for its heads to be seen, got no call since the last clear()"
            )
        missed = self._missed()
        if missed or not self._heads:
            layers = ", ".join(f"{name or 'the model'}: {missed[name]}" for name in self._modules if name in missed)
            raise RuntimeError(
                f"attention must be seen in every attention layer, got none in {layers or 'any module'}. "
                "Compiled and custom kernels cannot be watched: load the model with attn_implementation='eager' or "
                "'sdpa', or select other layers by name: capture(model, heads=[...])"
            )
        return {name: self._heads[name] for name in self._modules if name in self._heads}

    def _missed(self) -> dict[str, str]:
        """Layers whose attention should have been seen, and why it was not."""
        if self._asked is not None:
            return {name: self._lost.get(name, "nothing seen") for name in self._asked if name not in self._heads}
        alike = {type(self._modules[name]) for name in self._heads}
        missed = dict(self._lost)
        for name in self._ran - set(self._heads) - set(self._lost):
            kind = type(self._modules[name])
            if kind in alike or self._is_silent(name, kind):
                missed[name] = f"{kind.__name__} showed none"
        return missed

    def _is_silent(self, name: str, kind: type[nn.Module]) -> bool:
        """Whether a module calls itself attention, but none was seen in it, in its parts, or around it."""
        near = [other for other in (*self._heads, *self._lost) if _within(other, name) or _within(name, other)]
        return "attention" in kind.__name__.lower() and name in self._layers and not near

    def _enters(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._running.append(Running(name, module, args, kwargs))
            self._ran.add(name)

        return enter

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()

    def sees(self, mode: TorchFunctionMode, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a torch function and note what it does to queries, keys and their products."""
        if function is functional.multi_head_attention_forward:
            self._heads_of_torch = args[4] if len(args) > 4 else kwargs["num_heads"]
            try:
                with mode:
                    return _opened_multi_head_attention(*args, **kwargs)
            finally:
                self._heads_of_torch = None
        if not self._running:
            return function(*args, **kwargs)
        name = plain_name(function)
        before = [(tensor, product) for tensor in tensors_in(args, kwargs) if (product := self._products.get(tensor))]
        output = function(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            self._record(of_fused(self._place(), *args, **kwargs), output.shape[:-1])
        elif name == "softmax" and before:
            self._meets_softmax(*before[0], args[1] if len(args) > 1 else kwargs.get("dim"))
        elif isinstance(output, Tensor):
            if name in MULTIPLYING:
                product = product_of(self._place(), name, args, kwargs)
            else:
                product = followed(before, name, args, kwargs, output)
            if product is not None:
                self._products[output] = product
            elif output in self._products:  # changed in place
                del self._products[output]
        return output

    def _place(self) -> "tuple[Running, ...]":
        """The running modules, down to the deepest that holds parameters."""
        depth = max(
            (i for i, call in enumerate(self._running) if call.name in self._layers), default=len(self._running) - 1
        )
        return tuple(self._running[: depth + 1])

    def _meets_softmax(self, scores: Tensor, product: "Product", axis: int | None) -> None:
        if product.lost:
            self._lost[product.layer] = product.lost
        elif axis not in (-1, scores.ndim - 1):
            self._lost[product.layer] = f"a softmax over axis {axis} of {scores.ndim}, not over the keys"
        else:
            self._record(product, scores.shape[:-1])

    def _record(self, product: "Product", rows: torch.Size) -> None:
        """Sort the leading axes into batch and heads; `rows` is the last shape of the scores without the keys."""
        if self._asked is not None and product.layer not in self._asked:
            return
        leading, queries = rows[:-1], rows[-1]
        batch = leading[0] if len(leading) > 1 else self._batch(product, leading.numel())
        fits = queries == product.query.shape[-2] and leading.numel() == product.query.shape[:-2].numel()
        if not fits or not batch:
            self._lost[product.layer] = (
                f"scores of shape {(*rows, product.key.shape[-2])} show no batch, heads and queries"
            )
            return
        # A copy: the model may reuse the same memory, and a view would keep queries, keys and values alive together.
        query = product.query.detach().clone(memory_format=torch.contiguous_format)
        key = product.key.detach().clone(memory_format=torch.contiguous_format)
        query, key = (states.reshape(batch, -1, *states.shape[-2:]) for states in (query, key))
        call = Attention(query, key, product.scale, product.softcap, padding_mask(product, batch, key.shape[2]))
        self._heads.setdefault(product.layer, Heads()).add(call)

    def _batch(self, product: "Product", size: int) -> int | None:
        """The number of sequences where batch and heads share one axis: told by torch, or the input's first axis."""
        if self._heads_of_torch:
            return size // self._heads_of_torch
        layer = product.place[-1]
        sizes = [tensor.shape[0] for tensor in tensors_in(layer.args, layer.kwargs) if tensor.ndim == 3]
        return sizes[0] if sizes and size % sizes[0] == 0 else None


def _within(inner: str, outer: str) -> bool:
    return not outer or inner == outer or inner.startswith(f"{outer}.")


class _Mode(TorchFunctionMode):
    def __init__(self, watch: AttentionWatch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._watch.sees(self, func, args, kwargs or {})


# multi_head_attention_forward passes itself as a whole to a mode and would run unwatched inside it: this is the same
# code, told that nothing is watched, so that it continues to the products within.
_opened_multi_head_attention = FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**vars(functional), "has_torch_function": lambda tensors: False},
    argdefs=functional.multi_head_attention_forward.__defaults__,
)
