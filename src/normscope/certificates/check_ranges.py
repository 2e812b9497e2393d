"""Check certified ranges from their certificates and from the tensors of the model, read again, without the search.

    linear    output ≤ β + Σ over groups |A of the group|/√groups    closed form, for every channel of the layer
    neurons   factor·Σ wⱼ·act(tⱼ)·vⱼ + shift ≤ bound                 by multipliers (`check_neurons`), for one channel
    witness   the same formula for the stored input of the norm      must give what was reached
    model     the same for other inputs, by the model's operations   must give what the formula gives

The last line is no proof, but it ties the formula to the model: which matrix a layer has, which norm it reads, which
activation it uses. Every row of a result must agree with its arrays and with what its certificates prove. Bounds
without a certificate, and what was seen on a text, are not computed again, and the reason says how many there are.

Proofs are in real arithmetic, for the numbers that are stored. Rows are formed in float64: the error of A and β, a few
last digits of W·G and W·b, is far below what `check_neurons` leaves for rounding, and closed forms are compared up to
the same share of their terms.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from normscope.certificates import check_neurons
from normscope.certificates.neuron_certificates import NeuronCertificate
from normscope.certificates.range_certificates import RangeCertificate
from normscope.certificates.range_formulas import UNIT, Formulas, ModelRead, finite_matrix, finite_vector
from normscope.checks import Floats, quoted
from normscope.errors import InputError
from normscope.norm import Norm
from normscope.progress import Progress, silent

SAME = 1e-6  # relative: what is reached, in two ways
ROUNDED = 1e-12  # relative: a bound after the few operations between a certificate and a row
INPUTS = 2  # other inputs for which formula and model are compared
LARGEST = {
    "float16": 65504.0,
    "bfloat16": 3.3895313892515355e38,
    "float8_e4m3": 448.0,
    "float32": 3.4028234663852886e38,
}


def check(result: Any, progress: Progress = silent, against: ModelRead | None = None) -> tuple[bool, str]:
    """Whether every certificate proves its bound, and the rows of a result agree with them, and why.

    Parameters
    ----------
    result
        A `LayerRanges`, returned by `normscope.ranges` or loaded from a file.
    progress
        See `normscope.progress`.
    against
        The model, read again: a file has multipliers, and no weights. `normscope.verify` gives it.

    Returns
    -------
    tuple of bool and str
        Whether it holds, and what it proves, or the first error.
    """
    if against is None:
        raise InputError("ranges can only be checked against the tensors of the model: use normscope.verify")
    found = _Check(result, against)
    fault = next(found.faults(progress), None)
    return (False, fault) if fault is not None else (True, found.in_words())


class _Check(Formulas):
    """One pass over a result."""

    def __init__(self, result: Any, model: ModelRead) -> None:
        super().__init__(model)
        self.result = result
        self.covered = self.not_run = 0

    def faults(self, progress: Progress) -> Iterator[str]:
        """Errors, most basic first; only the first is meaningful."""
        for name, value in self.model.says.items():
            if getattr(self.result, name) != value:
                yield f"{name} must be {quoted(value)}, got {quoted(getattr(self.result, name))}"
        yield from self._limit_faults()
        for row in (*self.result.layers, *self.result.tensors, *self.result.others):
            for fault in _refused(_row_faults(row, self.result.limit)):
                yield f"{quoted(row.layer)} ({row.what}): {fault}"
        for certificate in progress(self.result.certificates, "certificates"):
            for fault in _refused(self._certificate_faults(certificate)):
                yield f"the certificate of {quoted(certificate.layer)}, channel {certificate.channel}: {fault}"
        for row in self.result.layers:
            for fault in _refused(self._layer_faults(row)):
                yield f"{quoted(row.layer)}: {fault}"

    def in_words(self) -> str:
        certificates = self.result.certificates
        exact = sum(each.kind == "exact" for each in certificates)
        rows = [
            row for row in (*self.result.layers, *self.result.tensors, *self.result.others) if row.bound is not None
        ]
        said = f"{len(certificates) - exact} tight bounds of single outputs proved again, and the ranges of {exact} "
        said += f"layers that read a norm; of {len(rows)} rows {len(rows) - self.covered} have no certificate, "
        said += "nor does what is counted for the limit"
        if self.model.unchecked is not None:
            said += f"; that layers read these norms is not checked: {self.model.unchecked}"
        elif self.not_run:
            said += f"; for {self.not_run} of them the operations between norm and layer could not be run"
        return said

    # ---- certificates ----------------------------------------------------------------------------------------

    def _certificate_faults(self, certificate: RangeCertificate) -> Iterator[str | None]:
        """Why a certificate proves nothing."""
        numbers = certificate.bound, certificate.reached, certificate.shift, certificate.factor
        if not np.isfinite(numbers).all():
            yield "bound, reached, shift and factor must be finite"
        norm = self.model.norm(certificate.norm)
        x = finite_vector(certificate.input, norm.size, "input")
        yield self._connection_fault(certificate)
        yield (self._exact_fault if certificate.kind == "exact" else self._neurons_fault)(certificate, norm)
        found = self.formula(certificate, norm, certificate.channel, x)
        value = certificate.sign * found.value
        if not abs(value - certificate.reached) <= SAME * abs(value) + ROUNDED * found.size:
            yield f"its input reaches {value:.6g}, the file says {certificate.reached:.6g}"
        if certificate.reached > certificate.bound + ROUNDED * (abs(certificate.bound) + found.size):
            yield f"{certificate.reached:.9g} is reached, which is above the bound {certificate.bound:.9g}"
        if certificate.kind == "exact" and certificate.reached < certificate.bound - SAME * found.size:
            yield f"the bound {certificate.bound:.9g} is called exact, and {certificate.reached:.9g} is reached"
        yield self._model_fault(certificate, norm, x)

    def _connection_fault(self, certificate: RangeCertificate) -> str | None:
        """Whether the named tensors are those of the named layers."""
        matrix = certificate.matrix
        if matrix.expert is None and all(row.layer != certificate.layer for row in self.result.layers):
            return "there is no row for this layer"
        if self.model.unchecked is not None:
            return None
        layers = self.model.layers()
        if matrix.expert is None and (matrix.weight, matrix.transposed, certificate.bias) not in layers.get(
            certificate.layer, ()
        ):
            return f"{quoted(matrix.weight)} with the bias {quoted(certificate.bias)} is not the matrix of this layer"
        known = {each for found in layers.values() for each in found}
        for reader in (certificate.gate, certificate.up):
            if reader is not None and reader.matrix.expert is None:
                said = reader.matrix.weight, reader.matrix.transposed, reader.bias
                if said not in known:
                    return (
                        f"{quoted(reader.matrix.weight)} with the bias {quoted(reader.bias)} is no layer of the model"
                    )
        return None

    def _exact_fault(self, certificate: RangeCertificate, norm: Norm) -> str | None:
        """The largest value over the ball in closed form."""
        if certificate.activation is not None or certificate.gate is not None or certificate.up is not None:
            return "a layer that reads a norm has no neurons"
        if (certificate.factor, certificate.lam, certificate.s) != (1.0, 0.0, 0.0):
            return "the closed form has no factor and no multipliers"
        if certificate.first is not None or certificate.second is not None:
            return "the closed form has no multipliers"
        self.row_of(certificate, certificate.channel)
        self.stored_shift(certificate)
        middle, reach, doubt = (each[certificate.channel] for each in self.closed_form(certificate, norm))
        proved = certificate.sign * middle + reach
        if abs(certificate.bound - proved) > doubt:
            return f"the closed form gives {proved:.9g}, the bound says {certificate.bound:.9g}"
        return None

    def _neurons_fault(self, certificate: RangeCertificate, norm: Norm) -> str | None:
        """The largest value of a sum of neurons, by its multipliers."""
        shift = self.stored_shift(certificate)
        neurons, row = self.neurons_of(certificate, norm), self.row_of(certificate, certificate.channel)
        if row.shape != (neurons.count,):
            return f"the layer reads {len(row)} numbers, and there are {neurons.count} neurons"
        bound = certificate.bound - certificate.sign * shift
        # the bound was rounded up after the shift was added
        bound += 4 * UNIT * (abs(certificate.bound) + abs(shift))
        parts = certificate.division
        if (parts is not None) != (certificate.kind == "divided"):
            return "a divided bound has parts, and no other has"
        first, second = (
            finite_matrix(each, name) if parts is not None else finite_vector(each, None, name)
            for each, name in ((certificate.first, "first"), (certificate.second, "second"))
        )
        proof = NeuronCertificate(certificate.kind, bound, first, second, certificate.lam, certificate.s, parts)  # type: ignore[arg-type]
        holds, reason = check_neurons.check(neurons, certificate.sign * certificate.factor * row, proof)
        return None if holds else reason

    def _model_fault(self, certificate: RangeCertificate, norm: Norm, x: Floats) -> str | None:
        """Whether the model's own operations give what the formula gives."""
        if self.model.unchecked is not None or certificate.matrix.expert is not None:
            return None
        rng = np.random.default_rng(certificate.channel)
        size = float(np.sqrt(np.mean(x**2))) or 1.0
        for given in (x, *(size * rng.normal(size=(INPUTS, norm.size)))):
            found = self.formula(certificate, norm, certificate.channel, given)
            made = self.model.outputs(certificate.norm, certificate.layer, certificate.matrix.weight, given)
            if made is None:
                self.not_run += 1
                return None
            if not made:
                return f"the layer does not depend on {quoted(certificate.norm)}"
            values = np.array([each[certificate.channel] for each in made])
            if not (np.abs(values - found.value) <= SAME * abs(found.value) + 1e3 * SAME * SAME * found.size).any():
                return f"the model gives {values[0]:.9g} for an input for which the formula gives {found.value:.9g}"
        return None

    # ---- rows ------------------------------------------------------------------------------------------------

    def _layer_faults(self, row: Any) -> Iterator[str | None]:
        """Where the row of a layer contradicts the certificates of its outputs."""
        every = [each for each in self.result.certificates if each.layer == row.layer]
        mine = [each for each in every if each.norm == row.norm]
        norms = {other.norm for other in self.result.layers if other.layer == row.layer}
        if every and not mine and row.norm is not None and norms == {row.norm}:
            yield f"its certificates are about another norm than {quoted(row.norm)}"
        if any(each.matrix.expert is None and each.matrix.weight != row.weight for each in mine):
            yield f"its certificates are about another matrix than {quoted(row.weight)}"
        if row.grade == "tight" and not mine:
            yield "it is called tight, and has no certificate"
        if mine and row.bound is None:
            yield "it is called unbounded, and has certificates"
        if not mine:
            return
        lows = np.array([row.low]) if row.lows is None else row.lows
        highs = np.array([row.high]) if row.highs is None else row.highs
        exact = [each for each in mine if each.kind == "exact"]
        if exact:
            yield self._exact_row_fault(row, exact[0], lows, highs)
            return
        for each in mine:
            if each.channel >= len(lows):
                yield f"it has {len(lows)} channels, and a certificate of channel {each.channel}"
            entry = highs[each.channel] if each.sign > 0 else -lows[each.channel]
            if entry < each.bound - ROUNDED * (abs(each.bound) + abs(each.shift)):
                yield f"the certificate of channel {each.channel} proves {each.bound:.9g}, the file says {entry:.9g}"
        if row.grade == "tight":
            yield self._tight_row_fault(row, mine)

    def _exact_row_fault(self, row: Any, certificate: RangeCertificate, lows: Floats, highs: Floats) -> str | None:
        if row.grade != "exact":
            return f"it reads a norm, so that its range is exact, and is called {row.grade}"
        norm = self.model.norm(certificate.norm)
        middle, reach, doubt = self.closed_form(certificate, norm)
        if len(lows) != len(middle):
            return f"it must have {len(middle)} channels, got {len(lows)}"
        for said, found in ((lows, middle - reach), (highs, middle + reach)):
            wrong = np.flatnonzero(np.abs(said - found) > doubt)
            if len(wrong):
                at = int(wrong[0])
                return f"the closed form gives {found[at]:.9g} for channel {at}, the file says {said[at]:.9g}"
        self.covered += 1
        return self._witness_fault(row, certificate, norm)

    def _tight_row_fault(self, row: Any, mine: Sequence[RangeCertificate]) -> str | None:
        sign = 1 if row.bound > 0 else -1
        for each in mine:
            near = abs(each.bound - sign * row.bound) <= ROUNDED * (abs(each.bound) + abs(each.shift))
            if each.channel == row.channel and each.sign == sign and near:
                self.covered += 1
                return self._witness_fault(row, each, self.model.norm(each.norm))
        return f"it is called tight, and no certificate proves {row.bound:.9g} for channel {row.channel}"

    def _witness_fault(self, row: Any, certificate: RangeCertificate, norm: Norm) -> str | None:
        """Whether the input of a row reaches what the row says."""
        if row.reached is None:
            return None
        x = finite_vector(row.input, norm.size, "its input")
        found = self.formula(certificate, norm, row.channel, x)
        if abs(found.value - row.reached) > SAME * abs(found.value) + ROUNDED * found.size:
            return f"its input reaches {found.value:.6g}, the file says {row.reached:.6g}"
        if row.grade == "exact" and abs(row.reached - row.bound) > SAME * found.size:
            return f"the bound {row.bound:.9g} is called exact, and {row.reached:.9g} is reached"
        return None

    def _limit_faults(self) -> Iterator[str]:
        limit = self.result.limit
        try:
            largest = LARGEST[limit.type] if limit.type in LARGEST else float(limit.type.removeprefix("±"))
        except ValueError:
            largest = np.nan
        if not abs(limit.largest - largest) <= 1e-5 * largest or (limit.type in LARGEST and limit.largest != largest):
            yield f"the largest number of {quoted(limit.type)} is not {limit.largest!r}"
        counts = {
            "too close to call": limit.close,
            "not excluded": limit.open,
            "reached": limit.reached,
            "unbounded": limit.unbounded,
        }
        if min(limit.excluded, *counts.values()) < 0 or limit.excluded + sum(counts.values()) != limit.tensors:
            yield "the counts for the limit must add up to the number of tensors"
        rows = self.result.layers, self.result.tensors, self.result.others
        for verdict, count in counts.items():
            every = [sum(row.verdict == verdict for row in table) for table in rows]
            if not every[2] <= count <= sum(every):
                yield f"{count} tensors are counted as {verdict!r}, and {sum(every)} rows say so"


