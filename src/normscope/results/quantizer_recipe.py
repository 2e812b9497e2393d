"""A recipe for a quantizer, from the graph of a model: which linear layers read which norm or layer."""

from dataclasses import dataclass
from typing import Annotated

from normscope.results.describe import Column, Table
from normscope.results.recipe_check import MappingVerdict
from normscope.results.result import Result


@dataclass(frozen=True)
class LeftOut:
    """A norm or layer that no mapping of the recipe can start from."""

    source: Annotated[str, Column("norm or layer", "What no mapping starts from.")]
    modifier: Annotated[str, Column("modifier", "The modifiers whose mappings leave it out.")]
    reason: Annotated[str, Column("why", "What the graph shows.")]


@dataclass(frozen=True, repr=False)
class QuantizerRecipe(Result, kind="quantizer_recipe", shown_by="normscope.report.recipe_text:show"):
    """A recipe for llm-compressor (YAML), whose mappings keep the function of the model, and what it leaves out."""

    model: str
    mappings: Annotated[
        tuple[MappingVerdict, ...], Table("Mappings for {0.model}", "No norm is read by linear layers.")
    ]
    left_out: Annotated[tuple[LeftOut, ...], Table("Left out of the recipe for {0.model}")]
    recipe: str

    @property
    def holds(self) -> bool:
        """Whether every mapping is confirmed by a run in float64."""
        return all(mapping.verdict == "confirmed" for mapping in self.mappings)

    def __repr__(self) -> str:
        return f"QuantizerRecipe({self.model}: {len(self.mappings)} mappings, {len(self.left_out)} left out)"
