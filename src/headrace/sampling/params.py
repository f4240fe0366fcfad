"""Sampling parameters of a request, and their validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.errors import InvalidRequest

MAX_LOGIT_BIAS = 1024
MAX_TOP_LOGPROBS = 20
MAX_N = 128
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 2048  # total over all stop strings; each request in the queue holds them in memory
MAX_STOP_TOKEN_IDS = 1024
MAX_ALLOWED_TOKEN_IDS = 2**19
MAX_BANNED = 128  # for bad_words, and for banned_strings
MAX_BREAKERS = 32


class SamplingParams(Struct, frozen=True, kw_only=True):
    """Sampling parameters of one request; `sampling/reference.py` defines their effect.

    Processors apply in llama.cpp's order: logit bias and penalties, dry, top_n_sigma, top_k, typical_p,
    top_p, min_p, xtc, temperature. Mirostat 1 or 2 replaces top_n_sigma to xtc. Temperature 0 takes the
    likeliest remaining token. `seed` None means a random seed, which is reported in the result.

    `repeat_last_n` is the number of tokens that the three penalties consider, `dry_penalty_last_n` the
    number that DRY considers; -1 means all. `bad_words` are never generated as the tokens that they encode
    to, with or without a leading space. `banned_strings` never appear in the output text, however they are
    tokenized.
    """

    temperature: float = 1.0
    dynatemp_range: float = 0.0  # 0: off
    dynatemp_exponent: float = 1.0
    top_n_sigma: float = 0.0  # 0 and -1: off
    top_k: int = 0  # 0: off
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    mirostat: int = 0  # 0: off; 1 or 2: its version
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = -1
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    bad_words: tuple[str, ...] = ()
    banned_strings: tuple[str, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])
    seed: int | None = None
    n: int = 1  # with beam search, also the number of beams
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    max_tokens: int | None = None  # None: up to the context length
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None  # None: all
    # None: off; 0..20: log-probability of the chosen token and of that many alternatives
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # the same for prompt tokens

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_mirostat()
        self._check_beam_search()
        self._check_collections()
        self._check_allowed()
        for name in ("include_stop_str_in_output", "ignore_eos", "use_beam_search"):
            _type(name, getattr(self, name), bool)

    def _check_numbers(self) -> None:
        for name, (low, high) in _RANGES.items():
            _range(name, getattr(self, name), low, high, open_low=name in _OPEN)
        if self.max_tokens is not None:
            _range("max_tokens", self.max_tokens, 1, 2**31 - 1)
            if self.min_tokens > self.max_tokens:
                raise InvalidRequest(
                    f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens})",
                    param="min_tokens",
                )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _range(name, getattr(self, name), 0, MAX_TOP_LOGPROBS)
        if self.seed is not None:
            _range("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_mirostat(self) -> None:
        if not self.mirostat:
            return
        if self.temperature == 0.0:
            raise InvalidRequest("mirostat needs a temperature above 0", param="mirostat")
        for name, off in TRUNCATION.items():
            if getattr(self, name) not in off:
                raise InvalidRequest(
                    f"mirostat replaces {name} ({getattr(self, name)}): leave one of them out",
                    param="mirostat",
                )

    def _check_beam_search(self) -> None:
        if self.early_stopping != "never":
            _type("early_stopping", self.early_stopping, bool)
        if not self.use_beam_search:
            for name, off in (("length_penalty", 1.0), ("early_stopping", False)):
                if getattr(self, name) != off:
                    raise InvalidRequest(f"{name} needs use_beam_search: leave it out", param=name)
            return
        for name, values in _NOT_OF_BEAMS.items():
            if getattr(self, name) not in values:
                raise InvalidRequest(
                    f"{name} has no effect on beam search, which returns the likeliest texts: leave it out",
                    param=name,
                )

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
        self._check_texts()
        _entries("stop_token_ids", self.stop_token_ids, int)
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids):,} entries, "
                f"at most {MAX_STOP_TOKEN_IDS:,} are allowed",
                param="stop_token_ids",
            )

    def _check_texts(self) -> None:
        for name, most in _TEXTS.items():
            texts: tuple[str, ...] = getattr(self, name)
            _entries(name, texts, str)
            if len(texts) > most or "" in texts:
                raise InvalidRequest(
                    f"{name} takes up to {most} non-empty strings, got {len(texts)}", param=name
                )
            characters = sum(map(len, texts))
            if characters > MAX_STOP_CHARACTERS:
                raise InvalidRequest(
                    f"{name} has {characters:,} characters, at most {MAX_STOP_CHARACTERS:,} are allowed",
                    param=name,
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


TRUNCATION: Mapping[str, tuple[float, ...]] = {
    "top_n_sigma": (0, -1),
    "top_k": (0,),
    "typical_p": (1,),
    "top_p": (1,),
    "min_p": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
}
"""Parameters that mirostat replaces, with the values that turn each off."""

_NOT_OF_BEAMS: Mapping[str, tuple[object, ...]] = {
    **TRUNCATION,
    "temperature": (1, 0),
    "mirostat": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "dry_multiplier": (0,),
    "bad_words": ((),),
    "banned_strings": ((),),
    "logit_bias": ({},),
    "stop": ((),),
    "allowed_token_ids": (None,),
    "prompt_logprobs": (None,),
}

_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "top_n_sigma": (-1.0, 1000.0),
    "top_k": (0, 2**31 - 1),
    "typical_p": (0.0, 1.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 0.5),
    "mirostat": (0, 2),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
    "repetition_penalty": (0.0, 100.0),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "repeat_last_n": (-1, 2**31 - 1),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "dry_allowed_length": (1, 2**31 - 1),
    "dry_penalty_last_n": (-1, 2**31 - 1),
    "n": (1, MAX_N),
    "length_penalty": (-10.0, 10.0),
    "min_tokens": (0, 2**31 - 1),
}
# the lowest value itself is excluded
_OPEN = ("dynatemp_exponent", "typical_p", "top_p", "repetition_penalty")
_TEXTS: Mapping[str, int] = {
    "stop": MAX_STOPS,
    "bad_words": MAX_BANNED,
    "banned_strings": MAX_BANNED,
    "dry_sequence_breakers": MAX_BREAKERS,
}


def with_defaults(defaults: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
    """A model's defaults overridden by the given values. Raises InvalidRequest as SamplingParams does. If
    mirostat or beam search is requested, defaults that conflict with it are dropped.
    """
    if given.get("use_beam_search"):
        given = {name: values[0] for name, values in _NOT_OF_BEAMS.items()} | dict(given)
    elif given.get("mirostat"):
        given = {name: values[0] for name, values in TRUNCATION.items()} | dict(given)
    return replace(defaults, **given)


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    Mapping: "a mapping",
}


def _type(name: str, value: object, kind: type) -> None:
    """Reject a value of another type, which the kernels would notice too late; bool is not a number."""
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        raise InvalidRequest(f"{name} is {str(value)[:80]!r}, it must be {_WORDS[kind]}", param=name)


def _entries(name: str, values: object, kind: type) -> None:
    if not isinstance(values, tuple):
        raise InvalidRequest(f"{name} is {str(values)[:80]!r}, it must be a tuple", param=name)
    for value in cast("tuple[object, ...]", values):
        _type(name, value, kind)


def _range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    """Reject values outside [low, high] (or (low, high]) and NaN; if `low` is an int, also non-integers."""
    _type(name, value, type(low))
    if not low <= value <= high or (open_low and value == low):
        bracket = "(" if open_low else "["
        raise InvalidRequest(
            f"{name} is {str(value)[:40]}, it must be in {bracket}{low}, {high}]", param=name
        )
