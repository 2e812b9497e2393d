"""Norms to train with: one torch module and one function for the whole family, fused on the CPU and on GPUs."""

from normscope.nn.functional import norm
from normscope.nn.module import Norm

__all__ = ["Norm", "norm"]
