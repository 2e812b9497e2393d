"""Powers of two that multiply the values and tensors of a traced call without changing its outputs.

Every value of the graph and every stored tensor gets an exponent. Each operation is an equation between them:

    y = x₁ + x₂, moves, joins        e(y) = e(x₁) = e(x₂)
    y = Wx + b, x₁∘x₂                e(y) = e(W) + e(x),  e(y) = e(b)
    y = N(x; eps)·gain + bias        e(y) = e(gain) = e(bias), and eps gets twice the exponent of x
    anything else                    all its exponents are 0

So one eps in the configuration for several norms, a table that a head shares, and a product of neurons need no rule of
their own. A solution has exponent 1 at one value and 0 wherever the equations leave a choice; sums of solutions are
solutions.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.fx import Node
from torch.utils import _pytree as pytree

from normscope.models.graph_operations import handed_in, handed_on, kind_of, overwritten_by
from normscope.models.multiplications import is_grouped
from normscope.rewrite.channels import counts
from normscope.rewrite.norm_places import NormCall
from normscope.rewrite.streams import Streams
from normscope.tensors.traced_nodes import argument, has_floats

SUMS = {
    "add", "sub", "cat", "concat", "stack", "hstack", "vstack", "where", "index_add", "index_put", "index_copy",
    "scatter_add", "scatter", "masked_scatter", "copy", "maximum", "minimum", "slice_scatter", "select_scatter",
}  # fmt: skip
SAME = {
    "relu", "neg", "abs", "sum", "mean", "amax", "amin", "cumsum", "flip", "roll", "repeat_interleave", "index",
    "index_select", "gather", "embedding", "tile", "tril", "triu", "take_along_dim", "avg_pool1d", "avg_pool2d",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "max_pool2d", "sort",
}  # fmt: skip
PRODUCTS = {"mul", "matmul", "mm", "bmm", "mv", "dot", "einsum", "outer"}
WITH_BIAS = {  # the names of the factors, and of what is added to their product
    "linear": (("input", "weight"), "bias"),
    "addmm": (("mat1", "mat2"), "self"),
    "baddbmm": (("batch1", "batch2"), "self"),
    "conv1d": (("input", "weight"), "bias"),
    "conv2d": (("input", "weight"), "bias"),
    "conv3d": (("input", "weight"), "bias"),
}
EMPTY = {"zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty"}  # zero at any scale, or overwritten
ORDERS = {"argmax", "argmin", "argsort"}  # the same numbers at any scale

Variable = Node | str  # a value, or a stored tensor by its first name, or a setting that holds an eps
Exponents = dict[Variable, int]


class Scales:
    """The equations of one traced call.

    `tensor` says which stored tensor a name stands for and why it can't change; `norm_tensors` are the gain and the
    bias of every norm that divides by the size of its input, None where they are 1 and 0 (other norms are followed
    operation by operation); `eps` says for each norm with an eps which setting holds it.
    """

    def __init__(
        self,
        streams: Streams,
        tensor: Callable[[str], tuple[str, str]],
        norm_tensors: Mapping[str, tuple[str | None, str | None]],
        eps: Mapping[str, str],
        fixed: Mapping[str, str],
    ) -> None:
        self._streams, self._graph = streams, streams.graph
        self._system = _Equations()
        self.values: dict[Node, None] = {}  # all outside norms, and the outputs of these
        for node in self._graph.nodes:
            name = self._graph.stored_name(node)
            if node.op == "placeholder" and name is not None and has_floats(node):
                first, reason = tensor(name)
                self._system.equal(node, first)
                if reason:
                    self._system.fix(first, f"it is computed with {reason}")
        calls = [call for norm in norm_tensors for call in streams.calls[norm]]
        inside = {node: call for call in calls for node in call.nodes}
        for node in self._graph.nodes:
            call = inside.get(node)
            if call is not None and not (handed_in(node, call.nodes) and handed_on(node) is not None):
                continue
            self._follow(node)
        for call in calls:
            self._norm(call, norm_tensors[call.norm], eps.get(call.norm))
        for setting, reason in fixed.items():
            self._system.fix(setting, reason)
        self._system.reduce()

    def stem(self, value: Variable) -> Variable:
        """One of all values and tensors that have the same exponent in every solution."""
        return self._system.find(value)

    def solution(self, value: Variable) -> Exponents | str:
        """Exponents of everything, 1 at a value; or why there are none."""
        return self._system.solved(value, (*self.values, *self._system.names))

    def is_free_value(self, value: Variable) -> bool:
        """Whether the equations leave the exponent of a value open."""
        return not self._system.is_fixed(value)

    def _follow(self, node: Node) -> None:
        """The equations of one operation."""
        if node.op == "output":
            for value in node.all_input_nodes:
                self._fix(value, "it is an output of the model")
            return
        if node.op == "placeholder":
            if has_floats(node) and self._graph.stored_name(node) is None:
                self._fix(node, f"{self._streams.words(node)} is added to it")
            return
        given = [value for value in node.all_input_nodes if has_floats(value)]
        if has_floats(node):
            self.values[node] = None
        elif not any(counts(node, value) for value in given) or kind_of(node) in ORDERS:
            return
        if not self._is_linear(node, given):
            words = f"{self._streams.words(node)} is not the same at every scale"
            for value in (*given, *([node] if has_floats(node) else [])):
                self._fix(value, words)
        for changed in overwritten_by(node):
            self._system.equal(node, changed)

    def _is_linear(self, node: Node, given: list[Node]) -> bool:
        """Whether an operation has an equation, which is then added."""
        if not has_floats(node):
            return False
        return kind_of(node) in EMPTY or self._is_sum(node, given) or self._is_product(node, given)

    def _is_sum(self, node: Node, given: list[Node]) -> bool:
        """Whether the result of an operation has the scale of the values that it takes."""
        kind, source = kind_of(node), handed_on(node)
        if source in given or (kind in SAME and len(given) == 1):
            self._system.equal(node, source or given[0])
        elif kind in SUMS and self._adds_nothing_else(node) and node.kwargs.get("reduce") in (None, "add"):
            for value in given:
                self._system.equal(node, value)
        elif kind == "masked_fill" and _is_zero(argument(node, "value")):
            self._system.equal(node, given[0])
        elif kind == "scaled_dot_product_attention":
            values = argument(node, "value")
            self._system.equal(node, values)
            for value in given:
                if value is not values:
                    self._fix(value, f"it is scored or masked in {self._streams.words(node)}")
        else:
            return False
        return True

    def _is_product(self, node: Node, given: list[Node]) -> bool:
        """Whether the scale of the result of an operation is the product of those of the values that it takes."""
        kind = kind_of(node)
        args: Any = node.args
        if kind in WITH_BIAS:
            factors, bias = WITH_BIAS[kind]
            self._system.add(node, [argument(node, name) for name in factors])
            if isinstance(added := argument(node, bias), Node):
                self._system.equal(node, added)
        elif kind in PRODUCTS or is_grouped(node):
            self._system.add(node, [leaf for leaf in pytree.tree_leaves(args) if leaf in given])
        elif kind == "div" and node.kwargs.get("rounding_mode") is None:
            self._system.add(node, args[:1] if args[0] in given else (), args[1:2] if args[1] in given else ())
        elif kind == "pow" and isinstance(args[1], int) and args[1] > 0 and args[0] in given:
            self._system.add(node, [args[0]] * args[1])
        else:
            return False
        return True

    def _adds_nothing_else(self, node: Node) -> bool:
        """Whether no number but 0 is added to, or joined with, the values of a sum."""
        names = {"other", "self", "value", "src", "input"}
        numbers = [argument(node, name) for name in names if not isinstance(argument(node, name), Node)]
        return all(_is_zero(number) for number in numbers if isinstance(number, int | float))

    def _norm(self, call: NormCall, tensors: tuple[str | None, str | None], eps: str | None) -> None:
        gain, bias = tensors
        if gain is None:
            self._fix(call.output, f"{call.norm} has no gain to scale it with")
        for tensor in (gain, bias):
            if tensor is not None:
                self._system.equal(call.output, tensor)
        if eps is not None:
            self._system.equal(call.value, eps)
        self.values[call.output] = None

    def _fix(self, value: Node, why: str) -> None:
        self._system.fix(value, why)


def _is_zero(number: Any) -> bool:
    return isinstance(number, int | float) and (number == 0 or math.isinf(number))


class _Equations:
    """Equal variables, variables that are 0, and sums of variables that are 0."""

    def __init__(self) -> None:
        self._parents: dict[Variable, Variable] = {}
        self._fixed: dict[Variable, str] = {}
        self._sums: list[Counter[Variable]] = []
        self.names: dict[str, None] = {}

    def find(self, variable: Variable) -> Variable:
        path = []
        while (parent := self._parents.get(variable, variable)) is not variable:
            path.append(variable)
            variable = parent
        self._parents |= dict.fromkeys(path, variable)
        return variable

    def equal(self, one: Variable, other: Variable) -> None:
        self.names |= {each: None for each in (one, other) if isinstance(each, str)}
        one, other = self.find(one), self.find(other)
        if one is not other:
            self._parents[other] = one
            if other in self._fixed:
                self._fixed.setdefault(one, self._fixed.pop(other))

    def fix(self, variable: Variable, why: str) -> None:
        self._fixed.setdefault(self.find(variable), why)

    def is_fixed(self, variable: Variable) -> bool:
        return self.find(variable) in self._fixed

    def add(self, product: Variable, factors: Iterable[Variable], divisors: Iterable[Variable] = ()) -> None:
        """A product has the sum of the exponents of its factors, less those of its divisors."""
        terms = Counter([product, *divisors])
        terms.subtract(Counter(factors))
        self._sums.append(terms)

    def reduce(self) -> None:
        """Turn sums with one or two terms that are not 0 into equalities, until nothing changes."""
        while True:
            left: list[Counter[Variable]] = []
            for terms in self._sums:
                reduced = self._open(terms)
                if len(reduced) == 1:
                    reasons = [self._fixed[found] for each in terms if (found := self.find(each)) in self._fixed]
                    self.fix(next(iter(reduced)), reasons[0] if reasons else "it is added to itself")
                elif len(reduced) == 2 and sorted(reduced.values()) == [-1, 1]:
                    self.equal(*reduced)
                elif reduced:
                    left.append(reduced)
            done = len(left) == len(self._sums)
            self._sums = left
            if done:
                return

    def _open(self, terms: Counter[Variable]) -> Counter[Variable]:
        """The terms of a sum that are not known to be 0, by the stems of their variables."""
        summed: Counter[Variable] = Counter()
        for variable, times in terms.items():
            summed[self.find(variable)] += times
        return Counter({stem: times for stem, times in summed.items() if times and stem not in self._fixed})

    def solved(self, start: Variable, order: Iterable[Variable]) -> Exponents | str:
        stem = self.find(start)
        if stem in self._fixed:
            return self._fixed[stem]
        values: Exponents = {stem: 1}
        uses: dict[Variable, list[Counter[Variable]]] = {}
        for terms in self._sums:
            for each in terms:
                uses.setdefault(each, []).append(terms)
        pending = [stem]
        for free in (None, *order):
            if free is not None:
                chosen = self.find(free)
                if chosen in values or chosen in self._fixed or chosen not in uses:
                    continue
                values[chosen] = 0
                pending = [chosen]
            while pending:
                for terms in uses.get(pending.pop(), ()):
                    unknown = [each for each in terms if each not in values]
                    total = sum(times * values[each] for each, times in terms.items() if each in values)
                    if len(unknown) == 1 and total % terms[unknown[0]] == 0:
                        values[unknown[0]] = -total // terms[unknown[0]]
                        pending.append(unknown[0])
                    elif (not unknown and total) or len(unknown) == 1:
                        return "a product links it to values that can't be scaled with it"
        return {variable: exponent for variable, exponent in values.items() if exponent}
