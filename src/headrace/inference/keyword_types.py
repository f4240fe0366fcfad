"""Types of the keyword arguments of `LLM` and `AsyncLLM`, for editors and type checkers.

A test holds them equal to the tables that check the values at run time: `SamplingParams`, `EngineOptions`
and `inference/keywords.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from headrace.config.model_settings import (
    Backend,
    KvCacheDtype,
    PoolingName,
    Quantization,
    SloPolicy,
    Speculative,
)
from headrace.grammar.constraint import Constraint
from headrace.inference.urgency import ServiceTier


class ModelKeywords(TypedDict, total=False):
    """Options of a model, as `EngineOptions` describes them."""

    quantization: Quantization
    kv_cache_dtype: KvCacheDtype
    quality: Mapping[str, float] | None
    max_model_len: int | None
    threads: int | None
    max_num_seqs: int
    max_batch_tokens: int
    pp: int
    tensor_parallel_size: int
    kv_cache_memory: int | None
    backend: Backend
    pooling: PoolingName
    speculative: Speculative
    speculative_model: str | None
    speculative_layers: int | None
    share: float
    max_turn_ms: float
    slo: Mapping[str, float] | None
    slo_policy: SloPolicy
    slo_fallback: str | None
    cache_dir: Path | str | None
    offline: bool
    memory_bytes: int | None


class SamplingKeywords(TypedDict, total=False):
    """Sampling parameters, as `SamplingParams` describes them."""

    temperature: float
    dynatemp_range: float
    dynatemp_exponent: float
    top_n_sigma: float
    top_k: int
    typical_p: float
    top_p: float
    min_p: float
    xtc_probability: float
    xtc_threshold: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    repeat_last_n: int
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Sequence[str]
    bad_words: Sequence[str]
    banned_strings: Sequence[str]
    logit_bias: Mapping[int, float]
    seed: int | None
    n: int
    use_beam_search: bool
    length_penalty: float
    early_stopping: bool | Literal["never"]
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    allowed_token_ids: Sequence[int] | None
    logprobs: int | None
    prompt_logprobs: int | None


class GenerateKeywords(SamplingKeywords, total=False):
    """Keywords of `generate` and `stream`: sampling, what the output must match, scaling, deadlines."""

    json_schema: Mapping[str, Any] | str | type | None
    json_object: bool | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    sql: Mapping[str, Sequence[str]] | None
    constraint: Constraint | None
    vote: str | Mapping[str, Any] | Callable[[str], Any] | None
    best_by: str | Mapping[str, Any] | Callable[[str], float] | None
    max_total_tokens: int | None
    deadline_s: float | None
    priority: int | None
    service_tier: ServiceTier | None
    slo: Mapping[str, float] | None
    disable_additional_properties: bool | None
    finish_within_max_tokens: bool | None
    guard: str | Sequence[str] | Mapping[str, Any] | None
    explain: bool
    adapter: str | None


class ChatKeywords(GenerateKeywords, total=False):
    """Keywords of `chat` and `stream_chat`: also tools, template and reasoning."""

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    tool_format: str | None
    template_variables: Mapping[str, Any] | None
    reasoning_effort: str | None
    thinking_token_budget: int | None
    min_thinking_tokens: int | None
    thinking_continuation: str | None
