"""The configs of all goldens, by name."""

from golden_families import (
    ALBERT,
    BERT,
    DEBERTA_V3,
    DEEPSEEK_V3,
    DISTILBERT,
    GEMMA2,
    GEMMA3,
    GPT_NEOX,
    GPT_OSS,
    GTE,
    JINA_BERT,
    JINA_V3,
    LLAMA,
    LLAMA3_ROPE,
    MAMBA2,
    MISTRAL,
    MIXTRAL,
    MODERNBERT,
    MPNET,
    NOMIC,
    PHI3_LONGROPE,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    ROBERTA,
    STARCODER2,
    T5,
    YARN_ROPE,
    Settings,
)

# Both config spellings occur: `rope_theta` with `rope_scaling`, and `rope_parameters`, new in
# transformers 5.
CONFIGS: dict[str, Settings] = {
    "llama2": LLAMA | {"num_key_value_heads": 4, "rope_theta": 1e4},
    "llama2_bf16": LLAMA | {"num_key_value_heads": 4, "rope_theta": 1e4, "dtype": "bfloat16"},
    "llama3": LLAMA | {"num_hidden_layers": 3, "rope_theta": 5e5, "rope_scaling": LLAMA3_ROPE},
    "llama3_tied": LLAMA
    | {
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
        "rope_parameters": LLAMA3_ROPE | {"rope_theta": 5e5},
    },
    "llama_linear": LLAMA | {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama_bias": LLAMA | {"rope_theta": 1e4, "attention_bias": True, "mlp_bias": True},
    "llama_head_dim": LLAMA | {"rope_theta": 1e4, "head_dim": 16},
    "llama_odd": LLAMA
    | {
        "rope_theta": 1e4,
        "vocab_size": 97,
        "hidden_size": 40,
        "intermediate_size": 52,
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "head_dim": 10,
    },
    "mistral": MISTRAL | {"sliding_window": None, "head_dim": 16},
    "mistral_window": MISTRAL | {"sliding_window": 8},
    "qwen2": QWEN2 | {"tie_word_embeddings": True},
    "qwen2_window": QWEN2
    | {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen3": QWEN3 | {"tie_word_embeddings": True},
    "qwen3_yarn": QWEN3
    | {
        "num_key_value_heads": 4,
        "attention_bias": True,
        "max_position_embeddings": 256,
        "rope_scaling": YARN_ROPE,
    },
    "mixtral": MIXTRAL | {"sliding_window": None},
    "mixtral_window": MIXTRAL | {"sliding_window": 8, "num_local_experts": 4, "intermediate_size": 40},
    "qwen3_moe": QWEN3_MOE | {"norm_topk_prob": True},
    "qwen3_moe_mixed": QWEN3_MOE
    | {"norm_topk_prob": False, "num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "deepseek_v3": DEEPSEEK_V3
    | {
        "rope_scaling": {
            "type": "yarn",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 0.7,
        },
    },
    "deepseek_v3_direct": DEEPSEEK_V3
    | {
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "attention_bias": True,
        "rope_interleave": False,
    },
    "deepseek_v2": DEEPSEEK_V3
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.5,
    },
    "gpt_oss": GPT_OSS,
    "granite": LLAMA
    | {
        "architectures": ["GraniteForCausalLM"],
        "model_type": "granite",
        "rope_theta": 1e4,
        "embedding_multiplier": 1.5,
        "attention_multiplier": 0.25,
        "residual_multiplier": 0.5,
        "logits_scaling": 4.0,
    },
    "smollm3": LLAMA
    | {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "num_hidden_layers": 3,
        "intermediate_size": 48,
        "tie_word_embeddings": True,
        "no_rope_layers": [1, 0, 1],
        "rope_theta": 2e6,
        "pad_token_id": None,
    },
    "smollm3_window": LLAMA
    | {
        "architectures": ["SmolLM3ForCausalLM"],
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "intermediate_size": 32,
        "use_sliding_window": True,
        "sliding_window": 8,
        "rope_theta": 1e4,
        "pad_token_id": None,
    },
    "olmo2": LLAMA
    | {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "rope_theta": 5e5,
        "rms_norm_eps": 1e-6,
        "pad_token_id": None,
    },
    "olmo2_mqa": LLAMA
    | {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "num_key_value_heads": 1,
        "rope_theta": 5e5,
        "pad_token_id": None,
    },
    "phi3": LLAMA
    | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "num_key_value_heads": 4,
        "rope_theta": 1e4,
        "sliding_window": 8,
        "original_max_position_embeddings": 512,
        "pad_token_id": None,
    },
    "phi3_partial": LLAMA
    | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "rope_theta": 1e4,
        "original_max_position_embeddings": 512,
        "pad_token_id": None,
    },
    "phi3_longrope": PHI3_LONGROPE,
    "phi3_longrope_short": PHI3_LONGROPE | {"original_max_position_embeddings": 512},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3
    | {
        "num_hidden_layers": 3,
        "intermediate_size": 48,
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3_nested": GEMMA3
    | {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        },
    },
    "starcoder2": STARCODER2,
    "starcoder2_window": STARCODER2 | {"sliding_window": 8, "use_bias": False},
    "gpt_neox": GPT_NEOX,
    "gpt_neox_serial": GPT_NEOX
    | {"use_parallel_residual": False, "rotary_pct": 1.0, "hidden_act": "gelu_new", "attention_bias": False},
    "mamba2": MAMBA2,
    "mamba2_groups": MAMBA2
    | {
        "hidden_size": 40,
        "num_heads": 8,
        "head_dim": 10,
        "state_size": 5,
        "n_groups": 2,
        "conv_kernel": 3,
        "use_bias": True,
        "use_conv_bias": False,
        "time_step_limit": [0.25, 1.5],
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 128,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 128,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": "float32",
    },
    "falcon": {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "layer_norm_epsilon": 1e-5,
        "alibi": False,
        "bias": False,
        "multi_query": True,
        "new_decoder_architecture": False,
        "parallel_attn": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "dtype": "float32",
    },
}
# Models that return a vector per token instead of logits.
ENCODERS: dict[str, Settings] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm_roberta": ROBERTA | {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta"},
    "xlm_roberta_xl": ROBERTA | {"architectures": ["XLMRobertaXLModel"], "model_type": "xlm-roberta-xl"},
    "camembert": ROBERTA | {"architectures": ["CamembertModel"], "model_type": "camembert"},
    "electra": BERT | {"architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 16},
    "electra_wide": BERT | {"architectures": ["ElectraModel"], "model_type": "electra", "embedding_size": 32},
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "deberta_v3": DEBERTA_V3,
    "deberta_v2": DEBERTA_V3
    | {
        "share_att_key": False,
        "position_buckets": -1,
        "max_relative_positions": 10,
        "norm_rel_ebd": "none",
        "position_biased_input": True,
        "type_vocab_size": 2,
        "embedding_size": 16,
    },
    "modernbert": MODERNBERT,
    "modernbert_biases": MODERNBERT
    | {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "num_hidden_layers": 4},
    "llama_bidirectional": LLAMA | {"architectures": ["LlamaModel"], "rope_theta": 1e4, "is_causal": False},
    "nomic": NOMIC,
    "nomic_native": BERT
    | {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "hidden_act": "silu",
        "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"},
    },
    "gte": BERT
    | {
        "architectures": ["GteModel"],
        "model_type": "gte",
        "type_vocab_size": 1,
        "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
    },
    "gte_ntk": GTE | {"rope_scaling": {"type": "ntk", "factor": 2.0}},
    "gte_mixed": GTE | {"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}, "type_vocab_size": 2},
    "jina_v2": JINA_BERT,
    "jina_v2_heads": JINA_BERT
    | {"hidden_size": 36, "num_attention_heads": 6, "feed_forward_type": "reglu", "pad_token_id": 0},
    "jina_v2_code": JINA_BERT
    | {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}},
    "jina_v3": JINA_V3,
    "jina_v3_native": BERT
    | {
        "architectures": ["JinaEmbeddingsV3Model"],
        "model_type": "jina_embeddings_v3",
        "type_vocab_size": 1,
        "rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"},
    },
    "jina_absolute": JINA_V3
    | {"position_embedding_type": "absolute", "max_position_embeddings": 66, "pad_token_id": 1},
    "albert": ALBERT,
    "t5": T5,
    "t5_gated": T5 | {"feed_forward_proj": "gated-gelu"},
    "mt5": T5
    | {"architectures": ["MT5EncoderModel"], "model_type": "mt5", "feed_forward_proj": "gated-gelu"},
    "gemma3_embedding": GEMMA3
    | {
        "architectures": ["Gemma3TextModel"],
        "use_bidirectional_attention": True,
        "num_hidden_layers": 3,
        "sliding_window_pattern": 3,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    },
    "qwen3_last": QWEN3 | {"architectures": ["Qwen3Model"], "tie_word_embeddings": True},
}
