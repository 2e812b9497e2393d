"""An input of the unit ball for which a weighted sum of neurons is large: ascent from many starts at once.

    f(u) = Σ dⱼhⱼ(u)        x ← unit(x + step·(slope, without its part along x)), within a subspace
    the best ends           L-BFGS on the ball

Values and slopes are in float32 on the way; what is returned was computed in float64.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import orth
from scipy.optimize import minimize

from normscope.bounds.activations import ACTIVATIONS, Activation
from normscope.bounds.neurons import weights
from normscope.bounds.tight_bound import Tight, unit_columns
from normscope.certificates.neuron_certificates import Neurons
from normscope.checks import Floats, as_floats

CLIMB, POLISHED = 40, 3  # steps of ascent, and how many ends are polished


def witness(
    neurons: Neurons, d: Any, found: Tight | None = None, starts: int = 24, seed: int = 0, project: Any = None
) -> tuple[Floats, float]:
    """An input u of the ball for which the sum is as large as ascent could make it, and the sum there.

    Parameters
    ----------
    neurons
        F of them.
    d
        (F,): the weights of the sum.
    found
        What `tight` returned for them: its directions are good starts.
    starts
        How many inputs ascend at once.
    seed
        Of the random ones.
    project
        A function that takes columns (n, k) to the subspace in which u must be. Rows of a LayerNorm's readers are
        centred, so the sum does not change if u is, and nothing is needed: the returned u, centred, does the same.

    Returns
    -------
    tuple[Floats, float]
        u with |u| ≤ 1, and f(u) in float64.

    >>> u, value = witness(Neurons("relu", [[3.0, 4.0]]), [2.0])
    >>> u.round(2), round(value, 6)
    (array([0.6, 0.8]), 10.0)
    """
    row = weights(neurons, as_floats(d, "d")[None])[0]
    net, n = _Net.of(neurons, row, np.float64), neurons.size
    u = np.zeros(n)
    value = float(_values(net, u[:, None])[0][0])
    if not row.any():
        return u, value
    rng = np.random.default_rng(seed)
    place: Callable[[Floats], Floats] = (lambda x: x) if project is None else project
    known = np.zeros((n, 0)) if found is None else found.directions
    pull = _values(net, u[:, None])[1]  # the slope at 0
    space = orth(unit_columns(place(np.column_stack([pull, known, rng.normal(size=(n, 8))]))), rcond=1e-9)
    first = unit_columns(place(np.column_stack([pull, known[:, : starts // 4]])))
    first = first[:, first.any(axis=0)]
    wild = space @ rng.normal(size=(space.shape[1], max(2, starts - 2 * first.shape[1])))
    rough = _Net.of(neurons.part(row != 0), row[row != 0], np.float32)  # values are in float64 again below
    inputs = _ascended(rough, space, unit_columns(np.column_stack([first, -first, wild])))
    for start in inputs.T:
        end = place(_polished(rough, start, place)[:, None])[:, 0]
        inside = np.linalg.norm(end) < 1 - 1e-6
        for candidate in (start, end if inside else unit_columns(end[:, None])[:, 0]):
            reached = float(_values(net, candidate[:, None])[0][0])
            if reached > value:
                u, value = candidate, reached
    return u, value


class _Net(NamedTuple):
    """Neurons and weights in one data type."""

    act: Activation
    a: NDArray[Any]
    alpha: NDArray[Any]
    b: NDArray[Any] | None
    beta: NDArray[Any] | None
    d: NDArray[Any]

    @classmethod
    def of(cls, neurons: Neurons, d: Floats, dtype: Any) -> "_Net":
        """In float32 only if nothing leaves its range."""
        parts = [neurons.a, neurons.a_offset, neurons.b, neurons.b_offset, d]
        sizes = [float(np.abs(part).max(initial=0.0)) for part in parts if part is not None]
        dtype = dtype if max(sizes) < 1e10 and min(size for size in sizes if size or not any(sizes)) > 1e-10 else float
        a, alpha, b, beta, weight = (None if part is None else part.astype(dtype) for part in parts)
        assert a is not None and alpha is not None and weight is not None  # noqa: PT018
        return cls(ACTIVATIONS[neurons.activation], a, alpha, b, beta, weight)

    def within(self, basis: Floats) -> "_Net":
        """The same for inputs basis·x."""
        basis = basis.astype(self.a.dtype)
        return self._replace(a=self.a @ basis, b=None if self.b is None else self.b @ basis)


def _values(net: _Net, inputs: NDArray[Any]) -> tuple[Floats, Floats]:
    """f and its gradient at columns (n, k): (k,) and (n, k)."""
    inputs, weight = inputs.astype(net.a.dtype), net.d[:, None]
    t = net.a @ inputs + net.alpha[:, None]
    value, slope = net.act.value(t).astype(t.dtype), net.act.slope(t).astype(t.dtype)
    if net.b is None or net.beta is None:
        return np.sum(weight * value, axis=0, dtype=float), (net.a.T @ (weight * slope)).astype(float)
    v = net.b @ inputs + net.beta[:, None]
    gradient = net.a.T @ (weight * slope * v) + net.b.T @ (weight * value)
    return np.sum(weight * value * v, axis=0, dtype=float), gradient.astype(float)


def _ascended(net: _Net, basis: Floats, inputs: Floats) -> Floats:
    """The best ends of ascent on the sphere from all columns at once, within a subspace.

    Each column has a step of its own, which grows while it helps.
    """
    small, x = net.within(basis), basis.T @ inputs
    value, slope = _values(small, x)
    step = np.full(x.shape[1], 0.5)
    for _ in range(CLIMB):
        along = unit_columns(slope - x * np.sum(slope * x, axis=0))
        moved = unit_columns(x + step * along)
        new, new_slope = _values(small, moved)
        better = new > value
        x, slope = np.where(better, moved, x), np.where(better, new_slope, slope)
        value, step = np.where(better, new, value), np.where(better, step * 1.5, step / 2)
    return unit_columns(basis @ x[:, np.argsort(-value)[:POLISHED]])


def _polished(net: _Net, start: Floats, place: Callable[[Floats], Floats]) -> Floats:
    """L-BFGS on the ball: of x, or of x/|x| outside, with slopes that were moved to the subspace."""

    def fall(x: Floats) -> tuple[float, Floats]:
        size = max(1.0, float(np.linalg.norm(x)))
        value, slope = _values(net, (x / size)[:, None])
        slope = place(slope)[:, 0] / scale
        if size > 1:
            slope = (slope - x * (x @ slope) / size**2) / size
        return -float(value[0]) / scale, -slope

    first, slopes = _values(net, start[:, None])
    floor = 1e-12 * float(np.abs(net.d) @ np.abs(net.a).max(axis=1).astype(float))
    scale = max(abs(float(first[0])), float(np.linalg.norm(slopes)), floor, 1e-300)
    found = np.asarray(minimize(fall, start, jac=True, method="L-BFGS-B", options={"maxiter": 40, "ftol": 1e-13}).x)
    return found if np.isfinite(found).all() else start
