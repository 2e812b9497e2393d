"""Which operations of the traced call use a stored tensor: one that is used twice can be changed only for both."""

from collections.abc import Collection

from torch import nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from normscope.models.graph import ModelGraph
from normscope.models.graph_operations import handed_on, looks_at_values
from normscope.rewrite.stored_tensors import StoredTensors


class Uses:
    """The stored tensors of a model, with the operations that use each, moved or cast at most."""

    def __init__(self, tensors: StoredTensors, graph: ModelGraph) -> None:
        self.tensors = tensors
        self._graph = graph
        self._by_tensor: dict[str, dict[Node, int]] = {}  # each with how often it is given the tensor
        for node in graph.nodes:
            name = graph.stored_name(node)
            if name is not None:
                users = self._by_tensor.setdefault(self.tensors.first_name(name), {})
                for user, times in _users(node).items():
                    users[user] = users.get(user, 0) + times

    def of(self, name: str) -> tuple[Node, ...]:
        return tuple(self._by_tensor.get(self.tensors.first_name(name), ()))

    def idle(self) -> tuple[str, ...]:
        """What the traced call does not use: the outermost modules with all their parameters, or single parameters."""
        names = [name for name in self.tensors.first_names if isinstance(self.tensors[name], nn.Parameter)]
        used = {part for name in names if self.of(name) for other in self.tensors.names(name) for part in _parts(other)}
        idle = [next(part for part in _parts(name) if part not in used) for name in names if not self.of(name)]
        return tuple(dict.fromkeys(idle))

    def can_change(self, name: str, allowed: Collection[Node]) -> tuple[bool, str]:
        """Whether a tensor can get other values if only the given operations may notice; if not, what forbids it.

        The reason begins with the name of the tensor: "weight, which …".
        """
        ok, reason = self.tensors.can_change(name)
        if not ok:
            return False, reason
        for node, times in self._by_tensor.get(self.tensors.first_name(name), {}).items():
            if node not in allowed or times > 1:
                where = self._graph.module_of(node) or "the model"
                return False, f"{name}, which {where} uses {'too' if node not in allowed else 'twice'} ({node.name})"
        holders = {other.rpartition(".")[0] for other in self.tensors.names(name)}
        idle = sorted(holder for holder in holders if not self._graph.calls_of(holder))
        if len(holders) > 1 and idle:
            return False, f"{name}, which {idle[0]} holds too, and the traced call does not run that"
        return True, ""


def _parts(name: str) -> list[str]:
    """The modules that a tensor is in, the outermost first, and the tensor."""
    words = name.split(".")
    return [".".join(words[: count + 1]) for count in range(len(words))]


def _users(stored: Node) -> dict[Node, int]:
    pending, users = [stored], dict[Node, int]()
    while pending:
        value = pending.pop(0)
        for user in value.users:
            if handed_on(user) is value:
                pending.append(user)
            elif user.op == "output" or looks_at_values(user):
                given = pytree.tree_leaves((user.args, user.kwargs))
                users[user] = users.get(user, 0) + sum(argument is value for argument in given)
    return users
