"""Outputs of layers, and ranges in closed form, from the tensors that a certificate names.

    rows      A = scale·√N·W·G·Π, offsets β = scale·(W·b + bias)     of the layer that reads the norm, or of its neurons
    linear    A·u + β, at most β + Σ over groups |A of the group|/√groups
    neurons   factor·Σ wⱼ·act(tⱼ)·vⱼ + shift

u is the norm's output before gain and bias, over √N: its length is 1, or less.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.special import erfc, expit

from normscope.certificates.neuron_certificates import NAMES, Neurons
from normscope.certificates.range_certificates import Matrix, RangeCertificate, Reader
from normscope.checks import Floats, as_floats, quoted
from normscope.errors import InputError
from normscope.norm import Norm

UNIT = 2.0**-52
KEPT = 4  # rows of neurons that are kept: certificates of a layer follow each other
BLOCK = 2**22  # numbers held in float64 at a time


class ModelRead(Protocol):
    """A model read again: its tensors and norms, and how they are connected."""

    @property
    def says(self) -> Mapping[str, Any]:
        """Facts that a result states about it, by the names of its fields."""

    @property
    def unchecked(self) -> str | None:
        """Why its connections are not known; None if they are."""

    def tensor(self, name: str) -> Any:
        """A stored tensor; InputError if there is none."""

    def norm(self, name: str) -> Norm:
        """A norm by its name; InputError if it is not known to scale in the model."""

    def layers(self) -> Mapping[str, Sequence[tuple[str, bool, str | None]]]:
        """The linear layers: by name, the matrix, whether it is stored transposed, and the bias."""

    def outputs(self, norm: str, layer: str, weight: str, x: Floats) -> Sequence[Floats] | None:
        """What a layer writes if a norm reads x, by the model's own operations: each output that occurs.

        None where they can't be run.
        """


class Terms(NamedTuple):
    """A number, and the sum of the sizes of what was added up for it."""

    value: float
    size: float


class Formulas:
    """Outputs and ranges of layers, from the tensors that their certificates name."""

    def __init__(self, model: ModelRead) -> None:
        self.model = model
        self._neurons: OrderedDict[Any, Neurons] = OrderedDict()
        self._lengths: dict[Any, tuple[Floats, Floats, Floats]] = {}

    def formula(self, certificate: RangeCertificate, norm: Norm, channel: int, x: Floats) -> Terms:
        """The output of one channel for an input of the norm."""
        row, shift = self.row_of(certificate, channel), self._bias_at(certificate.bias, channel)
        if certificate.kind == "exact":
            y = norm(x)
            if y.shape != row.shape:
                raise InputError(f"the layer reads {len(row)} numbers, and the norm has {norm.size} channels")
            return Terms(float(row @ y) + shift, float(np.abs(row) @ np.abs(y)) + abs(shift))
        neurons = self.neurons_of(certificate, norm)
        value, size = output_of(neurons, certificate.factor * row, direction_of(norm, x))
        return Terms(value + shift, size + abs(shift))

    def closed_form(self, certificate: RangeCertificate, norm: Norm) -> tuple[Floats, Floats, Floats]:
        """Of every channel: the middle of its range, half the length, and what rounding can have changed."""
        key = certificate.norm, certificate.matrix, certificate.bias
        if key not in self._lengths:
            matrix = self._matrix(certificate.matrix)
            if matrix.shape[1] != norm.size:
                raise InputError(f"the layer reads {matrix.shape[1]} numbers, and the norm has {norm.size} channels")
            count = len(matrix)
            bias = (
                np.zeros(count) if certificate.bias is None else as_floats(self.model.tensor(certificate.bias), "bias")
            )
            if bias.shape != (count,):
                raise InputError(f"{quoted(certificate.bias)} is not the bias of this layer")
            middle, reach, size = bias.copy(), np.empty(count), np.abs(bias)
            step = max(1, BLOCK // norm.size)
            for start in range(0, count, step):
                rows = slice(start, start + step)
                weights = as_floats(matrix[rows], "weights")
                parts = _pulled(norm, weights).reshape(len(weights), norm.groups, -1)
                middle[rows] += weights @ norm.bias
                reach[rows] = np.sqrt(np.sum(parts**2, axis=2)).sum(axis=1) / np.sqrt(norm.groups)
                size[rows] += np.abs(weights) @ np.abs(norm.bias)
                size[rows] += np.sqrt(norm.size) * np.linalg.norm(weights * norm.gain, axis=1)
            self._lengths = {key: (middle, reach, 8 * (norm.size + 8) * UNIT * size)}  # of one layer at a time
        return self._lengths[key]

    def row_of(self, certificate: RangeCertificate, channel: int) -> Floats:
        matrix = self._matrix(certificate.matrix)
        if not 0 <= channel < len(matrix):
            raise InputError(f"the layer has {len(matrix)} channels")
        return as_floats(matrix[channel], "the layer's row")

    def stored_shift(self, certificate: RangeCertificate) -> float:
        """The stored bias, which must be the shift of the certificate."""
        stored = self._bias_at(certificate.bias, certificate.channel)
        if stored != certificate.shift:
            raise InputError(f"the shift must be the stored bias {stored!r}, got {certificate.shift!r}")
        return stored

    def neurons_of(self, certificate: RangeCertificate, norm: Norm) -> Neurons:
        """The neurons as functions of u, from their readers."""
        gate, up = certificate.gate, certificate.up
        if gate is None or certificate.activation not in NAMES:
            raise InputError(f"neurons must have a reader and one of the activations {', '.join(NAMES)}")
        key = certificate.norm, certificate.activation, _key(gate), _key(up)
        if key not in self._neurons:
            parts = [self._reader_rows(each, norm) for each in (gate, up) if each is not None]
            if len(parts) == 2 and parts[0][0].shape != parts[1][0].shape:
                raise InputError("gates and what they multiply must be as many")
            while len(self._neurons) >= KEPT:
                self._neurons.popitem(last=False)
            self._neurons[key] = Neurons(certificate.activation, *[each for part in parts for each in part])
        self._neurons.move_to_end(key)
        return self._neurons[key]

    def _reader_rows(self, reader: Reader, norm: Norm) -> tuple[Floats, Floats]:
        """A and β of some rows of a matrix that reads the norm."""
        matrix = self._matrix(reader.matrix)
        index, scale = reader.rows, finite_vector(reader.scale, None, "scale")
        if index is None or index.dtype != np.int64 or index.shape != scale.shape:
            raise InputError("a reader must have rows, and a scale for each of them")
        if len(index) and not (index.min() >= 0 and index.max() < len(matrix)):
            raise InputError(f"rows of {quoted(reader.matrix.weight)} must be below {len(matrix)}")
        if matrix.shape[1] != norm.size:
            raise InputError(
                f"{quoted(reader.matrix.weight)} reads {matrix.shape[1]} numbers, the norm has {norm.size}"
            )
        weights = as_floats(matrix[index.tolist()], "weights")
        bias = np.zeros(len(matrix)) if reader.bias is None else as_floats(self.model.tensor(reader.bias), "bias")
        if bias.shape != (len(matrix),):
            raise InputError(f"{quoted(reader.bias)} is not the bias of {quoted(reader.matrix.weight)}")
        return scale[:, None] * _pulled(norm, weights), scale * (weights @ norm.bias + bias[index])

    def _bias_at(self, name: str | None, channel: int) -> float:
        if name is None:
            return 0.0
        stored = self.model.tensor(name)
        if stored.ndim != 1 or not 0 <= channel < len(stored):
            raise InputError(f"{quoted(name)} is not the bias of this layer")
        return float(as_floats(stored[channel], "bias"))

    def _matrix(self, matrix: Matrix) -> Any:
        """A stored matrix as (outputs, inputs)."""
        stored = self.model.tensor(matrix.weight)
        if matrix.expert is not None:
            if stored.ndim != 3 or not 0 <= matrix.expert < len(stored):
                raise InputError(f"{quoted(matrix.weight)} has no expert {matrix.expert}")
            stored = stored[matrix.expert]
        if stored.ndim != 2:
            raise InputError(f"{quoted(matrix.weight)} must be a matrix, has shape {tuple(stored.shape)}")
        return stored.T if matrix.transposed else stored


def output_of(neurons: Neurons, d: Floats, u: Floats) -> Terms:
    """Σ dⱼhⱼ(u) in plain float64.

    >>> output_of(Neurons("relu", [[3.0, 4.0]]), np.array([2.0]), np.array([0.6, 0.8]))
    Terms(value=10.0, size=10.0)
    """
    hidden = VALUES[neurons.activation](neurons.a @ u + neurons.a_offset)
    if neurons.b is not None and neurons.b_offset is not None:
        hidden = hidden * (neurons.b @ u + neurons.b_offset)
    return Terms(float(d @ hidden), float(np.abs(d) @ np.abs(hidden)))


def direction_of(norm: Norm, x: Floats) -> Floats:
    """The u of the unit ball for which the norm gives b + √N·G·u."""
    found: Floats = norm.scale(norm.project(x)) / np.sqrt(norm.size)
    return found


def finite_vector(value: Any, size: int | None, name: str) -> Floats:
    """An array of a file as a vector of finite float64 numbers."""
    array = np.asarray(value)
    if array.dtype != np.float64 or array.ndim != 1 or (size is not None and len(array) != size):
        count = "" if size is None else f"{size} "
        raise InputError(f"{name} must be {count}float64 numbers, got {array.dtype} of shape {array.shape}")
    return as_floats(array, name)


def finite_matrix(value: Any, name: str) -> Floats:
    """An array of a file as a matrix of finite float64 numbers."""
    array = np.asarray(value)
    if array.dtype != np.float64 or array.ndim != 2:
        raise InputError(f"{name} must be a matrix of float64 numbers, got {array.dtype} of shape {array.shape}")
    return as_floats(array, name)


def _pulled(norm: Norm, weights: Floats) -> Floats:
    """√N·W·G·Π: what weights of the norm's output are as weights of u."""
    pulled: Floats = weights * (np.sqrt(norm.size) * norm.gain)
    if norm.projects:
        parts = pulled.reshape(len(pulled), norm.groups, -1)
        pulled = (parts - parts.mean(axis=2, keepdims=True)).reshape(pulled.shape)
    return pulled


def _key(reader: Reader | None) -> Any:
    if reader is None:
        return None
    arrays = (None if each is None else each.tobytes() for each in (reader.rows, reader.scale))
    return (reader.matrix, reader.bias, *arrays)


VALUES: dict[str, Callable[[Floats], Floats]] = {
    "relu": lambda t: np.maximum(t, 0.0),
    "relu2": lambda t: np.maximum(t, 0.0) ** 2,
    "gelu": lambda t: t * erfc(-t / np.sqrt(2.0)) / 2,
    "gelu_tanh": lambda t: t * expit(np.sqrt(8 / np.pi) * (t + 0.044715 * t**3)),
    "silu": lambda t: t * expit(t),
    "quick_gelu": lambda t: t * expit(1.702 * t),
    "sigmoid": lambda t: np.asarray(expit(t)),
    "tanh": np.tanh,
    "identity": lambda t: t,
}
