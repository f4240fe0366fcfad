"""What a caller may ask of sampling, checked at the door."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import InvalidRequest

MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_N = 128
MAX_STOPS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Parameters of one request, in the field's usual names.

    Order of the chain: penalties and logit bias, top_k, top_p, min_p, temperature (as llama.cpp).
    temperature 0 is greedy. `seed` None means a random one, reported in the result.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None  # None: up to the context length
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None  # None: off; 0..20: the chosen token's, and that many alternatives

    def __post_init__(self) -> None:
        _range("temperature", self.temperature, 0.0, 100.0)
        _range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _range("min_p", self.min_p, 0.0, 1.0)
        _range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, open_low=True)
        _range("presence_penalty", self.presence_penalty, -100.0, 100.0)
        _range("frequency_penalty", self.frequency_penalty, -100.0, 100.0)
        _range("top_k", self.top_k, 0, 2**31 - 1)
        _range("n", self.n, 1, MAX_N)
        _range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.max_tokens is not None:
            _range("max_tokens", self.max_tokens, 1, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequest(
                    f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})",
                    param="min_tokens",
                )
        if self.logprobs is not None:
            _range("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if self.seed is not None:
            _range("seed", self.seed, -(2**63), 2**64 - 1)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS} are allowed",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            if token < 0 or not -100.0 <= bias <= 100.0:
                raise InvalidRequest(
                    f"logit_bias[{token}] = {bias}: ids are >= 0 and biases between -100 and 100",
                    param="logit_bias",
                )
        if len(self.stop) > MAX_STOPS or any(s == "" for s in self.stop):
            raise InvalidRequest(
                f"stop takes up to {MAX_STOPS} non-empty strings, got {len(self.stop)}", param="stop"
            )


def _range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuse values outside [low, high] (or (low, high]) and NaN, naming the parameter."""
    if math.isnan(value) or value > high or value < low or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidRequest(f"{name} is {value}, it must be in {bracket}{low}, {high}]", param=name)
