"""Orthogonal matrices that spread every channel over all others.

    hadamard    entries ±1/√n, with random signs in its rows; a Kronecker product with a random one where none is known
    random      drawn evenly from all orthogonal matrices
    from a file a matrix of one's own, .npy

A LayerNorm subtracts a mean, so a matrix for its stream has to keep the vector of ones: Q1 = 1.
"""

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from normscope.checks import Floats
from normscope.errors import InputError

NEARLY = 1e-4  # distance of Q·Qᵀ from 1, and of Q1 from 1, that counts as rounding in a file
SMALLEST = {1: [[1.0]], 2: [[1.0, 1.0], [1.0, -1.0]]}
KINDS = ("hadamard", "random")


class Rotation(NamedTuple):
    """An orthogonal matrix, and how it was made."""

    matrix: Floats
    words: str


def rotation(kind: str, size: int, seed: tuple[int, ...], *, keeps_ones: bool) -> Rotation | str:
    """A matrix of one of the kinds, or of a file; or why there is none.

    >>> made = rotation("hadamard", 12, (0,), keeps_ones=True)
    >>> bool(abs(made.matrix.sum(axis=1) - 1).max() < 1e-12)
    True
    """
    rng = np.random.default_rng(seed)
    said = f"seed {seed[0]}"
    if kind == "random":
        made = _keeping_ones(random_orthogonal(size - 1, rng)) if keeps_ones else random_orthogonal(size, rng)
        return Rotation(made, f"random{', keeps the mean' if keeps_ones else ''}, {said}")
    if kind == "hadamard":
        return _hadamard_keeping_ones(size, rng, said) if keeps_ones else _hadamard_rotation(size, rng, said)
    return _of_file(Path(kind), size, keeps_ones)


def _hadamard_rotation(size: int, rng: np.random.Generator, said: str) -> Rotation:
    order = next(k for k in range(size, 0, -1) if size % k == 0 and hadamard(k) is not None)
    table = hadamard(order)
    assert table is not None
    signs, rest = rng.choice([-1.0, 1.0], size), size // order
    made = table / math.sqrt(order)
    if rest == 1:
        return Rotation(signs[:, None] * made, f"Hadamard of order {size}, signs by {said}")
    made = _kronecker(made, random_orthogonal(rest, rng))
    words = f"no Hadamard matrix of order {size} is known: order {order} ⊗ random of order {rest}, {said}"
    return Rotation(signs[:, None] * made, words)


def _hadamard_keeping_ones(size: int, rng: np.random.Generator, said: str) -> Rotation:
    rows, columns = rng.permutation(size), rng.permutation(size)
    if size >= 4 and size & (size - 1) == 0 and size.bit_length() % 2:  # 4, 16, 64, …
        made: Floats = np.ones((1, 1))
        while len(made) < size:
            made = _kronecker(made, 0.5 - np.eye(4))
        return Rotation(
            made[rows][:, columns], f"Hadamard of order {size} with equal row sums, order of rows by {said}"
        )
    table = hadamard(size)
    if table is None:
        made = _keeping_ones(random_orthogonal(size - 1, rng))
        return Rotation(made, f"no Hadamard matrix of order {size} is known: random, keeps the mean, {said}")
    first = table * table[:, :1] / math.sqrt(size)  # the first column is constant
    signs = np.concatenate([[1.0], rng.choice([-1.0, 1.0], size - 1)])
    return Rotation((first * signs) @ first[rows].T, f"two Hadamard matrices of order {size}, keeps the mean, {said}")


