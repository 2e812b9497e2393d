"""`LNNet`: a network of Linear maps and LayerNorms of width 3 that maps each sample to a class."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.capacity.plane_scaling import module_of
from normscope.certificates.check_networks import OPEN, Indices, exact_labels
from normscope.certificates.network_weights import WIDTH, ExactNetwork
from normscope.checks import Floats, as_vectors
from normscope.errors import InputError
from normscope.results.memorized import Memorized

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, repr=False)
class LNNet:
    """A plain torch module with the label of each of its scores; `memorize` makes it.

    >>> from normscope.capacity import memorize
    >>> memorize([[0.0], [1.0], [2.0]], ["a", "b", "a"]).network.predict([[1.0]])
    array(['b'], dtype='<U1')
    """

    module: "nn.Sequential"  # takes raw samples, ends in one score for each class
    classes: NDArray[Any]  # labels, in the order of the scores
    eps: float
    exact: ExactNetwork | None = None  # the network itself, where its weights have more bits than the module holds

    @property
    def depth(self) -> int:
        """The number of LayerNorms."""
        return (len(self.module) - 1) // 2

    @property
    def width(self) -> int:
        """Channels of every LayerNorm."""
        return WIDTH

    @property
    def channels(self) -> int:
        """Number of channels of a sample."""
        return int(self.module[0].in_features)  # type: ignore[arg-type]

    @property
    def dtype(self) -> str:
        """Data type of the module."""
        return str(next(self.module.parameters()).dtype).removeprefix("torch.")

    def predict(self, samples: Any) -> NDArray[Any]:
        """The class of each sample: by the torch module, or exactly where the module only rounds the network.

        Parameters
        ----------
        samples
            Numbers, with the channels in the last axis.

        Returns
        -------
        ndarray
            Labels, as passed to `memorize`.
        """
        given = as_vectors(samples, "samples", self.channels)
        rows = given.reshape(-1, given.shape[-1])
        winners = torch_winners(self.module, rows)[0] if self.exact is None else exact_labels(self.exact, rows).winners
        if (winners < 0).any():
            raise InputError(f"no score is highest for {np.count_nonzero(winners < 0)} of {len(rows)} samples")
        found: NDArray[Any] = self.classes[winners].reshape(given.shape[:-1])
        return found

    def __repr__(self) -> str:
        return f"LNNet(depth {self.depth}, width {self.width}, {len(self.classes)} classes)"


def network_of(result: Memorized) -> LNNet:
    """The network of a result."""
    return LNNet(module_of(result.layers, result.eps), result.label_array, result.eps, result.exact_network)


def torch_winners(module: "nn.Sequential", samples: Floats) -> tuple[Indices, Indices]:
    """Class indices that torch computes in the module's dtype: all samples in one batch, and one by one."""
    import torch

    inputs = torch.from_numpy(np.array(samples)).to(next(module.parameters()).dtype)
    with torch.inference_mode():
        batch = module(inputs)
        single = torch.cat([module(inputs[row : row + 1]) for row in range(len(inputs))])
    return _highest(batch.numpy()), _highest(single.numpy())


def _highest(scores: NDArray[Any]) -> Indices:
    return np.where(np.isfinite(scores).all(axis=1), scores.argmax(axis=1), OPEN).astype(np.int64)
