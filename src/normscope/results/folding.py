"""`normscope.fold`: what became of every norm of a model, and the proof that the folded model is the same function."""

import math
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from normscope.certificates.check_fold import LARGEST_DIFFERENCE, MORE_THAN_ROUNDING
from normscope.certificates.check_fold_files import Claims
from normscope.results.describe import NOT_IN_JSON, Column, Table
from normscope.results.result import Result, named
from normscope.results.rows import path_text, several

FOLDED: Final = "folded"
AFTER_LOOKUP: Final = "after look-up"
KEPT: Final = "kept"
NOTHING: Final = "nothing to fold"
RESCALED: Final = "rescaled"
ROTATED: Final = "rotated"
FITS: Final = "fits"
KEPT_STREAM: Final = "kept as it is"
SAVED_BY = "normscope.rewrite.saved_model:save_folding"


@dataclass(frozen=True)
class Decision:
    """What becomes of one part of a norm, and why."""

    what: Literal["folded", "after look-up", "kept", "nothing to fold"]
    reason: str

    def __format__(self, form: str) -> str:
        return format(self.what, form)


@dataclass(frozen=True)
class NormVerdict:
    """What becomes of a norm."""

    norm: Annotated[str, Column("norm", "The path of the module.", path_text)]
    kind: Annotated[str, Column("kind", "Which member of the family it is.")]
    centring: Annotated[
        Decision,
        Column(
            "mean",
            "Folded: its input has mean zero now; after look-up: it would have if rows of a table were centred when "
            "they are looked up, as --rms does.",
        ),
    ]
    affine: Annotated[Decision, Column("gain and bias", "Folded: its gain is 1 now, or still 0.")]

    @property
    def done(self) -> Annotated[str | None, Column("folded", "What the weights around it do for it now.", brief=False)]:
        parts = ["centred"] if self.centring.what == FOLDED else []
        parts += [self.affine.reason] if self.affine.what == FOLDED else []
        return "; ".join(parts) or None

    @property
    def not_done(self) -> Annotated[str | None, Column("kept", "What it still does, and why.", brief=False)]:
        if self.centring == self.affine:
            return self.centring.reason if self.centring.what == KEPT else None
        parts = [f"centring: {self.centring.reason}"] if self.centring.what in (KEPT, AFTER_LOOKUP) else []
        parts += [f"affine: {self.affine.reason}"] if self.affine.what == KEPT else []
        return "; ".join(parts) or None


@dataclass(frozen=True)
class StreamVerdict:
    """What becomes of a stream, or of another value that is rescaled or rotated: all that have to change together."""

    stream: Annotated[str, Column("stream", "The norms that read it, or where it is computed.")]
    what: Annotated[
        Literal["rescaled", "rotated", "fits", "kept as it is"],
        Column("became", "Fits: there is no need to rescale it."),
    ]
    how: Annotated[str, Column("how, or why not", "The matrix of a rotation, or what decides.")]
    bound: Annotated[
        float | None, Column("bound", "No entry was beyond this, whatever the input; none if it is not known.", ".6g")
    ] = None
    seen: Annotated[
        float | None,
        Column("largest seen", "The largest entry in all calls that were run, in float64.", ".6g"),
    ] = None
    exponent: Annotated[
        int | None, Column("power of two", "The factor: 2 to this power.", lambda power: f"2^{power}" if power else "1")
    ] = None

    @property
    def bound_now(self) -> Annotated[float | None, Column("bound now", "The bound after rescaling.", ".6g")]:
        return None if self.bound is None or self.exponent is None else math.ldexp(self.bound, self.exponent)


@dataclass(frozen=True)
class Reason:
    """Why a part of some norms was kept."""

    part: Annotated[Literal["mean", "gain and bias"], Column("part", "What was kept.")]
    norms: Annotated[tuple[str, ...], Column("of", "The norms of which it was kept.", several)]
    reason: Annotated[str, Column("because", "What stands against folding it.")]


@dataclass(frozen=True)
class Measurement:
    """A difference between two models."""

    what: Annotated[str, Column("what", "What is compared with the original, or runs against float64.")]
    difference: Annotated[
        float | None, Column("relative difference", "The largest, relative to the largest value of an output.", ".1e")
    ]


