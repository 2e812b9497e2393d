"""A recipe of a quantizer held to the graph of a model: which of its mappings keep the function of the model."""

from dataclasses import dataclass
from typing import Annotated, Literal

from normscope.results.describe import Column, Table
from normscope.results.result import Result

MappingOutcome = Literal[
    "confirmed", "changes the function", "not confirmed", "can't be applied", "matches nothing", "skipped"
]
RIGHT: tuple[MappingOutcome, ...] = ("confirmed", "matches nothing", "skipped")


@dataclass(frozen=True)
class MappingVerdict:
    """A mapping of a recipe: factors that move from the outputs of its source into the columns of its readers."""

    modifier: Annotated[str, Column("modifier", "The modifier of llm-compressor that the mapping belongs to.")]
    source: Annotated[str, Column("from", "The norm or layer whose outputs are divided, as a pattern of names.")]
    readers: Annotated[
        tuple[str, ...], Column("to", "The layers whose columns are multiplied, as patterns of names.", ", ".join)
    ]
    sets: Annotated[int, Column("sets", "How many sets of modules it stands for.")]
    verdict: Annotated[
        MappingOutcome,
        Column(
            "verdict",
            "confirmed: by the graph and by a run; not confirmed: this run shows no change, the graph does; skipped: "
            "llm-compressor leaves it out.",
        ),
    ]
    change: Annotated[
        float | None,
        Column(
            "change", "Largest change of an output in float64 after random factors, over the largest output.", ".1e"
        ),
    ]
    reason: Annotated[str | None, Column("why", "What the graph shows, of the first set that is wrong.")]

    @property
    def is_right(self) -> Annotated[bool, Column("right", "Whether it leaves the function as it is.", brief=False)]:
        return self.verdict in RIGHT


@dataclass(frozen=True, repr=False)
class RecipeCheck(Result, kind="recipe_check"):
    """Every mapping of a recipe for llm-compressor, with a verdict from the graph and from a run in float64."""

    model: str
    recipe: str
    mappings: Annotated[tuple[MappingVerdict, ...], Table("Mappings of {0.recipe}, on {0.model}")]

    @property
    def holds(self) -> bool:
        """Whether no mapping changes the function of the model, and all can be applied."""
        return all(mapping.is_right for mapping in self.mappings)

    def failure(self) -> str | None:
        wrong = sum(not mapping.is_right for mapping in self.mappings)
        return (
            None
            if self.holds
            else f"{wrong} of {len(self.mappings)} mappings would change the model, or can't be applied"
        )

    def __repr__(self) -> str:
        right = sum(mapping.verdict == "confirmed" for mapping in self.mappings)
        return f"RecipeCheck({self.model}: {right} of {len(self.mappings)} mappings of {self.recipe} confirmed)"
