"""Why a mapping of a recipe does not keep the function of a model, as the graph shows it.

A mapping is right if the layers that it names read its source, each with its channels in order, and nothing else does;
and if the tensors of its source are what llm-compressor takes them for.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import nn

from normscope.certificates.check_fold import Taken
from normscope.models.multiplications import Multiplication, is_grouped, sent_to
from normscope.results.inventory import FoundNorm
from normscope.rewrite.affine import Readers
from normscope.rewrite.quantizer_modules import QuantizerModule, quantizer_modules
from normscope.rewrite.recipe_file import SPINQUANT
from normscope.rewrite.scaled_paths import ScaledPath, scaled_path
from normscope.rewrite.smoothing import Smoothed, is_converted
from normscope.rewrite.stored_tensors import Uses
from normscope.rewrite.streams import Streams


class Objections:
    """The modules of a traced model as a recipe names them, what reads them, and what is wrong with a mapping."""

    def __init__(self, model: nn.Module, streams: Streams, uses: Uses, norms: dict[str, FoundNorm]) -> None:
        self._streams, self._uses, self._tensors, self._norms = streams, uses, uses.tensors, norms
        self._graph = streams.graph
        self._readers = Readers(model, streams, uses)
        self.modules = quantizer_modules(model)
        self.by_tensor: dict[str, list[QuantizerModule]] = {}
        for module in self.modules:
            if module.weight is not None:
                self.by_tensor.setdefault(self._first(module.weight.tensor), []).append(module)
        self._products: dict[str, list[Multiplication]] = {}
        for product in self._graph.multiplications.values():
            self._products.setdefault(self._first(product.weight), []).append(product)
        self._paths: dict[str, ScaledPath | str] = {}
        self._taken: dict[str, Taken | str] = {}

    @cached_property
    def named(self) -> dict[str, QuantizerModule]:
        return {module.name: module for module in self.modules}

    def named_by(self, tensor: str) -> list[str]:
        """The modules that hold a tensor, as recipes name them."""
        return [module.name for module in self.by_tensor.get(self._first(tensor), ())]

    def names_of_readers(self, norm: str) -> tuple[str, ...] | str:
        """The layers that read a norm, as a recipe names them, or why it can't."""
        taken = self._taken_from(norm)
        if isinstance(taken, str):
            return taken
        names: list[str] = []
        for reader in taken.readers:
            modules = self.by_tensor.get(reader.weight)
            if modules is None:
                return f"its reader {reader.layer} holds its matrix as {reader.weight}, which recipes can't name"
            names += [module.name for module in modules]
        return tuple(names)

    def names_after(self, module: QuantizerModule) -> tuple[str, ...] | None:
        """The layers whose columns can undo factors of the outputs of a layer; None if there are none."""
        path = self.path_of(module)
        if isinstance(path, str) or path.obstacle is not None or not path.ends:
            return None
        readers = [
            reader.name
            for end in path.ends
            for reader in self.by_tensor.get(self._first(end.by.weight), ())
            if self._same_expert(module, reader)
        ]
        smoothed = Smoothed(module, tuple(self.named[name] for name in readers))
        return tuple(readers) if readers and self._to_layer(smoothed) is None else None

    def to(self, modifier: str, smoothed: Smoothed) -> str | None:
        """Why a mapping does not keep the function, as the graph shows it; None if it does."""
        if smoothed.source.name in self._norms:
            return self.to_norm(modifier, smoothed.source, smoothed.readers)
        return self._to_layer(smoothed)

    def to_norm(self, modifier: str, norm: QuantizerModule, readers: Sequence[QuantizerModule]) -> str | None:
        taken = self._taken_from(norm.name)
        if isinstance(taken, str):
            return taken
        form = self._to_form(modifier, norm, taken)
        if form is not None:
            return form
        axes = {reader.weight: reader for reader in taken.readers}
        wanted = [module for tensor in axes for module in self.by_tensor.get(tensor, ())]
        given = {reader.name for reader in readers}
        missing = [module.name for module in wanted if module.name not in given]
        missing += [reader.layer for tensor, reader in axes.items() if tensor not in self.by_tensor]
        if missing:
            return f"it is also read by {some(missing)}"
        return self._to_readers(readers, {tensor: reader.axis for tensor, reader in axes.items()})

    def _to_form(self, modifier: str, norm: QuantizerModule, taken: Taken) -> str | None:
        """Whether its tensors are what llm-compressor takes them for."""
        if taken.gain_tensor is None or norm.weight is None:
            return "it has no gain that could be divided"
        if self._first(norm.weight.tensor) != taken.gain_tensor:
            return f"its gain is {taken.gain_tensor}, not {norm.weight.tensor}"
        if taken.adds_one != is_converted(norm):
            stored = "1 + w" if taken.adds_one else "w"
            return f"its gain is stored as {stored}, and llm-compressor takes it for the other"
        if taken.bias_tensor is not None and (norm.bias is None or self._first(norm.bias.tensor) != taken.bias_tensor):
            return f"its bias is {taken.bias_tensor}, which llm-compressor does not divide"
        found = self._norms[norm.name].norm
        if modifier == SPINQUANT and found is not None and found.bias.any():
            return "it has a bias, which fusing its gain multiplies by the gain once more"
        return None

    def _to_layer(self, smoothed: Smoothed) -> str | None:
        source = smoothed.source
        path = self.path_of(source)
        if isinstance(path, str):
            return path
        if path.obstacle is not None:
            return path.obstacle
        ends = {self._first(end.by.weight): end for end in path.ends}
        given = {reader.name for reader in smoothed.readers}
        wanted = [each for tensor in ends for each in self.by_tensor.get(tensor, ()) if self._same_expert(source, each)]
        missing = [each.name for each in wanted if each.name not in given]
        if missing or not wanted:
            return f"it is also read by {some(missing or [path.ends[0].by.module])}"
        return self._to_readers(smoothed.readers, {name: end.axis for name, end in ends.items()})

    def _to_readers(self, readers: Sequence[QuantizerModule], axes: dict[str, int]) -> str | None:
        for reader in readers:
            if reader.weight is None or self._first(reader.weight.tensor) not in axes:
                return f"{reader.name} does not read it"
            columns = self._tensors[reader.weight.tensor].ndim - (2 if reader.weight.turned else 1)
            if axes[self._first(reader.weight.tensor)] != columns:
                return (
                    f"{reader.name} stores its matrix as inputs × outputs: llm-compressor takes its columns for inputs"
                )
        return None

    def _taken_from(self, norm: str) -> Taken | str:
        """The readers of a norm, if they are linear layers and nothing else reads it; otherwise why not."""
        if norm not in self._taken:
            if norm in self._streams.problems:
                self._taken[norm] = self._streams.problems[norm]
            else:
                ones = np.ones(self._norms[norm].size)
                taken, reason = self._readers.take(norm, ones, np.zeros_like(ones))
                self._taken[norm] = reason if taken is None else taken
        return self._taken[norm]

    def path_of(self, module: QuantizerModule) -> ScaledPath | str:
        """Where factors of the outputs of a layer end up, or why that is not known."""
        if module.name not in self._paths:
            self._paths[module.name] = self._followed(module)
        return self._paths[module.name]

    def _followed(self, module: QuantizerModule) -> ScaledPath | str:
        products = [] if module.weight is None else self._products.get(self._first(module.weight.tensor), [])
        if len(products) != 1:
            return "it is not a linear layer that the traced call uses once"
        product = products[0]
        path = scaled_path(self._graph, product, self._streams.words)
        if path.obstacle is not None:
            return path
        return self._unlike(module, product, path) or self._unchangeable(product, path) or path

    def _unlike(self, module: QuantizerModule, product: Multiplication, path: ScaledPath) -> str | None:
        """Whether the layer stores something else than llm-compressor takes it for."""
        assert module.weight is not None
        stored = self._tensors[module.weight.tensor]
        if product.outputs[-1].weight != stored.ndim - (1 if module.weight.turned else 2):
            return "it stores its matrix as inputs × outputs, and llm-compressor takes its rows for outputs"
        if (product.bias is None) != (module.bias is None):
            return f"its bias is {product.bias}, which llm-compressor does not divide"
        if module.weight.place:
            outputs = torch.arange(product.total.meta["val"].shape[-1])
            if not torch.equal(outputs[module.weight.place[-1]], outputs[path.first :]):
                return "its outputs are not those that the next layer multiplies"
        return None

    def _unchangeable(self, product: Multiplication, path: ScaledPath) -> str | None:
        """Whether other operations use the weights too, or experts are chosen anew."""
        for each in (product, *(end.by for end in path.ends)):
            ok, reason = self._uses.can_change(each.weight, each.nodes)
            if not ok:
                return f"{each.module} multiplies with {reason}"
            if not _sent_alike(product, each):
                return f"{each.module} may send a token to another expert"
        return None

    @staticmethod
    def _same_expert(one: QuantizerModule, other: QuantizerModule) -> bool:
        """Whether two layers belong to the same expert, or at most one is of an expert."""
        places = [each.weight.place for each in (one, other) if each.weight is not None and each.weight.place]
        return len(places) < 2 or places[0][0] == places[1][0]

    def _first(self, tensor: str) -> str:
        return self._tensors.first_name(tensor)


def _sent_alike(one: Multiplication, other: Multiplication) -> bool:
    """Whether two products with stacks send every row to the matrix of the same number."""
    grouped = [node for product in (one, other) for node in product.nodes if is_grouped(node)]
    return len({sent_to(node.args[2]) for node in grouped}) <= 1


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
