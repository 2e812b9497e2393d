"""What was found in a model: one entry per normalization layer, and what was assumed or refused about it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from normscope.norm import Norm


@dataclass(frozen=True)
class FoundNorm:
    """A normalization layer of a model.

    `norm` is None, and `problem` says which check failed, where the layer fits no member of the family. `assumed` names
    what could not be observed (a checkpoint without its architecture shows gains, but neither kind nor eps).
    """

    name: str  # path of the module, as in the checkpoint: the name of its gain without ".weight"
    size: int  # 0 if only its use shows it
    norm: Norm | None
    path: str | None = None  # of the module in the model, where there is one; the name may have another prefix
    module: str | None = None  # its class
    gain_convention: str | None = None  # "w", "1+w", or None without a gain
    eps_place: str | None = None  # "inside" the root, "outside" it, or as a "floor"; None if eps is 0 or unknown
    axis: int = -1  # the axis of its input that it normalizes
    has_bias: bool | None = None  # None of an unknown norm
    parameters: int = 0  # gains and biases that are stored
    assumed: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def kind(self) -> str:
        """layernorm, rmsnorm, lng, projection, or unknown."""
        return "unknown" if self.norm is None else self.norm.kind


class Inventory(Mapping[str, FoundNorm]):
    """The normalization layers of a model by name, in the order in which the model holds them.

    `module` is the model itself, or its architecture without weights (on the meta device); None where only tensors are
    at hand, and then `tied_embeddings` is None too. `notes` are sentences on what could not be read as it is meant.
    """

    def __init__(
        self,
        model: str,
        norms: list[FoundNorm],
        *,
        module: nn.Module | None = None,
        parameters: int | None = None,
        tied_embeddings: bool | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.model = model
        self.module = module
        self.parameters = parameters
        self.tied_embeddings = tied_embeddings
        self.notes = notes
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
        return f"Inventory({self.model}: {counts or 'no norms'})"
