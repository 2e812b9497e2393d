"""`normscope inspect`, `check` or `report` of many models: a row for each, also for those that failed."""

from dataclasses import dataclass
from typing import Annotated, Literal

from normscope.results.describe import Column, Table
from normscope.results.result import Result


@dataclass(frozen=True)
class ModelRow:
    """One model. What was not asked, or could not be found out because of an error, is None."""

    model: Annotated[str, Column("model", "Its name.")]
    path: Annotated[str, Column("path", "Where it is.", brief=False)]
    norms: Annotated[int | None, Column("norms", "How many norms it has.")] = None
    kinds: Annotated[str | None, Column("kinds", "What its norms are.")] = None
    errors: Annotated[int | None, Column("errors", "Findings that are errors.")] = None
    warnings: Annotated[int | None, Column("warnings", "Findings that are warnings.")] = None
    notes: Annotated[int | None, Column("notes", "Findings that are notes.")] = None
    unchecked: Annotated[int | None, Column("rules not checked", "Rules that lacked a text, or time.", brief=False)] = (
        None
    )
    first: Annotated[str | None, Column("most important finding", "The first of its findings.")] = None
    page: Annotated[str | None, Column("page", "Its report.", brief=False)] = None
    error: Annotated[str | None, Column("failed", "Why there is no result for it.")] = None


@dataclass(frozen=True, repr=False)
class ModelList(Result, kind="model_list"):
    """Many models, in the order in which they were named."""

    asked: Literal["inspect", "check", "report"]
    models: Annotated[tuple[ModelRow, ...], Table("{0.asked} of many models")]

    @property
    def failed(self) -> int:
        """Models without a result."""
        return sum(row.error is not None for row in self.models)

    def failure(self) -> str | None:
        """Why a command that shows it ends with exit code 1; findings count for `check`, as for one model."""
        if self.failed:
            return f"{self.failed} of {len(self.models)} models failed"
        errors = sum(row.errors or 0 for row in self.models)
        return f"{errors} error{'s' * (errors != 1)} found" if errors and self.asked == "check" else None

    def __repr__(self) -> str:
        return f"ModelList({self.asked}: {len(self.models)} models, {self.failed} failed)"
