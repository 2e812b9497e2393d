"""Stored tensors by name: small ones whole, and the last of them kept; large matrices some rows at a time."""

import math
from typing import Any

from torch import Tensor

from normscope.models.weights import Weights

LARGEST_WHOLE = 2**26  # numbers of a matrix that is read as a whole: 256 MB


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