@dataclass(frozen=True)
class Tie:
    """A matrix that one module uses for look-ups and another for a product."""

    table: str  # the name of the tensor in the module that looks it up
    head: str  # and in the module that multiplies with it
    bytes: int


@dataclass(frozen=True)
class Certificate:
    """How far a folded model is from the original. Differences are relative to the largest value of an output.

    The first three compare models run in float64 throughout, so that only their weights differ.
    None where outputs are not finite, or can't be compared.
    """

    inputs: str  # description of the inputs of both
    dtype: str  # of the stored folded model
    rewrite_difference: float | None  # of the folded weights before rounding to this dtype
    written_difference: float | None  # of the folded weights as stored
    rounding_difference: float | None  # of the original, with its own weights rounded once more
    read_back: bool  # whether the stored weights are those of the written file, read from disk
    difference: float | None  # between folded and original model in this dtype
    original_error: float | None  # rounding error of the original
    folded_error: float | None  # and of the folded model, both against the original in float64
    argmax_agreement: float | None  # share of rows of the first output with the same argmax
    identities: int  # number checked
    broken: tuple[str, ...]  # the failed ones, in words

    @property
    def holds(self) -> bool:
        """Whether the rewrite is the same function, and rounding explains how far the stored weights are from it."""
        if self.rewrite_difference is None or self.written_difference is None or self.rounding_difference is None:
            return False
        runs = self.folded_error is not None or self.original_error is None
        explained = LARGEST_DIFFERENCE + MORE_THAN_ROUNDING * self.rounding_difference
        exact = self.rewrite_difference <= LARGEST_DIFFERENCE and not self.broken
        return exact and self.written_difference <= explained and runs


@dataclass(frozen=True)
class TensorCertificate:
    """What was compared where nothing was run: every tensor of the written files, with what it should be."""

    dtype: str  # of the stored folded model
    comparisons: int  # number made, those of settings included
    tensors: int  # number of tensors compared
    broken: tuple[str, ...]  # the failed ones, in words

    @property
    def holds(self) -> bool:
        return not self.broken


@dataclass(frozen=True)
class FixedSize:
    """An axis of a program's input that only takes the size of the example."""

    input: str
    axis: int
    size: int
    reason: str


@dataclass(frozen=True)
class Program:
    """The inputs of an exported program."""

    inputs: dict[str, str]  # by name: the shape, such as "any × 8", "any × up to 64"
    fixed: tuple[FixedSize, ...]  # batch and length axes of fixed size


