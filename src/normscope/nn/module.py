"""The family as one torch module, in place of nn.LayerNorm and nn.RMSNorm."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normscope.checks import as_count, as_floats
from normscope.errors import InputError
from normscope.nn.functional import norm


class Norm(nn.Module):
    """LayerNorm and, with other flags, the rest of the family.

    Parameters
    ----------
    size
        The number of channels or, as for nn.LayerNorm, the shape of the last axes, which are then flattened.
    project, scale
        False leaves out the step: project=False gives RMSNorm, scale=False the projection alone.
    groups
        The number of groups of channels that are normalized separately; must divide the channels.
    affine, bias
        affine=False omits gain and bias, bias=False the bias.
    eps
        Added to the mean square before the root.
    device, dtype
        Of gain and bias.
    axis
        The axis of the channels; axis=1 normalizes the channels of (N, C, H, W).

    >>> layer = Norm(768, groups=64)  # LN-G: 64 groups of 12 channels
    >>> layer
    Norm(768, groups=64, eps=1e-05)
    >>> layer(torch.ones(2, 197, 768)).shape
    torch.Size([2, 197, 768])

    Gain and bias are called `weight` and `bias` and have the shapes of nn.LayerNorm's: state dicts load either way.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        size: int | Sequence[int],
        project: bool = True,
        scale: bool = True,
        groups: int = 1,
        affine: bool = True,
        bias: bool = True,
        eps: float = 1e-5,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        axis: int = -1,
    ) -> None:
        super().__init__()
        extents = tuple(size) if isinstance(size, Sequence) else (size,)
        shape = tuple(as_count(extent, "size", least=1) for extent in extents)
        if not shape:
            raise InputError("size must be a number of channels or the shape of the last axes, got an empty shape")
        for name, flag in (("project", project), ("scale", scale), ("affine", affine), ("bias", bias)):
            if not isinstance(flag, bool):
                raise InputError(f"{name} must be True or False, got {flag!r}")
        if math.prod(shape) % as_count(groups, "groups", least=1):
            raise InputError(
                f"groups must divide the number of channels, got {groups} groups of {math.prod(shape)} channels"
            )
        floor = as_floats(eps, "eps")
        if floor.ndim or floor < 0:
            raise InputError(f"eps must be one number, 0 or more, got {eps!r}")
        if len(shape) > 1 and axis != -1:
            raise InputError(f"axis must be -1 where size is the shape of several axes, got {axis}")
        self.normalized_shape, self.axis = shape, axis
        self.project, self.scale, self.groups, self.eps = project, scale, int(groups), float(floor)
        for name, present in (("weight", affine), ("bias", affine and bias)):
            vector = nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if present else None
            self.register_parameter(name, vector)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set gains to 1 and biases to 0."""
        if self.weight is not None:
            nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @property
    def elementwise_affine(self) -> bool:
        """Whether there is a gain, under nn.LayerNorm's name."""
        return self.weight is not None

    def forward(self, x: Tensor) -> Tensor:
        if len(self.normalized_shape) == 1:
            if x.ndim <= max(self.axis, 0) or x.shape[self.axis] != self.normalized_shape[0]:
                self._refuse(x)
            return self._normalized(x, self.weight, self.bias)
        if x.shape[-len(self.normalized_shape) :] != self.normalized_shape:
            self._refuse(x)
        gain, bias = (None if vector is None else vector.flatten() for vector in (self.weight, self.bias))
        return self._normalized(x.flatten(-len(self.normalized_shape)), gain, bias).view(x.shape)

    def _refuse(self, x: Tensor) -> None:
        where = f"axis {self.axis}" if len(self.normalized_shape) == 1 else "its last axes"
        wanted = " × ".join(map(str, self.normalized_shape))
        raise InputError(f"x must have {wanted} channels in {where}, got shape {tuple(x.shape)}")

    def _normalized(self, x: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
        return norm(
            x, gain, bias, project=self.project, scale=self.scale, groups=self.groups, eps=self.eps, axis=self.axis
        )

    def extra_repr(self) -> str:
        (size,) = self.normalized_shape if len(self.normalized_shape) == 1 else (self.normalized_shape,)
        settings = [
            f"project={self.project}" * (not self.project),
            f"scale={self.scale}" * (not self.scale),
            f"groups={self.groups}" * (self.groups > 1),
            f"eps={self.eps:g}",
            "affine=False" * (self.weight is None),
            "bias=False" * (self.weight is not None and self.bias is None),
            f"axis={self.axis}" * (self.axis != -1),
        ]
        return ", ".join([str(size), *filter(None, settings)])
