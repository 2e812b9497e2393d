"""Result types of `fold`: what became of every norm, and what shows it. Plain values; nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.export import ExportedProgram

SCHEMA_VERSION = 2
LARGEST_DIFFERENCE = 1e-9  # in float64, relative to the largest value of an output
MORE_THAN_ROUNDING = 10  # times what rounding does to the original: stored weights may differ by that
FOLDED, AFTER_LOOKUP, KEPT, NOTHING = "folded", "after look-up", "kept", "nothing to fold"

Example = tuple[tuple[Any, ...], Mapping[str, Any]]  # arguments and keyword arguments of a call


@dataclass(frozen=True)
class Decision:
    """What becomes of one part of a norm, and why."""

    what: str  # "folded", "kept", "nothing to fold"; of centring also "after look-up"
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What becomes of a norm."""

    norm: str
    kind: str
    centring: Decision  # "after look-up": all writers are centred but tables, whose rows are to be when looked up
    affine: Decision


@dataclass(frozen=True)
class Tie:
    """A matrix that one module looks up and another multiplies with."""

    table: str  # the name of the tensor where it is looked up,
    head: str  # and where it is multiplied with
    bytes: int


@dataclass(frozen=True)
class Certificate:
    """How far a folded model is from the original. Differences are relative to the largest value of an output.

    The first three are between models that are run in float64 throughout, so that only their weights make a difference.
    """

    inputs: str  # what both were run on
    dtype: str  # in which the folded model is stored
    rewrite_difference: float  # of the folded weights before they are rounded to this dtype,
    written_difference: float  # of the folded weights as they are stored in it,
    rounding_difference: float  # beside what rounding does to the original: its own weights, rounded once more
    read_back: bool  # whether the stored weights are those of the written file, read from disk
    difference: float  # between folded and original model in this dtype,
    original_error: float  # beside what rounding does to the original
    folded_error: float  # and to the folded model, both measured against the original in float64
    argmax_agreement: float | None  # share of rows of the first output whose largest entry is in the same place
    identities: int  # that were checked
    broken: tuple[str, ...]  # of them, in words

    @property
    def holds(self) -> bool:
        """Whether the rewrite is the same function, and rounding explains how far the stored weights are from it."""
        runs = math.isfinite(self.folded_error) or not math.isfinite(self.original_error)
        explained = LARGEST_DIFFERENCE + MORE_THAN_ROUNDING * self.rounding_difference
        exact = self.rewrite_difference <= LARGEST_DIFFERENCE and not self.broken
        return exact and self.written_difference <= explained and runs

    def to_dict(self) -> dict[str, Any]:
        fields = {key: _finite(value) for key, value in asdict(self).items()}
        return {**fields, "broken": list(self.broken), "holds": self.holds}


@dataclass(frozen=True)
class FixedSize:
    """An axis of an input of a program that takes the size of the example only."""

    input: str
    axis: int
    size: int
    reason: str


@dataclass(frozen=True)
class Program:
    """What an exported program takes."""

    inputs: Mapping[str, str]  # by name: the shape, such as "any × 8", "any × up to 64"
    fixed: tuple[FixedSize, ...]  # axes of batch and length that are not any


@dataclass(frozen=True, eq=False)
class Float64:
    """A traced call of a folded model, and what the original answers to it in float64."""

    program: ExportedProgram
    outputs: list[Tensor]


@dataclass(frozen=True, repr=False, eq=False)
class Folding:
    """A folded copy of a model, what was done to each norm, and the certificate that both are the same function."""

    model: nn.Module = field(repr=False)
    name: str
    verdicts: tuple[Verdict, ...]
    changed: tuple[str, ...]  # the tensors that have other values
    certificate: Certificate
    tied: tuple[Tie, ...]  # tables that were left as they are because a head shares them
    untied: tuple[Tie, ...]  # those whose head has a copy now
    example: Example  # what it was traced and certified on
    float64: Float64 = field(repr=False)  # the same, to measure what is read back from disk
    not_run: tuple[str, ...] = ()  # modules that the traced call does not use: nothing is known about them
    rms: bool = False  # whether it has RMSNorm modules in place of its own
    replaced: tuple[str, ...] = ()  # norms that are RMSNorm modules now
    centred_look_ups: tuple[str, ...] = ()  # modules whose output loses its mean
    left_out: tuple[str, ...] = ()  # tensors of the checkpoint that are no part of the model
    program: Program | None = None  # what the written program takes; None where none was written

    @property
    def folded(self) -> dict[str, str]:
        """By the name of a norm: what was folded."""
        found = {verdict.norm: _done(verdict) for verdict in self.verdicts}
        return {name: words for name, words in found.items() if words}

    @property
    def kept(self) -> dict[str, str]:
        """By the name of a norm: what was not folded, and why."""
        found = {verdict.norm: _not_done(verdict) for verdict in self.verdicts}
        return {name: words for name, words in found.items() if words}

    def to_dict(self) -> dict[str, Any]:
        """Exactly what `normscope fold --json` prints and folding.json holds; schema: normscope/schemas/fold.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "model": self.name,
            "norms": [asdict(verdict) for verdict in self.verdicts],
            "changed": list(self.changed),
            "tied": [asdict(tie) for tie in self.tied],
            "untied": [asdict(tie) for tie in self.untied],
            "not_run": list(self.not_run),
            "rms": self.rms,
            "replaced": list(self.replaced),
            "centred_look_ups": list(self.centred_look_ups),
            "left_out": list(self.left_out),
            "program": None if self.program is None else asdict(self.program),
            "certificate": self.certificate.to_dict(),
        }

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        from normscope.report.tables.folding import folding_html

        return folding_html(self)

    def __repr__(self) -> str:
        centred = sum(verdict.centring.what == FOLDED for verdict in self.verdicts)
        affine = sum(verdict.affine.what == FOLDED for verdict in self.verdicts)
        return (
            f"Folding({self.name}: of {len(self.verdicts)} norms {centred} centred, {affine} with gain 1; "
            f"{'certified' if self.certificate.holds else 'NOT the same function'}, "
            f"in float64 {self.certificate.rewrite_difference:.1e} before rounding, "
            f"{self.certificate.written_difference:.1e} as stored in {self.certificate.dtype})"
        )


def _done(verdict: Verdict) -> str:
    parts = ["centred"] if verdict.centring.what == FOLDED else []
    if verdict.affine.what == FOLDED:
        parts.append(verdict.affine.reason)
    return "; ".join(parts)


def _not_done(verdict: Verdict) -> str:
    centring, affine = verdict.centring, verdict.affine
    if centring == affine:
        return centring.reason if centring.what == KEPT else ""
    parts = []
    if centring.what in (KEPT, AFTER_LOOKUP):
        parts.append(f"centring: {centring.reason}")
    if affine.what == KEPT:
        parts.append(f"affine: {affine.reason}")
    return "; ".join(parts)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