@dataclass(frozen=True, repr=False, eq=False)
class Folding(
    Result,
    kind="folding",
    schema_version=5,
    remarked_by="normscope.rules.folding:remarks",
    checked_by="normscope.certificates.check_fold_files:check",
    reread_by="normscope.rewrite.folded_files:reread",
):
    """A folded copy of a model, what was done to each norm, and the certificate that both are the same function."""

    model: str
    norms: Annotated[
        tuple[NormVerdict, ...], Table("Norms of {0.model}", empty="The model has no norm that could be folded.")
    ]
    changed: tuple[str, ...]  # the tensors with new values
    certificate: Certificate | None  # None: nothing was run
    tied: tuple[Tie, ...]  # tables left unchanged because a head shares them
    untied: tuple[Tie, ...]  # tables whose head now has a copy
    streams: Annotated[tuple[StreamVerdict, ...], Table("Streams of {0.model}")] = ()  # of a rescale or a rotation
    gain_rounding: float | None = None  # of rescaled gains stored as 1 + w: the largest error of one, relative
    not_run: tuple[str, ...] = ()  # modules that the traced call does not use: not covered
    rms: bool = False  # whether norms were replaced by RMSNorm modules
    replaced: tuple[str, ...] = ()  # norms that are now RMSNorm modules
    centred_look_ups: tuple[str, ...] = ()  # modules whose output loses its mean
    unused_tensors: tuple[str, ...] = ()  # tensors of the checkpoint skipped: unused by the model
    program: Program | None = None  # inputs of the written program; None if none was written
    tensors: TensorCertificate | None = None  # of a fold from files to files, without a run
    claims: Claims | None = None  # what was done to tensors, for `verify`; None with rms, and of a plan
    module: Annotated[Any, NOT_IN_JSON] = field(default=None)  # the folded model; None in a loaded result
    call: Annotated[Any, NOT_IN_JSON] = field(default=None)  # a rewrite.saved_model.TracedCall: the certified call

    @property
    def holds(self) -> bool | None:
        """Whether the certificate holds: both are the same function. None if the fold was only planned."""
        found = self.tensors or self.certificate
        return None if found is None else found.holds

    @property
    def dtype(self) -> str:
        """The type in which the folded model is stored."""
        found = self.tensors or self.certificate
        return "float32" if found is None else found.dtype

    @property
    def reasons(self) -> Annotated[tuple[Reason, ...], Table("Kept")]:
        """The norms that keep a part, grouped by part and reason."""
        kept: dict[tuple[Literal["mean", "gain and bias"], str], list[str]] = {}
        for verdict in self.norms:
            if verdict.centring.what in (KEPT, AFTER_LOOKUP):
                kept.setdefault(("mean", verdict.centring.reason), []).append(verdict.norm)
            if verdict.affine.what == KEPT:
                kept.setdefault(("gain and bias", verdict.affine.reason), []).append(verdict.norm)
        return tuple(Reason(part, tuple(norms), reason) for (part, reason), norms in kept.items())

    @property
    def measurements(
        self,
    ) -> Annotated[tuple[Measurement, ...], Table("Folded against original, on {0.inputs_run}")]:
        """The differences of the certificate, in words; empty if the fold was only planned."""
        found = self.certificate
        if found is None:
            return ()
        stored = "written file, read back" if found.read_back else "folded weights as stored, not yet written"
        rows = {
            f"in float64: folded weights before rounding to {found.dtype}": found.rewrite_difference,
            f"in float64: {stored} ({found.dtype})": found.written_difference,
            "in float64, for scale: one more rounding of the original's weights": found.rounding_difference,
            f"both in {found.dtype}": found.difference,
            f"rounding error of the original in {found.dtype}": found.original_error,
            f"rounding error of the folded model in {found.dtype}": found.folded_error,
        }
        return tuple(Measurement(what, difference) for what, difference in rows.items())

    @cached_property
    def inputs_run(self) -> str:
        """Description of the inputs of both models."""
        return "no inputs" if self.certificate is None else self.certificate.inputs

    @cached_property
    def folded(self) -> dict[str, str]:
        """By the name of a norm: what was folded."""
        return {verdict.norm: verdict.done for verdict in self.norms if verdict.done is not None}

    @cached_property
    def kept(self) -> dict[str, str]:
        """By the name of a norm: what was not folded, and why."""
        return {verdict.norm: verdict.not_done for verdict in self.norms if verdict.not_done is not None}

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the folded model to a new folder, with folding.json beside its weights, as `normscope fold` does.

        Parameters
        ----------
        path
            The folder; it must not exist, even with `force`.

        Raises
        ------
        NotCertifiedError
            If the certificate of the model, or of the file read back from disk, does not hold; nothing is written.
        """
        named(SAVED_BY)(self, path)

    def __repr__(self) -> str:
        centred = sum(verdict.centring.what == FOLDED for verdict in self.norms)
        affine = sum(verdict.affine.what == FOLDED for verdict in self.norms)
        if self.tensors is not None:
            return (
                f"Folding({self.model}: of {len(self.norms)} norms {centred} centred, {affine} with gain 1; "
                f"{self.tensors.tensors} tensors {'certified' if self.holds else 'NOT as they should be'}, not run)"
            )
        if self.certificate is None:
            return (
                f"Folding({self.model}: of {len(self.norms)} norms {centred} can be centred, {affine} can lose their "
                "gain; planned only)"
            )
        rewrite, written = (
            "not comparable" if row.difference is None else f"{row.difference:.1e}" for row in self.measurements[:2]
        )
        return (
            f"Folding({self.model}: of {len(self.norms)} norms {centred} centred, {affine} with gain 1; "
            f"{'certified' if self.holds else 'NOT the same function'}, "
            f"in float64 {rewrite} before rounding, {written} as stored in {self.certificate.dtype})"
        )