@lru_cache(64)
def hadamard(order: int) -> Floats | None:
    """A matrix of ±1 whose rows are at right angles, from the constructions of Sylvester and Paley and their products.

    None where these give none.

    >>> table = hadamard(12)
    >>> bool((table @ table.T == 12 * np.eye(12)).all()), hadamard(6)
    (True, None)
    """
    if order in SMALLEST:
        return np.array(SMALLEST[order])
    if order % 4:
        return None
    if _is_prime(order - 1):
        return _paley(order - 1)
    half = order // 2 - 1
    if half % 4 == 1 and _is_prime(half):
        return _paley(half)
    for factor in (2, *range(4, math.isqrt(order) + 1, 4)):
        if order % factor == 0:
            one, other = hadamard(factor), hadamard(order // factor)
            if one is not None and other is not None:
                return _kronecker(one, other)
    return None


def _paley(prime: int) -> Floats:
    """Order p + 1 for p = 3 mod 4, order 2p + 2 for p = 1 mod 4, from the squares modulo p."""
    character = np.full(prime, -1.0)
    character[np.arange(1, prime) ** 2 % prime] = 1.0
    character[0] = 0.0
    numbers = np.arange(prime)
    symmetric = prime % 4 == 1
    core = np.ones((prime + 1, prime + 1))
    core[0, 0] = 0.0
    core[1:, 0] = 1.0 if symmetric else -1.0
    core[1:, 1:] = character[(numbers[:, None] - numbers) % prime]
    if not symmetric:
        return core + np.eye(prime + 1)
    plus, minus = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[1.0, -1.0], [-1.0, -1.0]])
    return _kronecker(core, plus) + _kronecker(np.eye(prime + 1), minus)


def _kronecker(one: Floats, other: Floats) -> Floats:
    made: Floats = np.kron(one, other).astype(np.float64)
    return made


def _is_prime(number: int) -> bool:
    return number > 2 and number % 2 == 1 and all(number % each for each in range(3, math.isqrt(number) + 1, 2))


def random_orthogonal(size: int, rng: np.random.Generator) -> Floats:
    """A matrix drawn evenly from all orthogonal ones."""
    if not size:
        return np.zeros((0, 0))
    from scipy.linalg import qr

    q, r = qr(rng.normal(size=(size, size)))
    made: Floats = q * np.where(np.diag(r) < 0, -1.0, 1.0)
    return made


def _keeping_ones(smaller: Floats) -> Floats:
    """A matrix that keeps the vector of ones, from one that acts on the vectors of mean zero."""
    size = len(smaller) + 1
    reflected = np.full(size, 1 / math.sqrt(size))
    reflected[0] -= 1.0
    reflection = np.eye(size)
    if size > 1:
        reflection -= 2 * np.outer(reflected, reflected) / (reflected @ reflected)  # exchanges e₁ and 1/√n
    inner = np.eye(size)
    inner[1:, 1:] = smaller
    made: Floats = reflection @ inner @ reflection
    return made


def _of_file(path: Path, size: int, keeps_ones: bool) -> Rotation | str:
    matrix = read_matrix(path)
    if len(matrix) != size:
        return f"{path} holds a matrix of order {len(matrix)}, and the stream has {size} channels"
    if keeps_ones:
        if float(np.abs(matrix.sum(axis=1) - 1).max()) > NEARLY:
            return f"a LayerNorm reads it, and {path} does not keep the vector of ones"
        matrix = matrix - matrix.mean(axis=0)
        matrix = matrix - matrix.mean(axis=1, keepdims=True) + 1 / size  # keeps it to the last digit
    left, _, right = np.linalg.svd(matrix)
    return Rotation(left @ right, f"the matrix of {path}")  # the nearest orthogonal one


def read_matrix(path: Path) -> Floats:
    """A matrix from a .npy file, which must be orthogonal but for rounding errors."""
    if path.suffix != ".npy":
        raise InputError(f"rotate must be {', '.join(KINDS)} or a .npy file, got {str(path)!r}")
    try:
        matrix = np.load(path, allow_pickle=False)
    except (ValueError, EOFError):  # what numpy says of them is about pickle
        raise InputError(f"{path} must be a .npy file with a matrix, as numpy.save writes it") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype.kind != "f" or not matrix.size:
        raise InputError(
            f"{path} must hold a square matrix of floating-point numbers, got {matrix.dtype} {matrix.shape}"
        )
    matrix = matrix.astype(np.float64)
    if not np.abs(matrix).max() <= 1 + NEARLY:  # infinite, no number, or too large for a product
        raise InputError(f"{path} must hold an orthogonal matrix, got entries beyond ±1, or that are no numbers")
    apart = float(np.abs(matrix @ matrix.T - np.eye(len(matrix))).max())
    if apart > NEARLY:
        raise InputError(f"{path} must hold an orthogonal matrix: Q·Qᵀ is {apart:.1e} away from 1")
    found: Floats = matrix
    return found
