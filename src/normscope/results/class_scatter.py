"""`normscope.separability`: how well classes of inputs separate before and after every norm of a model."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.result import Result


@dataclass(frozen=True)
class NormScatter:
    """How samples are scattered as a norm reads them and as it writes them; None where all of them coincide.

    LSSR is also None where it is trivially 0 for any labels: there are too few inputs for their rank.
    """

    name: Annotated[str, Column("norm", "Module path of the norm.", lambda name: name or "(the model)")]
    kind: Annotated[str, Column("kind", "Member of the family: layernorm, rmsnorm, lng or projection.")]
    size: Annotated[int, Column("channels", "How many channels it normalizes.", brief=False)]
    rank_before: Annotated[int | None, Column("rank before", "Rank of its inputs, minus their mean.")]
    rank_after: Annotated[int | None, Column("rank after", "Rank of its outputs, minus their mean.")]
    ssr_before: Annotated[
        float | None,
        Column("SSR before", "Share of the scatter of its inputs that is within classes; 0: clustered.", ".4g"),
    ]
    ssr_after: Annotated[float | None, Column("SSR after", "The same share for its outputs.", ".4g")]
    lssr_before: Annotated[
        float | None, Column("LSSR before", "The least SSR that any linear map of its inputs reaches.", ".4g")
    ]
    lssr_after: Annotated[
        float | None, Column("LSSR after", "The least SSR that any linear map of its outputs reaches.", ".4g")
    ]
    trivial: Annotated[
        bool, Column("trivial", "Whether LSSR is 0 on one side whatever the labels are, and left out.", brief=False)
    ]

    @property
    def change(
        self,
    ) -> Annotated[float | None, Column("change of LSSR", "LSSR after minus LSSR before.", "+.3g", brief=False)]:
        """Below 0 where the norm helps; None where one of the two is None."""
        if self.lssr_before is None or self.lssr_after is None:
            return None
        return self.lssr_after - self.lssr_before


@dataclass(frozen=True, repr=False)
class ClassScatter(Result, kind="class_scatter", schema_version=2, remarked_by="normscope.rules.class_scatter:remarks"):
    """How well the classes of labelled inputs separate at every norm of a model, in the order of the model.

    Each input is one sample: the mean of its vectors over its positions.
    """

    model: str
    samples: int
    classes: int
    norms: Annotated[
        tuple[NormScatter, ...],
        Table("{0.samples} inputs of {0.classes} classes at the norms of {0.model}", empty="No norm saw all inputs."),
    ]

    def __repr__(self) -> str:
        lower = sum(norm.change is not None and norm.change < 0 for norm in self.norms)
        known = sum(norm.change is not None for norm in self.norms)
        return (
            f"ClassScatter({self.model}: {self.samples} inputs of {self.classes} classes, "
            f"{lower} of {known} norms lower LSSR)"
        )
