"""Tiny configurations, one for each architecture that something is shown on: the class of the model and its settings.

The first are those of the tests; all together are the rows of docs/architectures.md. None needs files or a network.
"""

SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**SMALL, **TOKENS, "num_key_value_heads": 1}
HEADS = {**GROUPED, "head_dim": 8}
PATCHES = {"image_size": 8, "patch_size": 4}
STATES = {"mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_n_heads": 4, "mamba_d_head": 8,
          "mamba_n_groups": 1, "mamba_chunk_size": 8}  # fmt: skip
SPEECH = {
    "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "vocab_size": 50, **TOKENS,
}  # fmt: skip

ARCHITECTURES = {
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 50,
                                 **TOKENS}),
    "bert": ("BertModel", SMALL),
    "llama": ("LlamaForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", HEADS),
    "t5": ("T5ForConditionalGeneration", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
                                          "vocab_size": 50, "decoder_start_token_id": 0}),
    "vit": ("ViTForImageClassification", {**SMALL, **PATCHES}),
    "qwen3": ("Qwen3ForCausalLM", HEADS),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "whisper": ("WhisperForConditionalGeneration", {**SPEECH, "num_mel_bins": 4, "max_source_positions": 8,
                                                    "max_target_positions": 16, "decoder_start_token_id": 3}),
    "phi": ("PhiForCausalLM", {**SMALL, **TOKENS}),
    "opt": ("OPTForCausalLM", {**TOKENS, "hidden_size": 16, "word_embed_proj_dim": 16, "num_hidden_layers": 2,
                               "num_attention_heads": 2, "ffn_dim": 24, "vocab_size": 50,
                               "max_position_embeddings": 16}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SMALL, **TOKENS}),
    "gptj": ("GPTJForCausalLM", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "rotary_dim": 4,
                                 "vocab_size": 50, **TOKENS}),
    "falcon": ("FalconForCausalLM", {**SMALL, **TOKENS}),
    "stablelm": ("StableLmForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", HEADS),
    "bloom": ("BloomForCausalLM", {**TOKENS, "hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50}),
    "mpt": ("MptForCausalLM", {**TOKENS, "d_model": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 50,
                               "max_seq_len": 16}),
    "roberta": ("RobertaModel", {**SMALL, **TOKENS, "max_position_embeddings": 20}),
    "clip": ("CLIPModel", {"text_config": {**SMALL, **TOKENS, "max_position_embeddings": 16},
                           "vision_config": {**SMALL, **PATCHES}, "projection_dim": 12}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 3}),
    "nemotron": ("NemotronForCausalLM", HEADS),
    "umt5": ("UMT5ForConditionalGeneration", {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2,
                                              "vocab_size": 50, "decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", {**SPEECH, "max_position_embeddings": 16, "decoder_start_token_id": 2}),
    "granitemoe": ("GraniteMoeForCausalLM", {**GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "olmoe": ("OlmoeForCausalLM", {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2}),
    "phimoe": ("PhimoeForCausalLM", {**GROUPED, "num_local_experts": 3, "num_experts_per_tok": 2}),
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "gemma3_text": ("Gemma3ForCausalLM", {**HEADS, "sliding_window": 8, "layer_types": ["sliding_attention",
                                                                                       "full_attention"]}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**HEADS, "num_experts": 3, "num_experts_per_tok": 2,
                                          "moe_intermediate_size": 12}),
    "qwen3_next": ("Qwen3NextForCausalLM", {
        **HEADS, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "linear_num_key_heads": 2,
        "shared_expert_intermediate_size": 12, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}),
    "gpt_oss": ("GptOssForCausalLM", {**HEADS, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 8,
                                      "layer_types": ["sliding_attention", "full_attention"]}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {
        **SMALL, **TOKENS, "num_key_value_heads": 2, "moe_intermediate_size": 12, "n_routed_experts": 4, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "kv_lora_rank": 8,
        "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}),
    "olmo3": ("Olmo3ForCausalLM", {**GROUPED, "sliding_window": 8, "layer_types": ["sliding_attention",
                                                                                  "full_attention"]}),
    "cohere2": ("Cohere2ForCausalLM", {**HEADS, "sliding_window": 8, "layer_types": ["sliding_attention",
                                                                                    "full_attention"]}),
    "mamba2": ("Mamba2ForCausalLM", {**TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 8,
                                     "state_size": 8, "n_groups": 1, "chunk_size": 8, "vocab_size": 50}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", {**HEADS, "lru_width": 16, "attention_window_size": 8,
                                                      "block_types": ["recurrent", "attention"]}),
    "modernbert": ("ModernBertForMaskedLM", {**SMALL, **TOKENS, "cls_token_id": 1, "sep_token_id": 2,
                                             "global_attn_every_n_layers": 2, "local_attention": 8}),
    "dinov2": ("Dinov2Model", {**SMALL, **PATCHES}),
    "dinov3_vit": ("DINOv3ViTModel", {**SMALL, **PATCHES, "num_register_tokens": 1}),
    "siglip2": ("Siglip2Model", {"text_config": {**SMALL, **TOKENS, "max_position_embeddings": 16,
                                                 "projection_size": 16},
                                 "vision_config": {**SMALL, "patch_size": 4, "num_patches": 4}}),
    "convnext": ("ConvNextForImageClassification", {"image_size": 32, "hidden_sizes": [8, 12, 16, 20],
                                                    "depths": [1, 1, 2, 1]}),
    "swin": ("SwinForImageClassification", {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1],
                                            "num_heads": [2, 2], "window_size": 4}),
    "swinv2": ("Swinv2ForImageClassification", {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1],
                                                "num_heads": [2, 2], "window_size": 4}),
    "t5gemma": ("T5GemmaForConditionalGeneration", {
        part: {**HEADS, "num_hidden_layers": 2, "sliding_window": 8, "layer_types": ["sliding_attention",
                                                                                    "full_attention"]}
        for part in ("encoder", "decoder")} | {"vocab_size": 50, **TOKENS}),
    "granite": ("GraniteForCausalLM", {**GROUPED, "embedding_multiplier": 2.0, "residual_multiplier": 0.5}),
    "granitemoehybrid": ("GraniteMoeHybridForCausalLM", {
        **GROUPED, **STATES, "num_local_experts": 3, "num_experts_per_tok": 2, "shared_intermediate_size": 12,
        "layer_types": ["mamba", "attention"]}),
    "nemotron_h": ("NemotronHForCausalLM", {
        **HEADS, "layers_block_type": ["mamba", "attention", "moe"], "num_hidden_layers": 3, "mamba_num_heads": 4,
        "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 4,
        "moe_intermediate_size": 12, "moe_shared_expert_intermediate_size": 12, "num_experts_per_tok": 2}),
    "falcon_h1": ("FalconH1ForCausalLM", {**HEADS, **STATES, "mamba_d_ssm": 32, "mamba_rms_norm": True}),
    "llama4_text": ("Llama4ForCausalLM", {**HEADS, "intermediate_size_mlp": 24, "num_local_experts": 3,
                                          "num_experts_per_tok": 1, "interleave_moe_layer_step": 2,
                                          "no_rope_layers": [1, 0], "use_qk_norm": True, "attention_chunk_size": 8}),
    "glm4": ("Glm4ForCausalLM", HEADS),
    "smollm3": ("SmolLM3ForCausalLM", {**HEADS, "no_rope_layers": [1, 0]}),
    "wav2vec2": ("Wav2Vec2ForCTC", {**SMALL, **TOKENS, "conv_dim": [8, 8], "conv_kernel": [4, 3], "conv_stride": [2, 2],
                                    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4,
                                    "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
                                    "do_stable_layer_norm": True}),
    "clap": ("ClapModel", {
        "text_config": {**SMALL, **TOKENS, "max_position_embeddings": 20},
        "audio_config": {"spec_size": 32, "num_mel_bins": 8, "patch_size": 4, "patch_stride": [4, 4], "window_size": 4,
                         "patch_embeds_hidden_size": 8, "hidden_size": 16, "depths": [1, 1],
                         "num_attention_heads": [2, 2]},
        "projection_dim": 12}),
    "sam": ("SamModel", {
        "vision_config": {"hidden_size": 16, "output_channels": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
                          "image_size": 16, "patch_size": 4, "window_size": 2, "global_attn_indexes": [1],
                          "mlp_dim": 24, "num_pos_feats": 4},
        "prompt_encoder_config": {"hidden_size": 8, "image_size": 16, "patch_size": 4, "mask_input_channels": 16},
        "mask_decoder_config": {"hidden_size": 8, "mlp_dim": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
                                "iou_head_hidden_dim": 8}}),
    "jamba": ("JambaForCausalLM", {**GROUPED, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
                                   "expert_layer_offset": 1, "num_experts": 3, "num_experts_per_tok": 2,
                                   "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 4,
                                   "use_mamba_kernels": False}),
    "zamba2": ("Zamba2ForCausalLM", {**GROUPED, "num_key_value_heads": 2, "mamba_d_state": 8, "mamba_expand": 2,
                                     "mamba_ngroups": 1, "n_mamba_heads": 4, "mamba_headdim": 8, "chunk_size": 8,
                                     "use_mem_eff_path": False, "layers_block_type": ["mamba", "hybrid"],
                                     "num_mem_blocks": 1, "adapter_rank": 4, "attention_hidden_size": 32,
                                     "attention_head_dim": 16}),
    "bamba": ("BambaForCausalLM", {**GROUPED, **STATES, "attn_layer_indices": [1], "head_dim": 8}),
    "lfm2": ("Lfm2ForCausalLM", {**GROUPED, "layer_types": ["conv", "full_attention"], "block_ff_dim": 24,
                                 "block_multiple_of": 4}),
    "rwkv": ("RwkvForCausalLM", {**TOKENS, "hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 2,
                                 "intermediate_size": 24, "context_length": 16, "vocab_size": 50}),
    "esm": ("EsmForMaskedLM", {**SMALL, **TOKENS, "max_position_embeddings": 20, "mask_token_id": 3,
                               "position_embedding_type": "rotary", "emb_layer_norm_before": True}),
    "deberta-v2": ("DebertaV2ForMaskedLM", {**SMALL, **TOKENS, "relative_attention": True, "position_buckets": 4,
                                            "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 16,
                                            "norm_rel_ebd": "layer_norm"}),
    "vjepa2": ("VJEPA2Model", {"patch_size": 4, "crop_size": 8, "frames_per_clip": 4, "tubelet_size": 2,
                               "hidden_size": 24, "num_attention_heads": 2, "num_hidden_layers": 2, "mlp_ratio": 2,
                               "pred_hidden_size": 24, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 2,
                               "pred_mlp_ratio": 2}),
    "starcoder2": ("Starcoder2ForCausalLM", {**GROUPED, "use_bias": True}),
    "exaone4": ("Exaone4ForCausalLM", {**HEADS, "sliding_window": 8, "sliding_window_pattern": 2}),
    "beit": ("BeitForImageClassification", {**SMALL, **PATCHES}),
    "moonshine": ("MoonshineForConditionalGeneration", {
        "hidden_size": 16, "encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2,
        "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 50,
        "decoder_start_token_id": 1, **TOKENS}),
    "xlstm": ("xLSTMForCausalLM", {**TOKENS, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2,
                                   "qk_dim_factor": 1.0, "vocab_size": 50, "chunk_size": 8}),
    "mamba": ("MambaForCausalLM", {**TOKENS, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 8,
                                   "vocab_size": 50, "time_step_rank": 4}),
}  # fmt: skip


def made(architecture, settings=None):
    """The model of an architecture as transformers initialises it, with other settings if they are given."""
    import transformers

    name, own = ARCHITECTURES[architecture]
    config = transformers.AutoConfig.for_model(architecture, **(own if settings is None else settings))
    return getattr(transformers, name)(config)


def random_model(architecture, settings=None, seed=0):
    """The model in evaluation mode, every parameter random, so that no two values agree by accident."""
    import torch

    torch.manual_seed(seed)
    model = made(architecture, settings)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()
