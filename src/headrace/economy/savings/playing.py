"""Requests played to engines at their times, and what came back."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from headrace.engine.client import LoadedModel
from headrace.engine.request import (
    Delta,
    Embedding,
    EmbedParams,
    EngineEvent,
    EngineRequest,
    RequestFailed,
    RequestFinished,
)
from headrace.errors import HeadraceError


class PlayedRequest(Struct):
    """What an engine gave, with times in seconds after the start of the play."""

    begun_s: float = 0.0
    first_s: float = 0.0
    done_s: float = 0.0
    text: str = ""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    vectors: NDArray[np.float32] | None = None
    error: HeadraceError | None = None

    @property
    def mean_logprob(self) -> float:
        """Of the tokens of the answer: how sure the model was."""
        return float(np.mean(self.logprobs)) if self.logprobs else -np.inf


class PlayedCall(Struct, frozen=True):
    """A request for an engine at its time."""

    at_s: float
    model: LoadedModel
    request: EngineRequest


def play(calls: Sequence[PlayedCall]) -> list[PlayedRequest]:
    """Submit each at its time, ascending, and wait for all. Raises the first error of a request."""
    results = [PlayedRequest() for _ in calls]
    ended = threading.Semaphore(0)
    start_s = time.monotonic()
    for call, result in zip(calls, results, strict=True):
        time.sleep(max(0.0, call.at_s - (time.monotonic() - start_s)))
        result.begun_s = time.monotonic() - start_s

        def sink(events: list[EngineEvent], result: PlayedRequest = result) -> None:
            for event in events:
                _note(result, event, time.monotonic() - start_s)
                if isinstance(event, RequestFinished | RequestFailed):
                    ended.release()

        call.model.engine.submit(call.request, sink)
    for _ in calls:
        ended.acquire()
    for result in results:
        if result.error is not None:
            raise result.error
    return results


def play_at_once(model: LoadedModel, requests: Sequence[EngineRequest]) -> list[PlayedRequest]:
    """All at the same time."""
    return play([PlayedCall(0.0, model, request) for request in requests])


def embedded(model: LoadedModel, texts: Sequence[str]) -> NDArray[np.float32]:
    """Vectors of length 1 [texts, size]."""
    requests = [
        EngineRequest(prompt=tuple(model.tokenizer.encode_prompt(text)), embed=EmbedParams())
        for text in texts
    ]
    rows = [result.vectors for result in play_at_once(model, requests)]
    vectors = np.concatenate([row for row in rows if row is not None])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def busy_seconds(results: Sequence[PlayedRequest]) -> float:
    """The time in which a request was there."""
    total, until = 0.0, 0.0
    for result in sorted(results, key=lambda one: one.begun_s):
        total += max(0.0, result.done_s - max(until, result.begun_s))
        until = max(until, result.done_s)
    return total


def _note(result: PlayedRequest, event: EngineEvent, now_s: float) -> None:
    if isinstance(event, Delta):
        result.first_s = result.first_s or now_s
        result.text += event.text
        result.tokens += event.tokens
        result.logprobs += [one.logprob for one in event.logprobs]
    elif isinstance(event, Embedding):
        result.vectors = event.vectors
    elif isinstance(event, RequestFinished):
        result.done_s = now_s
    elif isinstance(event, RequestFailed):
        result.error = event.error
