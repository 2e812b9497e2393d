"""Keys and values of every attention layer while a model runs: what a cache would hold, call by call.

Keys are found as in `heads`. Values are what the output of that softmax is multiplied by, or the third argument of
torch's attention function. Nothing is kept: each tensor is passed to a function as it appears.

>>> model, seen = nn.MultiheadAttention(8, 2), {}
>>> with cache_watch(model, lambda layer, what, tensor: seen.update({(layer, what): tuple(tensor.shape)})):
...     _ = model(*torch.ones(3, 5, 1, 8))
>>> seen
{('', 'keys'): (2, 5, 4), ('', 'values'): (2, 5, 4)}
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from normscope.models.attention_products import MULTIPLYING, Product, plain_name, tensors_in
from normscope.models.heads import AttentionWatch

Note = Callable[[str, str, Tensor], None]  # the layer; "keys" or "values"; the tensor


@contextmanager
def cache_watch(model: nn.Module, note: Note) -> Iterator[None]:
    """Pass the keys and values of every attention layer to `note` while inside the `with`."""
    watch = CacheWatch(model, note)
    watch.start()
    try:
        yield
    finally:
        watch.stop()


class CacheWatch(AttentionWatch):
    """Follows the weights of attention from the softmax to the product with the values."""

    def __init__(self, model: nn.Module, note: Note) -> None:
        super().__init__(model)
        self._note = note
        self._weights: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()  # outputs of a softmax, by their layer
        self._layer: str | None = None  # of the attention that the running call was found to be

    def sees(self, mode: TorchFunctionMode, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._layer = None
        output = super().sees(mode, function, args, kwargs)
        name, layer, self._layer = plain_name(function), self._layer, None
        if layer is not None and name == "scaled_dot_product_attention":
            self._note(layer, "values", args[2] if len(args) > 2 else kwargs["value"])
        elif layer is not None and isinstance(output, Tensor):
            self._weights[output] = layer
        elif isinstance(output, Tensor):
            self._follow(name, args, kwargs, output)
        return output

    def _record(self, product: Product, rows: torch.Size) -> None:
        """Called where a product is found to be attention."""
        self._layer = product.layer
        self._note(product.layer, "keys", product.key)

    def _follow(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        tensors = tensors_in(args, kwargs)
        layer = next((self._weights[each] for each in tensors if each in self._weights), None)
        if layer is None:
            return
        if name in MULTIPLYING:
            others = [each for each in tensors if each not in self._weights]
            if others:
                self._note(layer, "values", others[-1])
        elif output.shape[-2:] == next(each for each in tensors if each in self._weights).shape[-2:]:
            self._weights[output] = layer  # dropped out, cast, masked, reshaped
