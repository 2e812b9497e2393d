"""The stored tensors of a norm, and the norm that they give with other values."""

from dataclasses import dataclass

import numpy as np
from torch import nn

from normscope.models.probe import form_of
from normscope.norm import Norm
from normscope.rewrite.folded_weights import NewWeights
from normscope.rewrite.stored_tensors import Uses


@dataclass(frozen=True)
class NormTensors:
    """Where a norm stores its gain and its bias, by their first names; None where they are 1 and 0."""

    gain: str | None
    bias: str | None
    adds_one: bool  # the gain is 1 + w for the stored w

    @classmethod
    def of(cls, model: nn.Module, uses: Uses, path: str) -> "NormTensors":
        form = form_of(model.get_submodule(path))
        parts = (None, None) if form is None else (form.gain, form.bias)
        gain, bias = (
            None if part is None else uses.tensors.first_name(f"{path}.{part}".removeprefix(".")) for part in parts
        )
        return cls(gain, bias, form is not None and form.gain_convention == "1+w")

    @property
    def names(self) -> tuple[str | None, str | None]:
        return self.gain, self.bias

    def norm(self, norm: Norm, weights: NewWeights) -> Norm:
        """The norm with the gain and the bias that these weights give it."""
        one = 1.0 if self.adds_one else 0.0
        gain = np.ones(norm.size) if self.gain is None else weights[self.gain].reshape(-1).numpy() + one
        bias = np.zeros(norm.size) if self.bias is None else weights[self.bias].reshape(-1).numpy()
        return Norm(gain=gain, bias=bias, eps=norm.eps, project=norm.projects, scale=norm.scales, groups=norm.groups)
