"""The speed of one answer, also as a share of what this machine can read from memory."""

from __future__ import annotations

import sys

from msgspec import Struct

from headrace.cli.terminal import aside, size
from headrace.config.settings import Settings
from headrace.executors.cpu_cache import LEAST_CACHES, cache_bytes
from headrace.executors.machine_limits import machine_limits, raised
from headrace.inference.completion import Completion
from headrace.llm import LLM
from headrace.loading.loader import usable_cores


class Statistics(Struct, frozen=True):
    """Speed of one answer; tokens per second after the first one. `bandwidth_share`, 0 to 1, is that of this
    machine's read bandwidth; both are None where the weights come from the processor's caches, or where a
    step verified several drafted tokens."""

    first_token_s: float
    tokens_per_s: float | None
    bandwidth_share: float | None
    bandwidth_bytes_per_s: float | None
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def short(self) -> str:
        """For people who did not ask."""
        return " · ".join(self._speed())

    def line(self) -> str:
        """For people who did."""
        parts = self._speed()
        if self.bandwidth_share is not None and self.bandwidth_bytes_per_s is not None:
            limit = size(self.bandwidth_bytes_per_s)
            parts.append(f"{self.bandwidth_share:.0%} of this machine's memory bandwidth ({limit}/s)")
        parts.append(f"{self.completion_tokens} token{'s' * (self.completion_tokens != 1)}")
        parts.append(f"prompt {self.prompt_tokens} ({self.cached_tokens} cached)")
        return " · ".join(parts)

    def _speed(self) -> list[str]:
        rate = [] if self.tokens_per_s is None else [f"{self.tokens_per_s:,.1f} tokens/s"]
        return [*rate, f"first token after {self.first_token_s * 1000:,.0f} ms"]


class StatisticsReader:
    """The statistics of a model's answers, one after the other.

    `shown` True prints everything, None only the speed and only where both streams are a terminal, False
    nothing.
    """

    def __init__(self, llm: LLM, settings: Settings, *, shown: bool | None) -> None:
        self._llm = llm
        self._settings = settings
        self._shown = shown
        self._drafted = llm.model.engine.status().drafted

    def show(self, completion: Completion) -> None:
        """Print those of an answer to stderr, dimmed."""
        if self._shown:
            aside(self.read(completion).line())
        elif self._shown is None and sys.stdout.isatty() and sys.stderr.isatty():
            aside(self._read(completion, None).short())

    def read(self, completion: Completion) -> Statistics:
        """All of them; the first time on a machine its bandwidth is measured where a share can be told."""
        drafted, before = self._llm.model.engine.status().drafted, self._drafted
        self._drafted = drafted
        nbytes = self._llm.model.plan.weight_bytes_per_token
        told = drafted == before and nbytes >= LEAST_CACHES * cache_bytes()
        return self._read(completion, nbytes if told else None)

    def _read(self, completion: Completion, nbytes_per_token: int | None) -> Statistics:
        usage, timing = completion.usage, completion.timing
        decode_s, share, limit = timing.total_s - timing.first_token_s, None, None
        rate = None
        if usage.completion_tokens > 1 and decode_s > 0:
            rate = (usage.completion_tokens - 1) / decode_s
            if nbytes_per_token is not None:
                limit = self._limit(rate * (nbytes_per_token - cache_bytes()))
                share = min(rate * nbytes_per_token / limit, 1.0)
        return Statistics(
            first_token_s=timing.first_token_s,
            tokens_per_s=rate,
            bandwidth_share=share,
            bandwidth_bytes_per_s=limit,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
        )

    def _limit(self, read_bytes_per_s: float) -> float:
        """The machine's read bandwidth, at least what was just read from memory."""
        cache = self._settings.cache_folder
        limits = machine_limits(self._settings.threads or usable_cores(), cache)
        return raised(limits, read_bytes_per_s, cache).read_bytes_per_s
