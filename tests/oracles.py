"""Slow and obvious ways to the same answers."""

import numpy as np
import torch
from torch.nn import functional as F


def torch_norm(norm, x):
    """The norm through torch's own functions, or straight from the definition where torch has none. float64."""
    x, gain, bias = (torch.as_tensor(np.array(part)) for part in (x, norm.gain, norm.bias))
    channels = norm.size // norm.groups
    if norm.projects and norm.scales:
        if norm.groups == 1:
            return F.layer_norm(x, (norm.size,), gain, bias, norm.eps)
        return F.group_norm(x, norm.groups, gain, bias, norm.eps)
    grouped = x.reshape(-1, norm.groups, channels)
    if norm.projects:
        grouped = grouped - grouped.mean(-1, keepdim=True)
    if norm.scales:
        grouped = F.rms_norm(grouped, (channels,), eps=norm.eps)
    return grouped.reshape(x.shape) * gain + bias


def dense_factor(norm):
    """√c·G·Π (or √c·G) as a matrix: the image of the unit ball under it, group by group, is the set of outputs."""
    channels = norm.size // norm.groups
    project = np.eye(channels) - norm.projects / channels
    blocks = np.kron(np.eye(norm.groups), project)
    return np.sqrt(channels) * norm.gain[:, None] * blocks


def dense_lengths(norm):
    """Singular values of the dense factor, descending, all N of them."""
    return np.linalg.svd(dense_factor(norm), compute_uv=False)


def jacobian(norm, x):
    """By autograd, through torch's own functions."""
    point = torch.as_tensor(x)[None]
    flat = torch.autograd.functional.jacobian(lambda row: torch_through(norm, row), point)
    return flat.reshape(norm.size, norm.size).numpy()


def torch_through(norm, row):
    """torch_norm on a tensor that carries a gradient."""
    gain, bias = torch.as_tensor(norm.gain.copy()), torch.as_tensor(norm.bias.copy())
    grouped = row.reshape(norm.groups, -1)
    if norm.projects:
        grouped = grouped - grouped.mean(-1, keepdim=True)
    if norm.scales:
        grouped = grouped / (grouped.pow(2).mean(-1, keepdim=True) + norm.eps).sqrt()
    return grouped.reshape(row.shape) * gain + bias
