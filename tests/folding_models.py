"""Tiny transformers of every architecture that folding is shown on, with random weights, gains and biases."""

from architectures import ARCHITECTURES, random_model

REQUIRED = (
    "gpt2", "opt", "gpt_neox", "gptj", "falcon", "stablelm", "bert", "vit", "whisper", "llama", "gemma2", "qwen3"
)  # fmt: skip
OTHERS = (
    "phi", "bloom", "mpt", "roberta", "clip", "t5", "gemma", "olmo2", "mixtral", "gemma3_text", "olmo3", "cohere2",
    "phi3", "qwen3_moe", "gpt_oss", "deepseek_v3", "granitemoe", "olmoe", "phimoe", "llama4_text",
)  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")


def folding_model(architecture, layers=2):
    """The model with so many layers, every parameter random."""
    return random_model(architecture, _with_layers(ARCHITECTURES[architecture][1], layers))


def _with_layers(settings, layers):
    return {
        key: _with_layers(value, layers) if isinstance(value, dict) else layers if key in LAYERS else value
        for key, value in settings.items()
    }
