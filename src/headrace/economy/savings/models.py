"""The models of the stacked bill: the shipped small one, a large one, and the encoder of the student."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace as changed

from headrace.bench.random_checkpoint import RandomCheckpoint, read_config_file
from headrace.chat.messages import Message
from headrace.chat.prompt import prepare as prepare_conversation
from headrace.economy.savings.traffic import RecordedRequest
from headrace.engine.client import LoadedModel
from headrace.loading.loader import load_model, start
from headrace.loading.options import NO_DRAFT, EngineOptions
from headrace.loading.planned_model import prepare_checkpoint

SMALL_MODEL, ENCODER = "mini", "embed"
ROWS = 16
LARGE_SHAPE: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-05,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "dtype": "bfloat16",
}
"""A Llama of 107 million parameters, eight times the small model, with its vocabulary."""


def options_of(
    base: EngineOptions, *, quantized: bool = False, kv: bool = False, rows: int = ROWS, drafts: bool = False
) -> EngineOptions:
    """int8 or bfloat16 weights, bfloat16 or float32 keys and values, and whether drafts are tried."""
    return changed(
        base,
        quantization="int8" if quantized else "keep",
        kv_cache_dtype="bf16" if kv else "f32",
        max_num_seqs=rows,
        speculative="auto" if drafts else "off",
        speculative_model=NO_DRAFT,
        speculative_layers=None,
    )


def load_small(options: EngineOptions) -> LoadedModel:
    """The small model."""
    return load_model(SMALL_MODEL, options)


def load_large(config: Path | None, options: EngineOptions, tokenizer_of: LoadedModel) -> LoadedModel:
    """A model of the config's shape (None: LARGE_SHAPE) with random weights, which has the small one's
    tokens. It is as fast as one with trained weights; what it writes means nothing."""
    shape = dict(LARGE_SHAPE) if config is None else read_config_file(config)
    prepared = prepare_checkpoint(
        RandomCheckpoint(shape), options, "large", Path("large"), tokenizer_of.tokenizer, None
    )
    return start(prepared, options)


def load_encoder(options: EngineOptions) -> LoadedModel:
    """The encoder."""
    auto = changed(options_of(options), quantization="auto", kv_cache_dtype="auto", max_num_seqs=64)
    return load_model(ENCODER, changed(auto, max_batch_tokens=max(512, auto.max_batch_tokens)))


def small_prompt(model: LoadedModel, request: RecordedRequest) -> tuple[int, ...]:
    """Tokens for the small model, which needs no instruction."""
    if model.template is None:
        return tuple(model.tokenizer.encode_prompt(request.prompt))
    conversation = prepare_conversation(model.template, [Message("user", request.prompt)])
    return tuple(model.tokenizer.encode(conversation.text, add_special=False))


def large_prompt(model: LoadedModel, request: RecordedRequest) -> tuple[int, ...]:
    """Tokens for the large model: the instruction, then the request."""
    return tuple(model.tokenizer.encode_prompt(f"{request.instruction}\n{request.prompt}"))
