"""Makes tests/goldens: tiny random checkpoints and what `transformers` computes from them.

Needs torch and transformers (`pip install headrace[train]`); the tests that read the goldens need neither.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

PROMPT_TOKENS = 24
GREEDY_TOKENS = 64
# A greedy token is only evidence where the runner-up is clearly behind, relative to the largest logit.
SMALLEST_GAP = 1e-3
MOST_SEEDS = 200

Settings = dict[str, object]

LLAMA: Settings = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "float32",
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "rope_theta": 1e4}
QWEN2 = LLAMA | {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "use_sliding_window": False,
}
QWEN3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "head_dim": 16,
    "attention_bias": False,
}
MIXTRAL = LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rope_theta": 1e4,
}
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "intermediate_size": 48,
    "moe_intermediate_size": 20,
    "num_experts": 12,
    "num_experts_per_tok": 3,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DEEPSEEK_V3 = LLAMA | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "intermediate_size": 40,
    "moe_intermediate_size": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "num_nextn_predict_layers": 0,
    "rope_theta": 1e4,
}
GPT_OSS = LLAMA | {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 3,
    "head_dim": 16,
    "intermediate_size": 32,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "attention_bias": True,
    "rope_theta": 150000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 64,
    },
}
STARCODER2 = LLAMA | {
    "intermediate_size": 64,
    "architectures": ["Starcoder2ForCausalLM"],
    "model_type": "starcoder2",
    "norm_epsilon": 1e-5,
    "hidden_act": "gelu_pytorch_tanh",
    "use_bias": True,
    "rope_theta": 1e5,
}
PHI3_LONGROPE = LLAMA | {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "rope_theta": 1e4,
    # `transformers` changes over to the long factors beyond it: the prompt is there already.
    "original_max_position_embeddings": 16,
    "pad_token_id": None,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0, 1.1, 1.3, 1.6],
        "long_factor": [1.5, 2.5, 6.0, 14.0],
    },
}
GEMMA2 = LLAMA | {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "rms_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 16,
    "tie_word_embeddings": True,
    "rope_theta": 1e4,
    "query_pre_attn_scalar": 24,
    "sliding_window": 8,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3 = GEMMA2 | {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "num_key_value_heads": 1,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
}
GPT_NEOX: Settings = {
    "architectures": ["GPTNeoXForCausalLM"],
    "model_type": "gpt_neox",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 512,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "use_parallel_residual": True,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "float32",
}
MAMBA2: Settings = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "vocab_size": 128,
    "hidden_size": 32,
    "expand": 2,
    "num_heads": 4,
    "head_dim": 16,
    "state_size": 8,
    "n_groups": 1,
    "conv_kernel": 4,
    "chunk_size": 8,
    "num_hidden_layers": 2,
    "layer_norm_epsilon": 1e-5,
    "time_step_limit": [0.0, float("inf")],
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
    "dtype": "float32",
}

# Lengths are such that a prompt with its 64 tokens passes the original context.
LLAMA3_ROPE: Settings = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE: Settings = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# Both spellings occur: `rope_theta` beside `rope_scaling`, and `rope_parameters`, new with transformers 5.
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
BERT: Settings = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "dtype": "float32",
}
MODERNBERT: Settings = {
    "architectures": ["ModernBertModel"],
    "model_type": "modernbert",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "hidden_activation": "gelu",
    "global_attn_every_n_layers": 2,
    "local_attention": 8,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "norm_eps": 1e-5,
    **dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0),
    "dtype": "float32",
}
# Those that give a vector for each token instead of logits.
ENCODERS: dict[str, Settings] = {
    "bert": BERT,
    "modernbert": MODERNBERT,
    "modernbert_biases": MODERNBERT
    | {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "num_hidden_layers": 4},
    "llama_bidirectional": LLAMA | {"architectures": ["LlamaModel"], "rope_theta": 1e4, "is_causal": False},
    "qwen3_last": QWEN3 | {"architectures": ["Qwen3Model"], "tie_word_embeddings": True},
}
# Where `transformers` has come to call a tensor otherwise than checkpoints do: its name, theirs.
NAMES_IN_FILES = {"gpt_neox": ("lm_head.", "embed_out.")}
# An expert's gate, up and down projections as checkpoints name them; `transformers` holds all experts in two.
EXPERTS = {
    "mixtral": ("mlp.", "block_sparse_moe.", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp.", "mlp.", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v2": ("mlp.", "mlp.", ("gate_proj", "up_proj", "down_proj")),
    "deepseek_v3": ("mlp.", "mlp.", ("gate_proj", "up_proj", "down_proj")),
}
TABLES = ("word_embeddings", "wte", "embed_in")


def learned(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """What a checkpoint holds: the parameters, and the biases by which DeepSeek balances its experts."""
    yield from model.named_parameters()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name.endswith("correction_bias"))


def fill(model: PreTrainedModel, generator: torch.Generator) -> None:
    """Random weights that keep activations near 1 and make every part matter, biases and norm scales too."""
    table_scale = float(getattr(model.get_input_embeddings(), "embed_scale", 1.0))  # Gemma multiplies by it
    for name, parameter in learned(model):
        draw = torch.randn(parameter.shape, generator=generator)
        if name.endswith("bias"):
            value = 0.3 * draw
        elif name.endswith("A_log"):  # some heads remember for long, some for a few tokens
            value = draw - 2
        elif parameter.dim() == 1:
            value = 1 + 0.2 * draw
        elif "embed_tokens" in name:
            value = draw / table_scale
        elif "wpe" in name:  # what keeps GPT-2 from repeating itself
            value = 3 * draw
        elif any(table in name for table in TABLES):  # small, as the tied ones are also output matrices
            value = 0.1 * draw
        elif "lm_head" in name or "embed_out" in name:
            value = 3 * draw / parameter.shape[1] ** 0.5
        elif name.endswith(("mlp.gate.weight", "mlp.router.weight")):  # a router: its choices are clear
            value = 4 * draw / parameter.shape[1] ** 0.5
        else:
            value = 1.5 * draw / parameter.shape[-1] ** 0.5
        parameter.data.copy_(value)


@torch.no_grad()
def greedy(model: PreTrainedModel, prompt: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Logits of the prompt, the greedy tokens after it, and the smallest relative gap to a runner-up.

    Every step computes the whole sequence anew, so no cache of `transformers` takes part.
    """
    tokens, smallest_gap = prompt, float("inf")
    prompt_logits = model(prompt[None], use_cache=False).logits[0]
    for _ in range(GREEDY_TOKENS):
        last = model(tokens[None], use_cache=False).logits[0, -1]
        best = last.topk(2).values
        smallest_gap = min(smallest_gap, ((best[0] - best[1]) / last.abs().max()).item())
        tokens = torch.cat([tokens, last.argmax()[None]])
    return prompt_logits, tokens[len(prompt) :], smallest_gap


