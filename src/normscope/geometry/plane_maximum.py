"""How far the scale step can go in one direction from inputs in a ball: a problem in the plane, with one bisection.

    max  v·z / √(|z|² + e)   over   |z − z₀| ≤ r,      |v| = 1,  ρ = |z₀|,  φ the angle between z₀ and v

|z| and z·z₀ decide what is allowed, and for given ones the best z lies in the plane of z₀ and v, on the side of v. The
gradient has no zero inside, so z = z₀ + r(cos ψ, sin ψ) with 0 ≤ ψ ≤ π, and along this arc the derivative has the sign
of

    D(ψ) = (r + ρ cos ψ)(ρ sin φ + r sin(φ − ψ)) + e sin(φ − ψ),     or with τ = tan(ψ/2), times (1 + τ²)²,
    q(τ) = ((ρ+r)² + e) sin φ − 2(r(r+ρ) + e) cos φ · τ − 2(r(r−ρ) + e) cos φ · τ³ − ((ρ−r)² + e) sin φ · τ⁴

**q changes its sign once, from + to −**, so bisection finds the maximum and no other stationary point:

- cos φ ≤ 0, or r(r−ρ) + e ≥ 0: the coefficients of q change their signs once (Descartes).
- cos φ > 0 and r < ρ: up to the tangent from the origin, τ² = (ρ+r)/(ρ−r), the objective is positive. Where it is
  positive it is quasi-concave, since {v·z ≥ s·√(|z|² + e)} is convex for s > 0: one maximum. Beyond the tangent, the
  same directions come again with shorter z.

With e = 0 only directions count: the maximum is cos(max(0, φ − arcsin(r/ρ))), or 1 if r > ρ.
"""

from typing import NamedTuple

import numpy as np

from normscope.checks import Floats

LEAST, MOST = -40.0, 170.0  # log τ: below, ψ is as good as 0; above, 1/τ⁴ times a small number would vanish
STEPS = 62  # halvings, down to the last bit of log τ


class PlaneMaximum(NamedTuple):
    """The maximum, and the step of length r from z₀ that leads there: the cosine and sine of its angle ψ to z₀."""

    value: Floats
    cosine: Floats
    sine: Floats


def plane_maximum(
    cosine: Floats, sine: Floats, start: Floats, radius: Floats, floor: Floats, *, line: bool = False
) -> PlaneMaximum:
    """The maximum for every angle φ, given by its cosine and sine; ρ, r and e broadcast against them.

    line: there is only the line through the origin, z₀ and v, no plane, so ψ is 0 or π.

    >>> one = np.ones(1)
    >>> plane_maximum(0 * one, one, 2 * one, one, 0 * one).value.round(9)  # v ⊥ z₀: the cone of 30° about z₀
    array([0.5])
    """
    if line:  # the objective grows with z along v
        near = np.where(cosine >= 0, 1.0, 0.0)
        far = 1.0 - near
    else:
        tau = np.exp(_log_tangent(cosine, sine, start, radius, floor))
        near = 1 / np.sqrt(1 + tau**2)  # cos(ψ/2) and sin(ψ/2) keep what is left of z where it nearly cancels z₀
        far = tau * near
    along, across = start - radius + 2 * radius * near**2, 2 * radius * far * near
    root = np.sqrt(along**2 + across**2 + floor)
    value = (cosine * along + sine * across) / np.where(root == 0, 1.0, root)
    return PlaneMaximum(value, (near - far) * (near + far), 2 * far * near)


def _log_tangent(cosine: Floats, sine: Floats, start: Floats, radius: Floats, floor: Floats) -> Floats:
    """log τ where q changes its sign, by bisection: all angles at once."""
    q0 = ((start + radius) ** 2 + floor) * sine
    q1 = -2 * (radius * (radius + start) + floor) * cosine
    q3 = -2 * (radius * (radius - start) + floor) * cosine
    q4 = -((start - radius) ** 2 + floor) * sine
    ahead = radius < start
    tangent = (
        np.log((start + radius) / np.where(ahead, start - radius, 1.0), where=ahead, out=np.zeros(ahead.shape)) / 2
    )
    high = np.where((cosine > 0) & ahead, tangent, MOST)
    low = np.full_like(high, LEAST)
    for _ in range(STEPS):
        middle = (low + high) / 2
        tau = np.exp(middle)
        rising = (q0 / tau + q1) / tau + (q4 * tau + q3) * tau > 0  # q/τ²
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return (low + high) / 2
