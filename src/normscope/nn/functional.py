"""The family as a function of tensors: by the fused operator where possible, by torch's operations elsewhere."""

import torch
from torch import Tensor
from torch.autograd import forward_ad

from normscope.nn import operator, pure
from normscope.nn.arguments import require_fitting


def norm(
    x: Tensor,
    gain: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    project: bool = True,
    scale: bool = True,
    groups: int = 1,
    eps: float = 1e-5,
    axis: int = -1,
) -> Tensor:
    """Project, scale and apply gain and bias, separately in each group of the channels in one axis of x.

    Parameters
    ----------
    x
        A floating-point tensor.
    gain, bias
        One value per channel; None leaves out the gain or the bias.
    project, scale
        False leaves out the step: project=False gives RMSNorm, scale=False the projection alone.
    groups
        The number of groups of channels; must divide the channels.
    eps
        Added to the mean square before the root.
    axis
        The axis of the channels.

    Returns
    -------
    Tensor
        A tensor like x.

    >>> x = torch.tensor([[1.0, 3.0, 10.0, 30.0]])
    >>> norm(x, groups=2, eps=0)
    tensor([[-1.,  1., -1.,  1.]])
    >>> torch.allclose(norm(x), torch.nn.functional.layer_norm(x, (4,)))
    True

    Results and gradients are those of torch's LayerNorm, up to rounding, also in half precision: float32 inside.
    Unlike torch's, they stay right where squares overflow, beyond 1e19 in float32; see docs/lng.md.
    """
    if axis not in (-1, x.ndim - 1):
        x = x.movedim(axis, -1)
        return norm(x, gain, bias, project=project, scale=scale, groups=groups, eps=eps).movedim(-1, axis)
    if _can_be_fused(x, gain, bias):
        x = x if x.is_cpu else x.to(pure.result_dtype(x))  # float32 under autocast
        return operator.norm(x, gain, bias, project, scale, groups, eps)
    require_fitting(x, gain, bias, groups)
    return pure.forward(x, gain, bias, project, scale, groups, eps)


def _can_be_fused(x: Tensor, gain: Tensor | None, bias: Tensor | None) -> bool:
    """Whether the operator exists for x, and no transform is active that would have to look inside it."""
    if x.device.type not in operator.DEVICES or x.dtype not in operator.DTYPES:
        return False
    if torch._C._are_functorch_transforms_active():
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    if forward_ad._current_level >= 0 or torch._C._is_tracing():  # forward-mode tangents, or torch.jit.trace
        return False
    return type(x) in operator.PLAIN and type(gain) in operator.PLAIN and type(bias) in operator.PLAIN
