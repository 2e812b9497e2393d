"""What verifiers do with a norm, step by step: interval arithmetic and linear relaxation, for norms of one group.

Both bound w·y for inputs a with |a − x| ≤ r, for all rows w of a matrix at once. z = Πa, δ bounds |zₙ − z₀ₙ|.

Intervals   from the box |a − x|_∞ ≤ r: zₙ, zₙ², their mean, 1/√(· + ε), the product with zₙ, gain and bias, the reader.

Linear      (as CROWN [1] propagates backwards, with the planes of [2] for products) w·y = Σ kₙzₙs + w·b, k = Gw:
            zₙs    between the mean of the two lower and the mean of the two upper McCormick planes over its box,
            s      between the tangent at v₀ and the chord of 1/√(v + ε) over the range of v = mean(z²),
            zₙ²    between its tangent at z₀ₙ and its chord,
            and the linear function of a that is left is bounded over the ball itself. Slopes agree to first order with
            the norm's derivative at x, so that these bounds are tight to first order in r. The ranges of zₙ and v come
            from the ball: δ = r|Πeₙ|; v from intervals or from the linear bounds of zₙ², whichever is tighter.

[1] Zhang et al., Efficient Neural Network Robustness Certification with General Activation Functions, NeurIPS 2018.
[2] Shi et al., Robustness Verification for Transformers, ICLR 2020.
"""

import numpy as np

from normscope.checks import Floats
from normscope.norm import Norm


def interval_bounds(norm: Norm, x: Floats, radius: float, readers: Floats) -> tuple[Floats, Floats]:
    """The lowest and the highest w·y by interval arithmetic."""
    z = norm.project(x)
    half = radius * (2 - 2 / norm.size if norm.projects else 1.0)  # Σ|Πₙₘ|·r
    low, high = z - half, z + half
    nearest = np.maximum(np.abs(z) - half, 0.0)
    largest = 1 / np.sqrt(np.mean(nearest**2) + norm.eps)
    smallest = 1 / np.sqrt(np.mean((np.abs(z) + half) ** 2) + norm.eps)
    low, high = np.minimum(low * smallest, low * largest), np.maximum(high * smallest, high * largest)
    middle, spread = norm.gain * (low + high) / 2 + norm.bias, np.abs(norm.gain) * (high - low) / 2
    center, reach = readers @ middle, np.abs(readers) @ spread
    return center - reach, center + reach


def linear_bounds(norm: Norm, x: Floats, radius: float, readers: Floats) -> tuple[Floats, Floats]:
    """The lowest and the highest w·y by linear relaxation, backwards to the ball."""
    z, size = norm.project(x), norm.size
    square = float(np.mean(z**2))
    length = float(np.sqrt(size * square))
    delta = radius * np.sqrt(1 - norm.projects / size)
    lows = np.mean(np.maximum(np.abs(z) - delta, 0.0) ** 2), square - 2 * radius * length / size
    highs = np.mean((np.abs(z) + delta) ** 2), square + 2 * radius * length / size + delta**2
    least, most = max(*lows, 0.0), min(highs)
    largest, smallest = 1 / np.sqrt(least + norm.eps), 1 / np.sqrt(most + norm.eps)
    middle, half = (largest + smallest) / 2, (largest - smallest) / 2
    tangent = 1 / np.sqrt(square + norm.eps)  # at v₀, which is between least and most
    tangent_slope = -0.5 * tangent**3
    chord_slope = (smallest - largest) / max(most - least, np.finfo(float).tiny)

    weights = readers * norm.gain  # k
    along, across = weights @ z, np.abs(weights).sum(axis=1) * (delta * half)
    lengths = np.einsum("mn,mn->m", weights, weights) - norm.projects * weights.sum(axis=1) ** 2 / size  # |Πk|²
    shift = readers @ norm.bias

    def highest(sign: float) -> Floats:
        """Of sign·w·y; the slope in z is sign·(middle·k + factor·2z₀/N)."""
        rising = sign * along > 0  # then s is bounded from above, by its chord, and v from below
        slope = np.where(rising, chord_slope, tangent_slope)
        at_start = np.where(rising, largest + chord_slope * (square - least), tangent)  # the bound of s where v = v₀
        factor = along * slope
        spill = np.where(rising, 0.0, np.abs(factor) * delta**2)  # chord of zₙ² over its value at z₀ₙ
        twist = 2 * factor / size
        steep = middle**2 * lengths + 2 * middle * twist * along + twist**2 * length**2
        value = sign * (along * at_start + shift) + across + spill
        bound: Floats = value + radius * np.sqrt(np.maximum(steep, 0.0))
        return bound

    return -highest(-1.0), highest(1.0)
