"""One answer on the command line: the events of a request, and its statistics line."""

from __future__ import annotations

import functools
import queue
from collections.abc import Generator

from msgspec import Struct

from headrace import _native
from headrace.cli.terminal import size
from headrace.engine.client import LoadedModel
from headrace.engine.request import EngineEvent, EngineRequest, RequestFailed, RequestFinished
from headrace.loading.loader import usable_cores


def events(model: LoadedModel, request: EngineRequest) -> Generator[EngineEvent]:
    """The events of `request` as they arrive; raises its failure. Closing the generator cancels it.

    Raises the engine's validation errors.
    """
    arrived: queue.SimpleQueue[list[EngineEvent]] = queue.SimpleQueue()
    ticket = model.engine.submit(request, arrived.put)
    ended = False
    try:
        while not ended:
            for event in arrived.get():
                ended = ended or isinstance(event, RequestFinished | RequestFailed)
                if isinstance(event, RequestFailed):
                    raise event.error
                yield event
    finally:
        if not ended:
            ticket.cancel()


class Statistics(Struct, frozen=True):
    """Speed of one answer. `bandwidth_share` is the used share of this machine's read bandwidth, 0 to 1."""

    first_token_s: float
    tokens_per_s: float | None
    bandwidth_share: float | None
    bandwidth_bytes_per_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    def line(self) -> str:
        """The line to print."""
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
    """This machine's read bandwidth with `threads` threads, in bytes per second; measured once and cached."""
    return _native.read_bandwidth(_native.Pool(threads or usable_cores()))


def statistics(model: LoadedModel, done: RequestFinished, threads: int | None) -> Statistics:
    """The answer's speed, compared with the machine's read bandwidth."""
    usage, timing = done.usage, done.timing
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
