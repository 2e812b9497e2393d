"""Copies of modules without hooks, in eval mode."""

import copy

from torch import nn


def silent_copy(module: nn.Module) -> nn.Module:
    """A copy in eval mode without hooks, which are not part of what the module computes.

    >>> module = nn.LayerNorm(2).train()
    >>> _ = module.register_forward_hook(print)
    >>> len(silent_copy(module)._forward_hooks), len(module._forward_hooks)
    (0, 1)
    """
    duplicate = copy.deepcopy(module)
    for part in duplicate.modules():
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
    return duplicate.eval()
