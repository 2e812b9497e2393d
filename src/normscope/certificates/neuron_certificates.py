"""Neurons on the unit ball as plain arrays, and what proves how far a weighted sum of them can go.

    tⱼ = aⱼ·u + αⱼ,  vⱼ = bⱼ·u + βⱼ,  |u| ≤ 1
    hⱼ = act(tⱼ)  (plain)     or     hⱼ = act(tⱼ)·vⱼ  (gated)
    f(u) = Σ dⱼhⱼ(u)

Multipliers give each neuron a quadratic function above dⱼhⱼ; their sum is a quadratic form x'Xx of x = (u, 1). If
diag(λ, …, λ, s) − X has no negative eigenvalue and λ ≥ 0, then f(u) ≤ λ + s.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np

from normscope.checks import Floats, as_floats, quoted
from normscope.errors import InputError

NAMES = ("relu", "relu2", "gelu", "gelu_tanh", "silu", "quick_gelu", "sigmoid", "tanh", "identity")


@dataclass(frozen=True, eq=False)
class Neurons:
    """F neurons that read u in R^n: plain without b, gated with it. Offsets default to 0.

    Parameters
    ----------
    activation
        One of `NAMES`.
    a, a_offset
        (F, n) and (F,): what the activation reads. For a LayerNorm, rows that are centred already.
    b, b_offset
        (F, n) and (F,): what the activation's value is multiplied by, or None.

    >>> Neurons("silu", [[3.0, 4.0]], b=[[1.0, 0.0]])
    Neurons(silu, gated: 1 of 2 inputs)
    """

    activation: str
    a: Floats
    a_offset: Floats
    b: Floats | None
    b_offset: Floats | None

    def __init__(self, activation: str, a: Any, a_offset: Any = None, b: Any = None, b_offset: Any = None) -> None:
        if activation not in NAMES:
            raise InputError(f"activation must be one of {', '.join(NAMES)}, got {quoted(activation)}")
        rows = as_floats(a, "a")
        if rows.ndim != 2 or rows.shape[1] < 1:
            raise InputError(f"a must be a matrix with a row for each neuron, got shape {rows.shape}")
        if b is None and b_offset is not None:
            raise InputError("b_offset must be None for neurons without b")
        gate = None if b is None else as_floats(b, "b")
        if gate is not None and gate.shape != rows.shape:
            raise InputError(f"b must have the shape of a, {rows.shape}, got {gate.shape}")
        object.__setattr__(self, "activation", activation)
        object.__setattr__(self, "a", rows)
        object.__setattr__(self, "a_offset", _offsets(a_offset, "a_offset", len(rows)))
        object.__setattr__(self, "b", gate)
        object.__setattr__(self, "b_offset", None if gate is None else _offsets(b_offset, "b_offset", len(rows)))

    @property
    def count(self) -> int:
        """F."""
        return len(self.a)

    @property
    def size(self) -> int:
        """n."""
        return int(self.a.shape[1])

    def part(self, chosen: Any) -> "Neurons":
        """Some of the neurons, by mask or index."""
        b = None if self.b is None else self.b[chosen]
        b_offset = None if self.b_offset is None else self.b_offset[chosen]
        return Neurons(self.activation, self.a[chosen], self.a_offset[chosen], b, b_offset)

    def __repr__(self) -> str:
        kind = "plain" if self.b is None else "gated"
        return f"Neurons({self.activation}, {kind}: {self.count} of {self.size} inputs)"


HIDDEN = "not in the JSON"  # as in `results.describe`, which this room may not import


@dataclass(frozen=True, eq=False)
class Division:
    """Parts of the ball, L boxes low ≤ V·u ≤ high that cover it, and what proves a bound in each."""

    directions: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False)  # V (k, n), rows of length ≤ 1
    low: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False)  # (L, k)
    high: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False)  # (L, k)
    eta: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False)  # (L, k), of (Vu − low)(Vu − high) ≤ 0
    lam: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False)  # (L,)
    s: Annotated[Floats | None, HIDDEN] = field(default=None, repr=False)  # (L,)


@dataclass(frozen=True, eq=False)
class NeuronCertificate:
    """What proves that f(u) ≤ bound on the ball.

    kind "quadratic": multipliers, λ and s. Gated neurons have one multiplier μ > 0 each, with act(t) = c + σt:

        dσtv ≤ d·σ̄·tv + |d|·(σ₁ − σ₀)/4·(μt² + v²/μ),    σ₀ ≤ σ ≤ σ₁,  σ̄ = (σ₀ + σ₁)/2

    plain neurons two, p and q: sign(d)·act(t) ≤ pt² + qt + r, r the least number for which that holds.

    kind "divided", plain neurons only: multipliers, λ and s for each part of the ball. In a box low ≤ V·u ≤ high every
    (v·u − low)(v·u − high) is at most 0, so η ≥ 0 times it may be taken off the quadratic form.

    kind "intervals": the sum of the neurons' own suprema. For gated neurons they follow from the ranges of act(t) and
    v, or from tv ≤ (√μt + v/√μ)²/4.
    """

    kind: Literal["quadratic", "divided", "intervals"]
    bound: float
    first: Floats  # (F,): μ or p; (0,) for intervals of plain neurons; (L, F) for L parts
    second: Floats  # (F,): q of plain neurons; else (0,); (L, F) for L parts
    lam: float  # 0 for parts: each has its own
    s: float
    division: Division | None = None


@dataclass(frozen=True, eq=False)
class ScoreCertificate:
    """What proves that |q·R·k| ≤ bound, for q = A_q·u + α, k = A_k·w + β and a rotation R in the plane of each pair.

    With M = diag(μ), equal in the channels of a pair, and G = A·Aᵀ:

        λ_q ≥ λmax(M(G_q + αα'/τ_q²)M),  λ_k ≥ λmax(M⁻¹(G_k + ββ'/τ_k²)M⁻¹)
        |q·R·k| ≤ √(λ_q·λ_k·(1 + τ_q²)(1 + τ_k²))

    τ is 0 without offsets. Without pairs μ is empty, and λ_q ≥ λmax(Lᵀ(G_k + ββ'/τ_k²)L) with LLᵀ = G_q + αα'/τ_q²,
    λ_k = 1.
    """

    bound: float
    mu: Floats  # (d,), or (0,) where nothing rotates
    tau_q: float
    tau_k: float
    lam_q: float
    lam_k: float


def _offsets(value: Any, name: str, count: int) -> Floats:
    found = np.zeros(count) if value is None else as_floats(value, name)
    if found.shape != (count,):
        raise InputError(f"{name} must have one entry for each of {count} neurons, got shape {found.shape}")
    return found
