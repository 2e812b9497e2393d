"""`normscope.selectable`: which keys some query scores above all others, with a certificate for each."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

import numpy as np

from normscope.certificates.key_certificates import Bools, Certificates, Ints, require_form
from normscope.checks import Floats
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result


@dataclass(frozen=True, eq=False, repr=False)
class CertifiedKeys:
    """Keys with a certificate for each: a query, or weights of others, as `normscope.certificates` describes them.

    Inconsistent arrays are refused, so that a loaded result can always be read.
    """

    keys: Annotated[Floats, NOT_IN_JSON]  # (..., n, d)
    bias: Annotated[Floats | None, NOT_IN_JSON]  # (..., n)
    near_ties: Annotated[
        Bools, NOT_IN_JSON
    ]  # (..., n): a relative change of 1e-8 may change the verdict; includes open keys
    query_keys: Annotated[Ints, NOT_IN_JSON]
    queries: Annotated[Floats, NOT_IN_JSON]
    margins: Annotated[Floats, NOT_IN_JSON]
    weight_keys: Annotated[Ints, NOT_IN_JSON]
    starts: Annotated[Ints, NOT_IN_JSON]
    indices: Annotated[Ints, NOT_IN_JSON]
    weights: Annotated[Floats, NOT_IN_JSON]
    residuals: Annotated[Floats, NOT_IN_JSON]
    semi_axes: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, kw_only=True)  # (d, r), of reachable queries
    center: Annotated[Floats | None, NOT_IN_JSON] = field(default=None, kw_only=True)  # (d,)

    def __post_init__(self) -> None:
        require_form(self.keys, self.bias, self.near_ties, self.certificates)

    @cached_property
    def certificates(self) -> Certificates:
        """Of one key: `certificates[i]`, or `certificates[head, i]` in a batch, a Query or Weights; None if open."""
        shape = getattr(self.keys, "shape", (0,))[:-1]
        parts = (self.query_keys, self.queries, self.margins, self.weight_keys, self.starts, self.indices)
        missing = self.semi_axes is None and self.center is None
        reach = None if missing else (self.semi_axes, self.center)
        return Certificates(shape, *parts, self.weights, self.residuals, reach)  # type: ignore[arg-type]

    @cached_property
    def mask(self) -> Bools:
        """(..., n): whether some query prefers this key to all others strictly."""
        found = np.zeros(self.keys.shape[:-1], bool)
        found.reshape(-1)[self.query_keys] = True
        return found

    @cached_property
    def open(self) -> Bools:
        """(..., n): keys without a certificate. Their mask is False, and they count as near ties."""
        found = ~self.mask
        found.reshape(-1)[self.weight_keys] = False
        return found


@dataclass(frozen=True)
class Counts:
    """How many keys have each verdict, over all sets of a batch."""

    keys: Annotated[int, Column("keys", "All keys.", ",")]
    selectable: Annotated[int, Column("selectable", "Some query scores the key above all others.", ",")]
    never_selected: Annotated[int, Column("never selected", "Weighted means of others: no query does.", ",")]
    near_ties: Annotated[int, Column("near ties", "Verdicts that a rounding error could change.", ",")]
    open: Annotated[int, Column("open", "Neither shown nor refuted; they count as near ties.", ",")]
    least_margin: Annotated[
        float | None, Column("least margin", "By how much a selectable key wins at least, by the query found.", ".3g")
    ]
    largest_residual: Annotated[
        float | None, Column("largest residual", "How far weighted means are off at most.", ".3g", brief=False)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class Selection(CertifiedKeys, Result, kind="selection", checked_by="normscope.certificates.check_keys:check"):
    """Which keys can be selected, with a certificate for each."""

    @property
    def holds(self) -> Annotated[bool, NOT_IN_JSON]:
        """Whether every certificate is right, from the keys alone; rounding may decide only for a near tie.

        The checker imports nothing from the solver. The solver uses parts of the checker to drop what would not hold.
        """
        return self._holds

    @cached_property
    def _holds(self) -> bool:
        from normscope.certificates.check_keys import check

        return check(self)[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.keys.shape

    @property
    def channels(self) -> int:
        return int(self.keys.shape[-1])

    @property
    def biased(self) -> bool:
        return self.bias is not None

    @property
    def reachable(self) -> bool:
        return self.semi_axes is not None

    @property
    def counts(self) -> Annotated[tuple[Counts, ...], Table("Keys of {0.channels} channels")]:
        margins = self.margins[np.isfinite(self.margins)]
        found = Counts(
            keys=self.mask.size,
            selectable=len(self.query_keys),
            never_selected=len(self.weight_keys),
            near_ties=int(self.near_ties.sum()),
            open=int(self.open.sum()),
            least_margin=float(margins.min()) if len(margins) else None,
            largest_residual=float(self.residuals.max()) if len(self.residuals) else None,
        )
        return (found,)

    def __repr__(self) -> str:
        (counts,) = self.counts
        size = f"{counts.keys} keys of {self.channels} channels"
        if self.mask.ndim > 1:
            size += f" in {self.mask.size // self.mask.shape[-1]} sets"
        if self.reachable:
            size += ", reachable queries"
        parts = [f"{counts.selectable} selectable", f"{counts.never_selected} never selected"]
        parts += [f"{counts.near_ties} near ties"] if counts.near_ties else []
        parts += [f"{counts.open} open"] if counts.open else []
        return f"Selection({size}: {', '.join(parts)})"