def stored_tensors(model: PreTrainedModel, model_type: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's parameters as checkpoints of its type name them and cut them up."""
    new, old = NAMES_IN_FILES.get(model_type, ("", ""))
    block, block_in_files, (gate, up, down) = EXPERTS.get(model_type, ("", "", ("", "", "")))
    for name, parameter in learned(model):
        tensor, name = parameter.detach(), name.replace(new, old)
        at, fused, kind = name.partition("mlp.experts.")
        if not fused or model_type not in EXPERTS:
            is_router = name.endswith("mlp.gate.weight")
            yield name.replace(block, block_in_files) if is_router else name, tensor
            continue
        at += block_in_files
        for e, expert in enumerate(tensor):
            if kind == "down_proj":
                yield f"{at}experts.{e}.{down}.weight", expert
            else:
                for part, rows in zip((gate, up), expert.chunk(2), strict=True):
                    yield f"{at}experts.{e}.{part}.weight", rows


def make(folder: Path, settings: Settings) -> str:
    """Writes one folder; returns a line about it. Tries seeds until no greedy step is nearly tied."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    stored = {"float32": torch.float32, "bfloat16": torch.bfloat16}[str(settings["dtype"])]
    config = AutoConfig.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    for seed in range(MOST_SEEDS):
        generator = torch.Generator().manual_seed(seed)
        fill(model, generator)
        for parameter in model.parameters():  # what is computed with is exactly what is stored
            parameter.data.copy_(parameter.data.to(stored).float())
        prompt = torch.randint(0, config.vocab_size, (PROMPT_TOKENS,), generator=generator)
        logits, tokens, gap = greedy(model, prompt)
        # A run that soon repeats itself tests little.
        if gap >= SMALLEST_GAP and len(tokens.unique()) >= GREEDY_TOKENS // 4:
            break
    else:
        raise SystemExit(f"{folder.name}: no seed below {MOST_SEEDS} gave well-separated greedy tokens")
    weights = {
        name: tensor.to(stored).contiguous()
        for name, tensor in stored_tensors(model, str(settings["model_type"]))
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    golden = {"prompt": prompt.int(), "logits": logits.contiguous(), "greedy": tokens.int()}
    # One entry: the order of several in the file would change from run to run.
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, seed {seed}"
    save_file(golden, folder / "golden.safetensors", metadata={"made_with": made_with})
    for file in folder.iterdir():
        file.chmod(0o644)  # save_file leaves its files to their owner alone
    return f"{folder.name}: seed {seed}, gap {gap:.1e}, {len(tokens.unique())} different tokens"


@torch.no_grad()
def make_encoder(folder: Path, settings: Settings) -> str:
    """Writes one folder of a model without an output matrix; returns a line about it. The second half of the
    tokens is the second text of a pair, where the model tells them apart."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    config = AutoConfig.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = AutoModel.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(0)
    fill(model, generator)
    prompt = torch.randint(0, config.vocab_size, (PROMPT_TOKENS,), generator=generator)
    types = (torch.arange(PROMPT_TOKENS) >= PROMPT_TOKENS // 2).long()
    more = {"token_type_ids": types[None]} if settings["model_type"] == "bert" else {}
    states = model(prompt[None], attention_mask=torch.ones(1, PROMPT_TOKENS), **more).last_hidden_state[0]
    weights = {name: p.detach().contiguous() for name, p in model.named_parameters() if "pooler" not in name}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}, seed 0"
    golden = {"prompt": prompt.int(), "types": types.int(), "states": states.contiguous()}
    save_file(golden, folder / "golden.safetensors", metadata={"made_with": made_with})
    for file in folder.iterdir():
        file.chmod(0o644)  # save_file leaves its files to their owner alone
    return f"{folder.name}: states of {states.abs().mean():.2f} on average"


def main() -> int:
    """Makes all goldens, or those named."""
    parser = argparse.ArgumentParser(description="Makes the golden checkpoints of the tests.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which of {', '.join(CONFIGS | ENCODERS)}; all without"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "goldens")
    options = parser.parse_args()
    known = CONFIGS | ENCODERS
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no golden is called {', '.join(unknown)}; known: {', '.join(known)}")
    for name in options.names or known:
        encodes = name in ENCODERS
        line = (
            make_encoder(options.out / "encoders" / name, known[name])
            if encodes
            else make(options.out / name, known[name])
        )
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
