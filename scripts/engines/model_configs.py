"""Configs of models of which `ingot synth --family` knows none, wide enough for whole blocks of 128 on two ranks."""

# vLLM's latent attention on CPUs has only the release's widths of heads. Wide enough for four ranks.
LATENT = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 512, "hidden_size": 256,
    "intermediate_size": 512, "moe_intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 8, "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "max_position_embeddings": 4096, "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1,
}

# Classes of which SGLang loads the shared expert as a further routed one.
FUSING = {
    "deepseek_v3, 256 experts": LATENT | {
        "hidden_size": 128, "intermediate_size": 256, "moe_intermediate_size": 128, "kv_lora_rank": 128, "n_routed_experts": 256,
    },
    "glm4_moe": {
        "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "vocab_size": 512, "hidden_size": 256,
        "intermediate_size": 512, "moe_intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 4, "head_dim": 64, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "use_qk_norm": False,
        "max_position_embeddings": 4096, "attention_bias": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "num_nextn_predict_layers": 0, "bos_token_id": 0, "eos_token_id": 1,
    },
}

# A decoder with grouped queries; every model below has a word of its own.
DECODER = {
    "vocab_size": 512, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
    "max_position_embeddings": 4096, "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "bos_token_id": 0, "eos_token_id": 1,
}
DECODERS = {
    "llama": DECODER | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "mlp_bias": False,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    },
    "qwen3": DECODER | {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "use_sliding_window": False, "sliding_window": None,
        "max_window_layers": 2,
    },
    "mistral": DECODER | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_act": "silu", "sliding_window": None},
    # The text model: `synth` makes no towers. One layer looks at the last 4 tokens, the other at all.
    "gemma3": DECODER | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 64, "sliding_window": 4, "sliding_window_pattern": 2, "rope_local_base_freq": 10000.0,
        "layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": True,
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
    },
    # SGLang's class has heads of hidden_size / num_attention_heads, whatever head_dim says.
    "mixtral": DECODER | {
        "num_attention_heads": 4, "num_key_value_heads": 2,
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_act": "silu", "num_local_experts": 8, "num_experts_per_tok": 2,
        "sliding_window": None, "output_router_logits": False, "router_aux_loss_coef": 0.02,
    },
}
