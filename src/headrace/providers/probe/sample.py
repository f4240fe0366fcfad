"""What one request to an endpoint came to, and what is kept of it."""

from __future__ import annotations

from msgspec import Struct

from headrace.inference.attempts import TokenCounts


class Answered(Struct, kw_only=True):
    """An answer as it came. Times in seconds from when the request was sent: `first_s` of the first token of
    any kind, `first_answer_s` of the first one after the reasoning. `failure` is a kind of failure, or None;
    "unsupported": the endpoint's API lacks a parameter, so nothing was sent.
    """

    text: str = ""
    first_s: float | None = None
    first_answer_s: float | None = None
    last_s: float | None = None
    total_s: float = 0.0
    finish: str = ""
    logprobs: int = 0
    tokens: TokenCounts | None = None
    usd: float = 0.0
    stated_usd: float | None = None
    failure: str | None = None
    message: str = ""

    @property
    def read(self) -> int | None:
        """Reported tokens of the prompt, cached ones too."""
        found = self.tokens
        return None if found is None else found.input + self.cached + found.cache_write + found.cache_write_1h

    @property
    def cached(self) -> int:
        """Reported tokens of the prompt that were read from a cache."""
        return 0 if self.tokens is None else self.tokens.cache_read

    @property
    def written(self) -> int | None:
        """Reported tokens of the answer with its reasoning."""
        return None if self.tokens is None else self.tokens.output + self.tokens.reasoning


class SpeedSample(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a length, of `parallel` at the same time. `own_read` and `own_written` are counts by the
    endpoint's own tokenizer: of the prompt without the template, and of the answer without its reasoning.
    `head_seen`: the answer has the code word of the prompt's first line."""

    prompt_tokens: int
    parallel: int
    failure: str | None = None
    message: str = ""
    first_s: float | None = None
    first_answer_s: float | None = None
    last_s: float | None = None
    total_s: float = 0.0
    read: int | None = None
    cached: int = 0
    written: int | None = None
    reasoning: int = 0
    own_read: int | None = None
    own_written: int | None = None
    head_seen: bool = False
    usd: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second after the first one; None where there were too few, or they came at once."""
        if self.failure or self.written is None or self.first_s is None or self.last_s is None:
            return None
        gap = self.last_s - self.first_s
        return (self.written - 1) / gap if self.written > 1 and gap > 0 else None


class QualitySample(Struct, frozen=True, kw_only=True):
    """One item of the suite."""

    item: str
    group: str
    right: bool
    failure: str | None = None
    answer: str = ""
    usd: float = 0.0


class CanarySample(Struct, frozen=True, kw_only=True):
    """One honesty check. `verdict`: ok, broken, unsupported, or unknown where nothing can be said."""

    canary: str
    verdict: str
    detail: str = ""
    usd: float = 0.0
