"""What a caller may ask of sampling, checked at the door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from headrace.errors import InvalidRequest

MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_N = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 2048  # of all stop strings together: each costs memory for every request in the queue
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 2**19


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
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    logprobs: int | None = None  # None: off; 0..20: the chosen token's, and that many alternatives

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_collections()
        self._check_allowed()
        for name in ("include_stop_str_in_output", "ignore_eos"):
            _type(name, getattr(self, name), bool)

    def _check_numbers(self) -> None:
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

    def _check_collections(self) -> None:
        _type("logit_bias", self.logit_bias, Mapping)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS} are allowed",
                param="logit_bias",
            )
        for token, bias in self.logit_bias.items():
            _type("logit_bias", token, int)
            _type("logit_bias", bias, float)
            if token < 0 or not -100.0 <= bias <= 100.0:
                raise InvalidRequest(
                    f"logit_bias[{token}] = {bias}: ids are >= 0 and biases between -100 and 100",
                    param="logit_bias",
                )
        _entries("stop", self.stop, str)
        _entries("stop_token_ids", self.stop_token_ids, int)
        if len(self.stop) > MAX_STOPS or "" in self.stop:
            raise InvalidRequest(
                f"stop takes up to {MAX_STOPS} non-empty strings, got {len(self.stop)}", param="stop"
            )
        if sum(map(len, self.stop)) > MAX_STOP_CHARACTERS:
            raise InvalidRequest(
                f"stop has {sum(map(len, self.stop)):,} characters, at most {MAX_STOP_CHARACTERS:,} are "
                "allowed",
                param="stop",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids):,} entries, "
                f"at most {MAX_STOP_TOKEN_IDS:,} are allowed",
                param="stop_token_ids",
            )

    def _check_allowed(self) -> None:
        if self.allowed_token_ids is None:
            return
        _entries("allowed_token_ids", self.allowed_token_ids, int)
        if not 1 <= len(self.allowed_token_ids) <= MAX_ALLOWED_TOKEN_IDS:
            raise InvalidRequest(
                f"allowed_token_ids has {len(self.allowed_token_ids):,} entries, "
                f"1 to {MAX_ALLOWED_TOKEN_IDS:,} are allowed",
                param="allowed_token_ids",
            )


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Mapping: "a mapping",
}


def _type(name: str, value: object, kind: type) -> None:
    """Refuse a value of another type, for which only the kernels would find an error; True is no number."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise InvalidRequest(f"{name} is {str(value)[:80]!r}, it must be {_WORDS[kind]}", param=name)


def _entries(name: str, values: object, kind: type) -> None:
    if not isinstance(values, tuple):
        raise InvalidRequest(f"{name} is {str(values)[:80]!r}, it must be a tuple", param=name)
    for value in cast("tuple[object, ...]", values):
        _type(name, value, kind)


def _range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Refuse values outside [low, high] (or (low, high]) and NaN; whole numbers where `low` is one."""
    _type(name, value, type(low))
    if not low <= value <= high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidRequest(
            f"{name} is {str(value)[:40]}, it must be in {bracket}{low}, {high}]", param=name
        )
