"""One answer on the command line: its text as it comes, and its statistics line."""

from __future__ import annotations

import functools
import sys

from msgspec import Struct

from headrace import _native
from headrace.cli.terminal import size
from headrace.inference.completion import Completion, CompletionChunk
from headrace.llm import LLM
from headrace.loading.loader import usable_cores

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class AnswerPrinter:
    """Writes an answer to stdout as it comes. Reasoning is shown on a terminal only, dimmed, before it."""

    def __init__(self, *, echo: bool = True) -> None:
        self._echo = echo
        self._terminal = sys.stdout.isatty()
        self._dimmed = False
        self.text = ""

    def print(self, chunk: CompletionChunk) -> None:
        """Write a chunk."""
        if chunk.choice != 0:
            return
        self.text += chunk.text
        if not self._echo:
            return
        if chunk.reasoning and self._terminal:
            self._write(("" if self._dimmed else DIM) + chunk.reasoning)
            self._dimmed = True
        if chunk.text:
            self._write((PLAIN + "\n" if self._dimmed else "") + chunk.text)
            self._dimmed = False

    def end(self) -> None:
        """Finish the line on a terminal."""
        if self._echo and self._terminal:
            self._write((PLAIN if self._dimmed else "") + "\n")
        self._dimmed = False

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


class Statistics(Struct, frozen=True):
    """Speed of one answer. `bandwidth_share` is that of this machine's read bandwidth, 0 to 1."""

    first_token_s: float
    tokens_per_s: float | None
    bandwidth_share: float | None
    bandwidth_bytes_per_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def line(self) -> str:
        """For people."""
        parts = [f"first token after {self.first_token_s * 1000:.0f} ms"]
        if self.tokens_per_s is not None and self.bandwidth_share is not None:
            limit = size(self.bandwidth_bytes_per_s)
            parts.append(f"{self.tokens_per_s:,.1f} tokens/s")
            share = f"{self.bandwidth_share:.{0 if self.bandwidth_share >= 0.1 else 1}%}"
            parts.append(f"{share} of this machine's memory bandwidth ({limit}/s)")
        parts.append(f"{self.completion_tokens} token{'s' * (self.completion_tokens != 1)}")
        parts.append(f"prompt {self.prompt_tokens} ({self.cached_tokens} cached)")
        return " · ".join(parts)


@functools.cache
def read_bandwidth(threads: int | None) -> float:
    """Bytes per second that this machine reads from memory with that many threads; measured once."""
    return _native.read_bandwidth(_native.Pool(threads or usable_cores()))


def statistics(llm: LLM, completion: Completion, threads: int | None) -> Statistics:
    """The speed of an answer, also as a share of the machine's read bandwidth."""
    model, usage, timing = llm.model, completion.usage, completion.timing
    decode_s = timing.total_s - timing.first_token_s
    rate = (usage.completion_tokens - 1) / decode_s if usage.completion_tokens > 1 and decode_s > 0 else None
    limit = read_bandwidth(threads)
    share = None if rate is None else rate * model.plan.weight_bytes_per_token / limit
    return Statistics(
        first_token_s=timing.first_token_s,
        tokens_per_s=rate,
        bandwidth_share=share,
        bandwidth_bytes_per_s=limit,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
    )
