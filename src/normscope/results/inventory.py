"""`normscope.find`: the normalization layers of a model, and what was assumed or refused about each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from normscope.checks import Floats
from normscope.norm import Norm
from normscope.results.describe import MISSING, NOT_IN_JSON, Column, Table
from normscope.results.result import Result

Kind = Literal["layernorm", "rmsnorm", "lng", "projection", "affine", "unknown"]
PROJECTING, SCALING = ("layernorm", "lng", "projection"), ("layernorm", "lng", "rmsnorm")


@dataclass(frozen=True)
class Gate:
    """A second input that multiplies channel by channel: norm(x ∘ act(gate)), or norm(x) ∘ act(gate).

    >>> str(Gate("before", "silu"))
    'norm(x ∘ silu(gate))'
    """

    place: str  # "before" the norm or "after" it
    activation: str  # its name; "" where the gate is used as it is
    used_first: bool = False  # whether the traced call uses the gate before the value that is normalized

    def __str__(self) -> str:
        gate = f"{self.activation}(gate)" if self.activation else "gate"
        return f"norm(x ∘ {gate})" if self.place == "before" else f"norm(x) ∘ {gate}"


@dataclass(frozen=True)
class FoundNorm:
    """A normalization layer of a model.

    Its kind is "unknown", and `problem` says which check failed, if the layer fits no member of the family as the
    model calls it. `assumed` names what could not be observed (a checkpoint without its architecture shows gains, but
    neither kind nor eps). `unchecked` says why its calls in the model could not be checked; then no claim about its
    outputs holds for all inputs.
    """

    name: Annotated[
        str,
        Column(
            "norm",
            "Path of the module in the model; module:function of a call; without a model, the name of its gain.",
            lambda name: name or "(the model)",
        ),
    ]
    kind: Annotated[Kind, Column("kind", "Which member of the family it is.")]
    # 0 channels: only known in use.
    size: Annotated[int, Column("channels", "How many channels it has.", lambda size: str(size or MISSING))]
    groups: Annotated[
        int | None, Column("groups", "Groups of channels that are normalized separately.", brief=False)
    ] = None
    eps: Annotated[float | None, Column("eps", "What keeps the divisor from zero.", ".4g")] = None
    eps_place: Annotated[
        str | None,
        Column("eps is", "Where eps stands: inside the root, outside it, or as a floor.", brief=False),
    ] = None  # None if eps is 0 or unknown
    gain_convention: Annotated[str | None, Column("gain is", "How the gain is stored: w or 1+w.")] = None
    has_bias: Annotated[
        bool | None, Column("bias", "Whether it has a bias.", lambda has: "yes" if has else "no", brief=False)
    ] = None  # None of an unknown norm
    axis: int = -1  # the axis of its input that it normalizes
    parameters: Annotated[int, Column("parameters", "Gains and biases that are stored.", ",", brief=False)] = 0
    path: str | None = None  # of the module in the model, where there is one
    module: Annotated[str | None, Column("class", "The class of its module, or the function of its call.")] = None
    function: Annotated[
        str | None, Column("called at", "File and line of a call of torch's function.", brief=False)
    ] = None
    gate: Annotated[
        Gate | None, Column("gate", "What a gated norm computes; everything else is about the norm in it.", brief=False)
    ] = None
    assumed: Annotated[tuple[str, ...], Column("assumed", "What could not be observed.", ", ".join)] = ()
    stored_as: Annotated[
        str | None, Column("name in checkpoint", "Its name in the checkpoint, where that is another.", brief=False)
    ] = None
    unchecked: Annotated[
        str | None, Column("not checked", "Why its calls in the model were not checked.", brief=False)
    ] = "the model was not traced"
    problem: Annotated[str | None, Column("why unknown", "The check that failed, of an unknown norm.")] = None
    gain: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)
    bias: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, norm: Norm, name: str, **facts: Any) -> "FoundNorm":
        """A layer that computes this norm.

        >>> FoundNorm.of(Norm(gain=[1.0, 2.0]), "ln").norm
        Norm(layernorm, size=2, eps=1e-05)
        """
        values = {"groups": norm.groups, "eps": norm.eps, "gain": norm.gain, "bias": norm.bias}
        found = cls(name, norm.kind, norm.size, **values, **facts)  # type: ignore[arg-type]
        vars(found)["norm"] = norm
        return found

    @cached_property
    def norm(self) -> Norm | None:
        """The norm it computes; None for an unknown norm. A file that lacks one of its values is refused here."""
        if self.kind == "unknown":
            return None
        return Norm(
            gain=self.gain,  # type: ignore[arg-type]
            bias=self.bias,
            eps=self.eps,  # type: ignore[arg-type]
            project=self.kind in PROJECTING,
            scale=self.kind in SCALING,
            groups=self.groups,  # type: ignore[arg-type]
        )

    @property
    def obstacle(self) -> str | None:
        """Why its outputs in the model are not known to be those of `norm`; None if they are."""
        if self.kind == "unknown":
            return self.problem
        if self.gate is not None and self.gate.place == "after":
            return f"its output is {self.gate}, which the gate moves out of the norm's ellipsoid"
        return None if self.unchecked is None else f"its call in the model was not checked: {self.unchecked}"


@dataclass(frozen=True, repr=False)
class Inventory(Result, Mapping[str, FoundNorm], kind="inventory", remarked_by="normscope.rules.inventory:remarks"):
    """The normalization layers of a model by name, in the order in which the model holds them.

    `module` is the model itself, or its architecture without weights (on the meta device); None where only tensors are
    available, and then `tied_embeddings` is None too. `graph` is one traced call of it; where there is none, `untraced`
    says why, and then calls of norm functions outside norm modules were not searched. `notes` are sentences on
    what in the model's config.json is not supported. A file holds neither module nor graph.
    """

    model: str
    norms: Annotated[tuple[FoundNorm, ...], Table("Norms of {0.model}")]
    parameters: int | None = None
    tied_embeddings: bool | None = None
    untraced: str | None = None
    notes: tuple[str, ...] = ()
    module: Annotated[Any, NOT_IN_JSON] = field(default=None, compare=False)
    graph: Annotated[Any, NOT_IN_JSON] = field(default=None, compare=False)

    @property
    def norm_parameters(self) -> int:
        """How many parameters are gains and biases of norms."""
        return sum(found.parameters for found in self.norms)

    @cached_property
    def _by_name(self) -> dict[str, FoundNorm]:
        return {found.name: found for found in self.norms}

    def __getitem__(self, name: str) -> FoundNorm:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __repr__(self) -> str:
        kinds = [found.kind for found in self.norms]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        none = "no norms" if self.untraced is None else "no norms as modules; calls of functions were not looked for"
        return f"Inventory({self.model}: {counts or none})"
