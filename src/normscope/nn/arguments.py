"""Checks of the tensors passed to a norm, before anything is computed."""

from torch import Tensor

from normscope.errors import InputError


def require_fitting(x: Tensor, gain: Tensor | None, bias: Tensor | None, groups: int) -> None:
    """Refuse tensors that are not vectors in the last axis of x, with a gain and a bias for each channel.

    >>> import torch
    >>> require_fitting(torch.ones(2, 6), torch.ones(6), None, groups=4)
    Traceback (most recent call last):
    normscope.errors.InputError: groups must divide the number of channels, got 4 groups of 6 channels
    """
    if not x.is_floating_point():
        raise InputError(f"x must have a floating-point dtype, got {x.dtype}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise InputError(f"x must have one or more channels in its last axis, got shape {tuple(x.shape)}")
    size = x.shape[-1]
    for name, vector in (("gain", gain), ("bias", bias)):
        if vector is not None and vector.shape != (size,):
            raise InputError(f"{name} must have one value for each of the {size} channels, got {tuple(vector.shape)}")
        if vector is not None and vector.device != x.device:
            raise InputError(f"{name} must be on the device of x, {x.device}, got {vector.device}")
    if groups < 1 or size % groups:
        raise InputError(f"groups must divide the number of channels, got {groups} groups of {size} channels")
