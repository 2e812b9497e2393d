"""Tiny transformers with random weights, gains and biases too, one per architecture, made without files or network."""

import torch
import transformers
from torch import nn

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**SMALL, **TOKENS, "num_key_value_heads": 1}
CONFIGS = {
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 50,
                                 **TOKENS}),
    "bert": ("BertModel", SMALL),
    "llama": ("LlamaForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    "t5": ("T5ForConditionalGeneration", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
                                          "vocab_size": 50, "decoder_start_token_id": 0}),
    "vit": ("ViTModel", {**SMALL, "image_size": 8, "patch_size": 4}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "whisper": ("WhisperForConditionalGeneration", {
        "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
        "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 50,
        "num_mel_bins": 4, "max_source_positions": 8, "max_target_positions": 16, "decoder_start_token_id": 3, **TOKENS,
    }),
    "phi": ("PhiForCausalLM", {**SMALL, **TOKENS}),
}  # fmt: skip


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
