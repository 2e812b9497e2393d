"""Stored tensors by name: small ones whole, and the last of them kept; large matrices some rows at a time.

Rows of a tensor as numpy arrays, in the same way: the tensor may be a mapped file.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from normscope.checks import as_floats
from normscope.models.weights import Weights

LARGEST_WHOLE = 2**26  # numbers of a matrix that is read as a whole: 256 MB
BLOCK = 2**22  # numbers that are looked at together: 32 MB in double precision


class Recent:
    """Stored tensors. The last ones read are kept, as a layer is looked at several times in a row; large matrices are
    read some rows at a time.
    """

    def __init__(self, weights: Weights, most: int = 2**30) -> None:
        self._weights, self._most = weights, most
        self._kept: dict[str, Any] = {}

    def __call__(self, name: str) -> Any:
        shape = self._weights.shape(name)
        if len(shape) == 2 and math.prod(shape) > LARGEST_WHOLE:
            return Sliced(self._weights, name)
        found = self._kept.pop(name, None)
        if found is None:
            found = self._weights(name).detach()
            while self._kept and found.nbytes + sum(each.nbytes for each in self._kept.values()) > self._most:
                self._kept.pop(next(iter(self._kept)))
        self._kept[name] = found
        return found


class Sliced:
    """A stored matrix of which rows are read when they are asked for."""

    def __init__(self, weights: Weights, name: str) -> None:
        self._weights, self._name = weights, name
        self.shape = weights.shape(name)

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def T(self) -> Tensor:  # noqa: N802  (as in torch)
        return self._weights(self._name).detach().T

    def detach(self) -> Tensor:
        return self._weights(self._name).detach()

    def __getitem__(self, rows: Any) -> Tensor:
        if isinstance(rows, int):
            return self._weights.rows(self._name, slice(rows, rows + 1)).detach()[0]
        if isinstance(rows, slice) and rows.step is None:
            return self._weights.rows(self._name, rows).detach()
        return self.detach()[rows]


class TensorRows:
    """The rows of a matrix as numpy arrays, converted when they are asked for; the tensor stays as it is.

    Rows are float32, which holds half precision exactly, or float64 if float32 would lose digits.

    >>> rows = TensorRows(torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16))
    >>> rows.dtype, rows[np.array([1])]
    (dtype('float32'), array([[3., 4.]], dtype=float32))
    """

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix.detach()
        wide = matrix.dtype == torch.float64 or not matrix.is_floating_point()
        self._as = torch.float64 if wide else torch.float32
        self.shape: tuple[int, ...] = tuple(matrix.shape)
        self.dtype: np.dtype[Any] = np.dtype(np.float64 if wide else np.float32)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> NDArray[np.floating]:
        if isinstance(which, np.ndarray):
            which = torch.from_numpy(which).to(self._matrix.device)
        rows: NDArray[np.floating] = self._matrix[which].to("cpu", self._as).contiguous().numpy()
        return rows

    def blocks(self) -> Iterator[NDArray[np.floating]]:
        """All rows, some at a time."""
        step = max(1, BLOCK // max(1, self.shape[1]))
        return (self[start : start + step] for start in range(0, len(self), step))

    def require_finite(self, name: str) -> None:
        """Refuse NaN and infinite values."""
        for block in self.blocks():
            as_floats(block, name)
