"""Tiny transformers with random weights, gains and biases too, one per architecture, made without files or network."""

import torch
import transformers
from torch import nn

from architectures import ARCHITECTURES, GROUPED, SMALL, TOKENS

__all__ = ["CONFIGS", "EXPECTED", "GROUPED", "SMALL", "TOKENS", "build", "tiny_model"]
NAMES = ("gpt2", "bert", "llama", "gemma", "t5", "vit", "qwen3", "olmo2", "whisper", "phi")
CONFIGS = {name: ARCHITECTURES[name] for name in NAMES} | {"vit": ("ViTModel", ARCHITECTURES["vit"][1])}


EXPECTED = {  # of the model without its head: norms, kind, gain convention, eps
    "gpt2": (5, "layernorm", "w", 1e-5),
    "bert": (5, "layernorm", "w", 1e-12),
    "llama": (5, "rmsnorm", "w", 1e-6),
    "gemma": (5, "rmsnorm", "1+w", 1e-6),
    "t5": (7, "rmsnorm", "w", 1e-6),
    "vit": (5, "layernorm", "w", 1e-12),
    "qwen3": (9, "rmsnorm", "w", 1e-6),
    "olmo2": (9, "rmsnorm", "w", 1e-5),
    "whisper": (7, "layernorm", "w", 1e-5),
    "phi": (3, "layernorm", "w", 1e-5),
}


def build(architecture, attention="eager", device="cpu"):
    """The model with its head, every parameter random, so that no two values agree by accident."""
    torch.manual_seed(0)
    name, settings = CONFIGS[architecture]
    config = transformers.AutoConfig.for_model(architecture, **settings, attn_implementation=attention)
    with torch.device(device):
        model = getattr(transformers, name)(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def tiny_model(architecture):
    """The model without its head, in eval mode."""
    return build(architecture).base_model.eval()
