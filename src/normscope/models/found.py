"""What was found in a model: one entry per normalization layer, and what was assumed or refused about it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from normscope.models.graph import ModelGraph
from normscope.norm import Norm


@dataclass(frozen=True)
class Gate:
    """A second input that multiplies channel by channel: norm(x ∘ act(gate)), or norm(x) ∘ act(gate)."""

    place: str  # "before" the norm or "after" it
    activation: str  # its name; "" where the gate is used as it is
    used_first: bool = False  # whether the traced call uses the gate before the value that is normalized

    def __str__(self) -> str:
        gate = f"{self.activation}(gate)" if self.activation else "gate"
        return f"norm(x ∘ {gate})" if self.place == "before" else f"norm(x) ∘ {gate}"


@dataclass(frozen=True)
class FoundNorm:
    """A normalization layer of a model.

    `norm` is None, and `problem` says which check failed, where the layer fits no member of the family as the model
    calls it. `assumed` names what could not be observed (a checkpoint without its architecture shows gains, but neither
    kind nor eps). `unchecked` says why its calls in the model could not be looked at; then nothing that holds for all
    inputs may be said about its outputs.
    """

    name: str  # path of the module in the model; module:function of a call; without a model, the name of its gain
    size: int  # 0 if only its use shows it
    norm: Norm | None
    path: str | None = None  # of the module in the model, where there is one
    module: str | None = None  # its class
    function: str | None = None  # of a call of torch's function: where it is, as file:line
    gate: Gate | None = None
    unchecked: str | None = "the model was not traced"
    stored_as: str | None = None  # its name in the checkpoint, where that is another
    gain_convention: str | None = None  # "w", "1+w", or None without a gain
    eps_place: str | None = None  # "inside" the root, "outside" it, or as a "floor"; None if eps is 0 or unknown
    axis: int = -1  # the axis of its input that it normalizes
    has_bias: bool | None = None  # None of an unknown norm
    parameters: int = 0  # gains and biases that are stored
    assumed: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def obstacle(self) -> str | None:
        """Why its outputs in the model are not known to be those of `norm`; None if they are."""
        if self.norm is None:
            return self.problem
        if self.gate is not None and self.gate.place == "after":
            return f"its output is {self.gate}, which the gate takes out of the norm's ellipsoid"
        return None if self.unchecked is None else f"its call in the model was not checked: {self.unchecked}"

    @property
    def kind(self) -> str:
        """layernorm, rmsnorm, lng, projection, or unknown."""
        return "unknown" if self.norm is None else self.norm.kind


class Inventory(Mapping[str, FoundNorm]):
    """The normalization layers of a model by name, in the order in which the model holds them.

    `module` is the model itself, or its architecture without weights (on the meta device); None where only tensors are
    at hand, and then `tied_embeddings` is None too. `graph` is one traced call of it; where there is none, `untraced`
    says why, and then calls of norm functions, which no module holds, were not looked for.
    """

    def __init__(
        self,
        model: str,
        norms: list[FoundNorm],
        *,
        module: nn.Module | None = None,
        parameters: int | None = None,
        tied_embeddings: bool | None = None,
        graph: ModelGraph | None = None,
        untraced: str | None = None,
    ) -> None:
        self.model = model
        self.module = module
        self.parameters = parameters
        self.tied_embeddings = tied_embeddings
        self.graph = graph
        self.untraced = untraced
        self._norms = {found.name: found for found in norms}

    @property
    def norm_parameters(self) -> int:
        """How many parameters are gains and biases of norms."""
        return sum(found.parameters for found in self.values())

    def __getitem__(self, name: str) -> FoundNorm:
        return self._norms[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._norms)

    def __len__(self) -> int:
        return len(self._norms)

    def __repr__(self) -> str:
        kinds = [found.kind for found in self.values()]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        none = "no norms" if self.graph is not None else "no norms as modules; calls of functions were not looked for"
        return f"Inventory({self.model}: {counts or none})"
