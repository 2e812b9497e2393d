"""How much a norm bends: H = Σᵢ‖∂²yᵢ/∂x²‖²_F, which is zero at every x exactly where the norm is affine [1].

In a group of c channels let z be the input (projected, where the norm projects), ρ its root mean square, u = z/ρ, and
n = c − 1 where the norm projects, n = c where it does not. Channel i has

    Hᵢ = (gainᵢ·a/c)² · [2(n − uᵢ²) + (n − 1 + κ²)·uᵢ²]

    eps is         inside the root    outside it    a floor
    y/gain = z/r   r = √(ρ² + ε)      r = ρ + ε     r = max(ρ, ε)
    a              ρ/r³               1/r²          1/r² above the floor, 0 below
    κ              3ε/r²              2ε/r          0

and H is their sum. As uᵢ² ≤ n, no term is negative and nothing cancels. It comes from ∂²yᵢ/∂xⱼ∂xₖ, which is a multiple
of Pᵢⱼzₖ + Pᵢₖzⱼ + zᵢPⱼₖ plus a multiple of zᵢzⱼzₖ, with P the projection or the identity. Where all gains are 1 and eps
is inside the root, each group has

    H = 3ρ²/(c·r⁶) · [(n − 1) + 3(ε/r²)²]               (eps = 0: 3(n − 1)/(c·ρ⁴))

so a LayerNorm of d channels has 3(d − 2)/(dσ⁴), an RMSNorm 3(d − 1)/(dρ⁴): H falls with the fourth power of the size of
its inputs.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from normscope.checks import Floats, as_count, as_vectors, quoted
from normscope.errors import InputError
from normscope.norm import Norm

PLACES = ("inside", "outside", "floor")  # of eps; compiled code knows them by their numbers


class GroupFactors(NamedTuple):
    """H at each vector, and the factor by which it changes for other numbers of groups."""

    nonlinearity: Floats
    factors: dict[int, Floats]


@overload
def nonlinearity(norm: Norm, x: ArrayLike, groups: None = None, *, eps_place: str = "inside") -> Floats: ...


@overload
def nonlinearity(
    norm: Norm, x: ArrayLike, groups: int | Sequence[int] | Literal["all"], *, eps_place: str = "inside"
) -> GroupFactors: ...


def nonlinearity(
    norm: Norm,
    x: ArrayLike,
    groups: int | Sequence[int] | Literal["all"] | None = None,
    *,
    eps_place: str = "inside",
) -> Floats | GroupFactors:
    """H = Σᵢ‖∂²yᵢ/∂x²‖² of a norm, in closed form: gains, groups and eps included, no Hessian is formed.

    It is infinite where the norm has no second derivative: with eps = 0, where a group is constant (zero, for a norm
    that does not project) and not all its gains are 0. With eps > 0 a constant input has H = 0. Where H is outside the
    range of floats, the value is infinity or zero.

    Parameters
    ----------
    norm
        The norm.
    x
        Vectors, (..., N).
    groups
        Other numbers of groups to compare with, or "all" for all admissible ones. Everything else stays: gains,
        eps, flags. For a LayerNorm, this gives the factor of LN-G with the same weights.
    eps_place
        For modules that put eps elsewhere than `Norm` does: "outside" the root, or as a "floor".

    Returns
    -------
    ndarray or GroupFactors
        H at each vector, (...). With `groups`: H, and for each number of groups the factor by which it would change. A
        factor is NaN where the norm does not bend at x, or has no second derivative there. With gains of equal size and
        eps = 0, the factor of a LayerNorm of d channels is at least g(d − 2g)/(d − 2), and exactly that where all
        groups have the same mean and variance. Other gains, or eps > 0, can take it below.

    >>> norm = Norm(gain=[1, 1, 1], eps=0)
    >>> round(float(nonlinearity(norm, [-1, 0, 1])), 4)  # 3·(d − 2)/(d·σ⁴), σ² = 2/3
    2.25
    >>> nonlinearity(norm, [[-10, 0, 10], [5, 5, 5]]).round(6)
    array([0.000225,      inf])
    >>> norm = Norm(gain=[1] * 6, eps=0)
    >>> nonlinearity(norm, [[1, 2, 3, 1, 2, 3], [1, 2, 3, 8, 9, 7]], groups=2).factors[2].round(4)
    array([  1.  , 210.25])
    """
    found = _bending(norm, x, _numbers_of_groups(norm, groups), eps_place)
    return found.nonlinearity if groups is None else found


def admissible_groups(norm: Norm) -> tuple[int, ...]:
    """The other numbers of groups in which a norm bends: groups of 3 channels or more, of 2 if it does not project.

    (A projected group of two channels is a mere sign when eps = 0.) A norm that does not scale has none.

    >>> admissible_groups(Norm(gain=[1] * 12)), admissible_groups(Norm(gain=[1] * 12, project=False))
    ((2, 3, 4), (2, 3, 4, 6))
    """
    most = norm.size // (2 + norm.projects) if norm.scales else 0
    return tuple(groups for groups in range(1, most + 1) if norm.size % groups == 0 and groups != norm.groups)


def _numbers_of_groups(norm: Norm, groups: int | Sequence[int] | str | None) -> tuple[int, ...]:
    if groups is None:
        return ()
    admissible = admissible_groups(norm)
    if groups == "all":
        return admissible
    if isinstance(groups, str):
        raise InputError(f"groups must be numbers, or 'all', got {quoted(groups)}")
    asked = groups if isinstance(groups, Sequence | np.ndarray) else [groups]
    numbers = tuple(dict.fromkeys(as_count(each, "groups", 1) for each in asked))
    for each in numbers:
        if each not in admissible and each != norm.groups:
            possible = ", ".join(map(str, admissible)) or "none"
            raise InputError(f"groups must be admissible for the {norm.size} channels, got {each}: try {possible}")
    return numbers


def _bending(norm: Norm, x: ArrayLike, others: tuple[int, ...], eps_place: str) -> GroupFactors:
    from normscope.capacity.second_derivative_loop import bend_rows

    x = as_vectors(x, "x", norm.size)
    if eps_place not in PLACES:
        raise InputError(f"eps_place must be one of {', '.join(PLACES)}, got {eps_place!r}")
    shape = x.shape[:-1]
    if not norm.scales or not x.size:
        return GroupFactors(np.zeros(shape)[()], {groups: np.empty(shape) for groups in others})
    counts = np.array(sorted({norm.groups, *others}, reverse=True))
    places = {int(groups): place for place, groups in enumerate(counts)}
    rows = x.reshape(-1, norm.size)
    floor = np.sqrt(norm.eps) if eps_place == "inside" else norm.eps
    gain = np.max(np.abs(norm.gain)) or 1.0
    # Powers of two as units of x and eps, so that no square overflows, and none vanishes that matters.
    size = np.ldexp(1.0, np.frexp(np.maximum(np.max(np.abs(rows), axis=1), floor * 2.0**-400))[1] - 1)
    amounts, units = np.empty((len(counts), len(rows))), np.empty((2, len(rows)))
    bend_rows(
        rows / size[:, None],
        (norm.gain / gain) ** 2,
        norm.projects,
        floor / size,
        PLACES.index(eps_place),
        places[norm.groups],
        counts,
        *_joins(norm.size, counts),
        amounts,
        units,
    )
    now = amounts[places[norm.groups]]
    with np.errstate(all="ignore"):
        # Factors are multiplied one by one, the square last: an intermediate overflows only if H does.
        whole = (np.sqrt(now) * np.sqrt(units[0]) * units[1] / size * gain / size) ** 2
        known = (now > 0) & np.isfinite(now)
        factors = {
            groups: np.where(known, amounts[places[groups]] / now, np.nan).reshape(shape)[()] for groups in others
        }
    return GroupFactors(whole.reshape(shape)[()], factors)


def _joins(size: int, counts: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """How many parts a group joins for each count, and the number of the first part: the largest parts made so far."""
    made = {1: 0}  # channels of a part -> the number of the first such part, through all channels, then all groups
    joins, sources, number = [], [], size
    for count in counts.tolist():
        channels = size // count
        part = max(known for known in made if channels % known == 0)
        joins.append(channels // part)
        sources.append(made[part])
        made[channels] = number
        number += count
    return np.array(joins), np.array(sources)
