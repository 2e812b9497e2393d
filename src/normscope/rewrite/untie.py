"""Tables that are tied to a head: which they are, what a copy would cost, and the copy.

A tied table is looked up by one module and multiplied with by another. Changing it for one would change it for the
other, so by default it stays as it is. Given a copy of its own, the head can take over the last norm's gain.
"""

from typing import Any

from torch import nn

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import kind_of
from normscope.rewrite.results import Tie
from normscope.rewrite.stored_tensors import StoredTensors
from normscope.rewrite.uses import Uses


def ties(model: nn.Module, graph: ModelGraph) -> tuple[Tie, ...]:
    """Every tie of a table to a head that holds it under a name of its own."""
    uses = Uses(StoredTensors(model), graph)
    found: dict[str, Tie] = {}
    for product in graph.products.values():
        weight = product.reader.weight_name
        head = uses.tensors.name_in(product.reader.name, weight)
        looked_up = [node for node in uses.of(weight) if kind_of(node) in ("embedding", "index")]
        if not looked_up or head.rpartition(".")[0] != product.reader.name:
            continue
        table = uses.tensors.name_in(graph.module_of(looked_up[0]), weight)
        if table != head:
            values = uses.tensors[weight]
            found[head] = Tie(table, head, values.numel() * values.element_size())
    return tuple(found.values())


def give_copies(model: nn.Module, tied: tuple[Tie, ...]) -> None:
    """Give every head a copy of its table, and tell the configuration, so that the copy stays one when it is loaded."""
    for tie in tied:
        path, _, name = tie.head.rpartition(".")
        shared = model.get_parameter(tie.head)
        own = nn.Parameter(shared.detach().clone(), requires_grad=shared.requires_grad)
        setattr(model.get_submodule(path), name, own)
    config: Any = getattr(model, "config", None)
    if tied and config is not None:
        config.tie_word_embeddings = False
        if hasattr(config, "get_text_config"):
            config.get_text_config().tie_word_embeddings = False
