"""The family in torch's own operations: every device, every dtype, every transform, every order of derivative.

    forward    s = (x − m)/r,    y = gain·s + bias                      m, r: mean and root of each group
    backward   w = gain·dy,      dx = (w − mean(w) − s·mean(w·s))/r     dgain = Σ dy·s,  dbias = Σ dy  (over vectors)

Half precision is computed in float32, as in torch's LayerNorm. Everything is sums over groups and arithmetic on
elements, which torch.compile fuses into few kernels.
"""

import torch
from torch import Tensor


def forward(
    x: Tensor, gain: Tensor | None, bias: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> Tensor:
    s, _ = _steps(x, project, scale, groups, eps)
    y = s.flatten(-2)
    if gain is not None:
        y = y * gain.to(y.dtype)
    if bias is not None:
        y = y + bias.to(y.dtype)
    return y.to(result_dtype(x))


def backward(
    dy: Tensor, x: Tensor, gain: Tensor | None, project: bool, scale: bool, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, gain and bias; the last two in the dtype of the computation."""
    s, root = _steps(x, project, scale, groups, eps)
    w = dy.to(s.dtype)
    dgain, dbias = (terms.sum_to_size(x.shape[-1:]) for terms in (w * s.flatten(-2), w))
    w = (w if gain is None else w * gain.to(s.dtype)).reshape(s.shape)
    dx = w - w.mean(-1, keepdim=True) if project else w
    if scale:
        dx = (dx - s * (w * s).mean(-1, keepdim=True)) * root
    return dx.flatten(-2).to(x.dtype), dgain, dbias


def computing_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _steps(x: Tensor, project: bool, scale: bool, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """s, (..., groups, channels), and 1/r, (..., groups, 1) or 1."""
    z = x.to(computing_dtype(x)).reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
    if project:
        z = z - z.mean(-1, keepdim=True)
    if not scale:
        return z, z.new_ones(())
    # Squares of large numbers overflow, and their derivatives underflow much earlier: in smaller units
    # both are right. A unit is constant under differentiation, as the result does not depend on it.
    large, unit_of_large = UNITS[z.dtype]
    beyond = z.detach().abs().amax(-1, keepdim=True) > large
    unit = torch.where(beyond, z.new_full((), unit_of_large), z.new_ones(()))
    z = z * unit
    root = (z.square().mean(-1, keepdim=True) + eps * unit.square()).sqrt()
    return z / root, unit / root


UNITS = {
    torch.float32: (2.0**40, 2.0**-80),
    torch.float64: (2.0**300, 2.0**-600),
}  # above the first number, the second is the unit


def result_dtype(x: Tensor) -> torch.dtype:
    """That of x; under autocast float32, except on the CPU, as for torch's LayerNorm."""
    device = x.device.type
    lifts = device != "cpu" and x.dtype != torch.float64 and torch.amp.is_autocast_available(device)
    return torch.float32 if lifts and torch.is_autocast_enabled(device) else x.dtype
