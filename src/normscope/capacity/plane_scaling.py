"""Scaling as a LayerNorm: x/|x| in the plane is two linear maps around one LayerNorm of width 3.

    x/|x| = Uᵀ·LN(Ux)/√3            U (3×2): an orthonormal basis of the vectors of R³ whose mean is zero

The mean of Ux is zero already, so LayerNorm only scales it to length √3. With eps > 0 the length stays below 1:
x/√(|x|² + 3·eps). So affine maps of the plane with scaling between them are a plain network of Linear and LayerNorm(3)
[1], each map multiplied with U where it writes and with Uᵀ/√3 where it reads.

[1] Ni et al., On the Nonlinearity of Layer Normalization, ICML 2024.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from normscope.certificates.network_weights import BASIS, WIDTH, Layers
from normscope.checks import Floats
from normscope.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn


class AffineMap(NamedTuple):
    """x -> matrix @ x + shift"""

    matrix: Floats  # (out, in)
    shift: Floats  # (out,)


def scaling_layer(*, eps: float = 0.0, dtype: "torch.dtype | None" = None) -> "nn.Sequential":
    """x -> x/√(|x|² + 3·eps) for x in the plane, as Linear, LayerNorm(3), Linear.

    Parameters
    ----------
    eps
        eps of the LayerNorm.
    dtype
        Data type of the module; float64 by default.

    Returns
    -------
    nn.Sequential
        A module that maps vectors of the plane, in the last axis.

    >>> import torch
    >>> scaling_layer()(torch.tensor([3.0, -4.0], dtype=torch.float64)).round(decimals=12)
    tensor([ 0.6000, -0.8000], dtype=torch.float64)
    """
    require_eps(eps)
    unchanged = AffineMap(np.eye(2), np.zeros(2))
    return layer_norm_network([unchanged, unchanged], eps=eps, dtype=dtype)


def require_eps(eps: float) -> None:
    if not (isinstance(eps, (int, float)) and 0 <= eps < math.inf):
        raise InputError(f"eps must be a finite number, 0 or more, got {eps!r}")


def layer_norm_network(
    maps: Sequence[AffineMap], *, eps: float = 0.0, dtype: "torch.dtype | None" = None
) -> "nn.Sequential":
    """The maps with scaling between each two of them, as Linear, LayerNorm(3), …, LayerNorm(3), Linear.

    All maps but the last go into the plane, all but the first out of it.
    """
    from torch import nn

    layers: list[nn.Module] = []
    for number, affine in enumerate(maps):
        reads, writes = number > 0, number < len(maps) - 1
        layers.append(linear_layer(affine, reads=reads, writes=writes, dtype=dtype))
        if writes:
            layers.append(layer_norm(eps))
    return nn.Sequential(*layers)


def against(eps: float) -> float:
    """A power of two by which the maps before LayerNorms are multiplied to make eps negligible.

    Multiplying by t is the same as dividing eps by t².
    """
    return 1.0 if eps == 0 else 2.0 ** math.ceil(math.log2(math.sqrt(eps)) + 30)


def linear_layer(affine: AffineMap, *, reads: bool, writes: bool, dtype: "torch.dtype | None" = None) -> "nn.Linear":
    """One map as nn.Linear; it may read the plane from a LayerNorm, and write it for one."""
    import torch

    matrix, shift = affine
    if reads:
        matrix = matrix @ BASIS.T / np.sqrt(WIDTH)
    if writes:
        matrix, shift = BASIS @ matrix, BASIS @ shift
    return linear_of(*(torch.tensor(part, dtype=dtype or torch.float64) for part in (matrix, shift)))


def linear_of(weight: "torch.Tensor", bias: "torch.Tensor") -> "nn.Linear":
    """nn.Linear with these weights; no random initial weights are drawn."""
    from torch import nn

    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = (nn.Parameter(part, requires_grad=False) for part in (weight, bias))
    return layer


def module_of(layers: Layers, eps: float) -> "nn.Sequential":
    """Linear, LayerNorm(3), …, Linear with these weights, each with the bias as its last column."""
    import torch
    from torch import nn

    modules: list[nn.Module] = []
    for layer in layers:
        weight, bias = (torch.from_numpy(np.array(part, order="C")) for part in (layer[:, :-1], layer[:, -1]))
        modules += [layer_norm(eps)] if modules else []
        modules.append(linear_of(weight, bias))
    return nn.Sequential(*modules)


def layers_of(modules: "Iterable[nn.Module]") -> Layers:
    """The weights of Linears, among other modules: the inverse of `module_of`."""
    from torch import nn

    linears = [each for each in modules if isinstance(each, nn.Linear)]
    return [np.column_stack([each.weight.detach().numpy(), each.bias.detach().numpy()]) for each in linears]


def layer_norm(eps: float) -> "nn.LayerNorm":
    from torch import nn

    return nn.LayerNorm(WIDTH, eps=eps, elementwise_affine=False)
