"""Tiny transformers of every architecture that folding is shown on, with random weights, gains and biases."""

import torch
import transformers
from torch import nn

from tiny_models import CONFIGS, GROUPED, SMALL, TOKENS

REQUIRED = (
    "gpt2", "opt", "gpt_neox", "gptj", "falcon", "stablelm", "bert", "vit", "whisper", "llama", "gemma2", "qwen3"
)  # fmt: skip
OTHERS = ("phi", "bloom", "mpt", "roberta", "clip", "t5", "gemma", "olmo2", "mixtral")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers")
PATCHES = {"image_size": 8, "patch_size": 4}
ARCHITECTURES = CONFIGS | {
    "opt": ("OPTForCausalLM", {**TOKENS, "hidden_size": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2,
                               "num_attention_heads": 2, "ffn_dim": 24, "vocab_size": 50,
                               "max_position_embeddings": 16}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SMALL, **TOKENS}),
    "gptj": ("GPTJForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "rotary_dim": 4,
                                 "vocab_size": 50, **TOKENS}),
    "falcon": ("FalconForCausalLM", {**SMALL, **TOKENS}),
    "stablelm": ("StableLmForCausalLM", GROUPED),
    "vit": ("ViTForImageClassification", {**SMALL, **PATCHES}),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 8}),
    "bloom": ("BloomForCausalLM", {**TOKENS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50}),
    "mpt": ("MptForCausalLM", {**TOKENS, "d_model": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 50,
                               "max_seq_len": 16}),
    "roberta": ("RobertaModel", {**SMALL, **TOKENS, "max_position_embeddings": 20}),
    "clip": ("CLIPModel", {"text_config": {**SMALL, **TOKENS, "max_position_embeddings": 16},
                           "vision_config": {**SMALL, **PATCHES}, "projection_dim": 12}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "nemotron": ("NemotronForCausalLM", {**GROUPED, "head_dim": 8}),
    "umt5": ("UMT5ForConditionalGeneration", CONFIGS["t5"][1]),
    "bart": ("BartForConditionalGeneration", {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, **TOKENS,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 50,
        "max_position_embeddings": 16, "decoder_start_token_id": 2,
    }),
}  # fmt: skip


def folding_model(architecture, layers=2):
    """The model in evaluation mode, every parameter random, so that no two values agree by accident."""
    torch.manual_seed(0)
    name, settings = ARCHITECTURES[architecture]
    config = transformers.AutoConfig.for_model(architecture, **_with_layers(settings, layers))
    model = getattr(transformers, name)(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.eval()


def folding_inputs(architecture):
    """What to call a model with where the generated inputs are not enough."""
    if architecture != "clip":
        return ()
    random = torch.Generator().manual_seed(0)
    ids, pixels = torch.randint(3, 50, (2, 8), generator=random), torch.randn(2, 3, 8, 8, generator=random)
    return ({"input_ids": ids, "pixel_values": pixels},)


def _with_layers(settings, layers):
    return {
        key: _with_layers(value, layers) if isinstance(value, dict) else layers if key in LAYERS else value
        for key, value in settings.items()
    }
