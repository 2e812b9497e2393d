"""Scores of attention on their way from the product of queries and keys to the softmax, call by call.

softmax(… mask + tanh(scale · query · keyᵀ) …)        each step is understood, or the product is reported as lost
"""

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Running:
    """A module whose forward is running."""

    name: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """Its arguments, by name."""
        return {**inspect.signature(self.module.forward).bind_partial(*self.args).arguments, **self.kwargs}


@dataclass(frozen=True)
class Product:
    """Scores on their way to the softmax."""

    place: tuple[Running, ...]  # the modules around it; the last is its layer
    query: Tensor  # (..., Tq, D)
    key: Tensor  # (..., Tk, D), the same leading axes
    scale: float = 1.0  # of all factors so far, those before and after a tanh: its slope at 0 is 1
    softcap: float | None = None  # of the factors after a tanh
    added_to: bool = False  # by a mask or a bias
    lost: str | None = None

    @property
    def layer(self) -> str:
        return self.place[-1].name

    def times(self, factor: float) -> "Product":
        softcap = None if self.softcap is None else self.softcap * factor
        return replace(self, scale=self.scale * factor, softcap=softcap)


def plain_name(function: Any) -> str:
    """add for torch.add, Tensor.add_, + and +=, whichever side the tensor is on; but rsub for 1 - tensor."""
    name: str = getattr(function, "__name__", "")
    plain = name.strip("_")
    return _OPERATORS.get(plain, plain) if name.startswith("__") else plain


_OPERATORS = {
    "iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "truediv": "div", "itruediv": "div",
}  # fmt: skip


def tensors_in(args: Iterable[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [entry for entry in value if isinstance(entry, Tensor)]
    return found


def of_fused(
    place: tuple[Running, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Product:
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
    product = _paired(place, query, key, query.shape[-1] ** -0.5 if scale is None else scale)
    return replace(product, added_to=attn_mask is not None)


MULTIPLYING = {"matmul", "bmm", "baddbmm", "einsum"}


def product_of(place: tuple[Running, ...], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """The product that this call is, if it multiplies two batches of matrices."""
    if name in ("matmul", "bmm"):
        query, key = tensors_in(args, kwargs)[:2]
        return _paired(place, query, key.mT) if query.ndim == key.ndim > 2 else None
    if name == "baddbmm":
        _, query, key = tensors_in(args, kwargs)[:3]
        return replace(_paired(place, query, key.mT, kwargs.get("alpha", 1.0)), added_to=kwargs.get("beta", 1) != 0)
    if args and isinstance(args[0], str):
        return _of_einsum(place, args[0].replace(" ", ""), tensors_in(args[1:], kwargs))
    return None


def _of_einsum(place: tuple[Running, ...], equation: str, operands: list[Tensor]) -> Product | None:
    """Equations like bqhd,bkhd->bhqk: the last two axes of the output are queries and keys, one letter is summed."""
    left, arrow, output = equation.partition("->")
    terms = left.split(",")
    if not arrow or len(terms) != 2 or "." in equation or len(output) < 3:
        return None
    batch, of_query, of_key = output[:-2], output[-2], output[-1]
    first, second = sorted(zip(terms, operands, strict=True), key=lambda pair: of_key in pair[0])
    summed = set(first[0]) & set(second[0]) - set(output)
    if len(summed) != 1:
        return None
    inner = summed.pop()
    if set(first[0]) != {*batch, of_query, inner} or set(second[0]) != {*batch, of_key, inner}:
        return None
    query = torch.einsum(f"{first[0]}->{batch}{of_query}{inner}", first[1])
    key = torch.einsum(f"{second[0]}->{batch}{of_key}{inner}", second[1])
    return _paired(place, query, key)


def _paired(place: tuple[Running, ...], query: Tensor, key: Tensor, scale: float = 1.0) -> Product:
    leading = [max(sizes) for sizes in zip(query.shape[:-2], key.shape[:-2], strict=True)]
    return Product(place, query.expand(*leading, -1, -1), key.expand(*leading, -1, -1), float(scale))


_KEEPING = {
    "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone",
    "detach", "to", "type", "type_as", "float", "double", "half", "bfloat16", "dropout",
}  # fmt: skip
_FORGETTING = {"zeros_like", "ones_like", "empty_like", "full_like"}  # only the shape is left
_ADDING = {"add", "masked_fill", "where", "cat"}


def followed(
    before: list[tuple[Tensor, Product]], name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> Product | None:
    """The scores after a call; None if there are none, or at most their shape is left."""
    # A lost product that is added to scores is a bias like any other.
    before = [(scores, product) for scores, product in before if not product.lost] or before
    if not before:
        return None
    scores, product = before[0]
    understood = _understood(scores, product, name, args, kwargs) if len(before) == 1 else None
    if understood or product.lost or output.shape != scores.shape or name in _FORGETTING:
        return understood
    return replace(product, lost=f"{name} between product and softmax" if len(before) == 1 else "a sum of products")


def _understood(
    scores: Tensor, product: Product, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Product | None:
    if name in _KEEPING:
        return product
    first = bool(args) and args[0] is scores
    if (name in _ADDING and "alpha" not in kwargs) or (name == "sub" and first):
        return replace(product, added_to=True)
    if name == "tanh" and product.softcap is None and not product.added_to:
        return replace(product, softcap=1.0)
    if (name == "mul" or (name == "div" and first)) and len(args) == 2 and not kwargs:
        other = args[1] if first else args[0]
        factor = _number(other)
        if factor:
            return product.times(1 / factor if name == "div" else factor)
        if name == "mul" and isinstance(other, Tensor) and bool(((other == 0) | (other == 1)).all()):  # a mask
            return replace(product, added_to=True)
    return None


def _number(value: Any) -> float | None:
    """A number as a float, from a tensor too; None for anything else."""
    if isinstance(value, Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def padding_mask(product: Product, batch: int, keys: int) -> Tensor | None:
    """The mask of tokens (B, Tk) that the nearest enclosing module received for these keys.

    Cross-attention, recognised by the states its layer receives, uses the encoder's mask. A mask with padding belongs
    to another sequence if nothing was added to the scores, or if a module further in received None for it.
    """
    of_layer = product.place[-1].arguments
    of_torch = of_layer.get("key_padding_mask")  # True, or -inf, at padding; without the keys that torch may append
    if isinstance(of_torch, Tensor):
        real = (of_torch == 0).reshape(batch, -1)
        return functional.pad(real, (0, keys - real.shape[1]), value=True)
    crosses = any(isinstance(of_layer.get(name), Tensor) for name in ("key_value_states", "encoder_hidden_states"))
    may_have_padding = product.added_to
    for module in reversed(product.place):
        arguments = module.arguments
        name = "encoder_attention_mask" if crosses and "encoder_attention_mask" in arguments else "attention_mask"
        mask = arguments.get(name)
        if isinstance(mask, Tensor) and mask.shape == (batch, keys):
            real = mask.detach().bool()
            return real if may_have_padding or bool(real.all()) else None
        may_have_padding = may_have_padding and not (name in arguments and mask is None)
    return None
