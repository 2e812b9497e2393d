"""Tiny transformers of every architecture that folding is shown on, with random weights, gains and biases."""

import torch
from torch import nn

from architectures import ARCHITECTURES, made

REQUIRED = (
    "gpt2", "opt", "gpt_neox", "gptj", "falcon", "stablelm", "bert", "vit", "whisper", "llama", "gemma2", "qwen3"
)  # fmt: skip
OTHERS = ("phi", "bloom", "mpt", "roberta", "clip", "t5", "gemma", "olmo2", "mixtral")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")


def folding_model(architecture, layers=2):
    """The model in evaluation mode, every parameter random, so that no two values agree by accident."""
    torch.manual_seed(0)
    model = made(architecture, _with_layers(ARCHITECTURES[architecture][1], layers))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def _with_layers(settings, layers):
    return {
        key: _with_layers(value, layers) if isinstance(value, dict) else layers if key in LAYERS else value
        for key, value in settings.items()
    }