def _row_faults(row: Any, limit: Any) -> Iterator[str]:
    """Where the figures of a row contradict each other."""
    figures = row.low, row.high, row.channel, row.bound, row.grade
    if row.bound is None or row.low is None:
        rest = (*figures, row.lows, row.highs, row.reached, row.input)
        if any(each is not None for each in rest) or row.why is None or row.verdict != "unbounded":
            yield "what has no bound must be called unbounded, and nothing else"
        return
    if any(each is None for each in figures) or row.why is not None or row.verdict == "unbounded":
        yield "what has a bound must have all its figures"
    if row.channels < 1 or any((row.channels > 1) != (each is not None) for each in (row.lows, row.highs)):
        yield f"there must be bounds of each of {row.channels} channels"
    lows, highs = np.array([row.low]), np.array([row.high])
    if row.channels > 1:
        lows, highs = finite_vector(row.lows, row.channels, "lows"), finite_vector(row.highs, row.channels, "highs")
    farthest = np.maximum(np.abs(lows), np.abs(highs))
    if not np.isfinite([row.low, row.high, row.bound]).all() or (lows > highs).any():
        yield "bounds must be finite, and none below its lower one"
    if (row.low, row.high) != (lows.min(), highs.max()):
        yield f"lowest and highest must be {lows.min():.9g} and {highs.max():.9g}, got {row.low:.9g} and {row.high:.9g}"
    if not 0 <= row.channel < row.channels or abs(row.bound) != farthest.max():
        yield f"the largest bound is {farthest.max():.9g}, the file says {row.bound:.9g} at channel {row.channel}"
    if row.bound not in (lows[row.channel], highs[row.channel]):
        yield f"the bound of channel {row.channel} is not {row.bound:.9g}"
    room = ROUNDED + 1e-9 * farthest[row.channel]
    if row.reached is not None and not lows[row.channel] - room <= row.reached <= highs[row.channel] + room:
        yield f"{row.reached:.9g} is reached, which is outside of its bounds"
    if row.verdict == "excluded" and farthest.max() > limit.largest:
        yield f"its bound {row.bound:.6g} does not exclude {limit.largest:.6g}"
    if row.verdict == "reached" and not (row.reached is not None and abs(row.reached) > limit.largest):
        yield f"nothing shows that {limit.largest:.6g} is reached"


def _refused(faults: Iterator[str | None]) -> Iterator[str]:
    """The first fault, if there is one; that a number can't be used is one too."""
    try:
        fault = next((each for each in faults if each is not None), None)
    except InputError as error:
        fault = str(error)
    if fault is not None:
        yield fault
