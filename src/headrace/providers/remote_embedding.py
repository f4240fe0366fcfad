"""One attempt to have texts embedded by one target. The whole reply comes at once."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np
from msgspec import Raw, Struct

from headrace.engine.request import Embedding, Timing, Usage
from headrace.inference.attempts import TokenCounts
from headrace.inference.events import InferenceEvent, InputEmbedded, PromptFinished
from headrace.inference.input_purpose import InputPurpose
from headrace.inference.requests import EmbeddingRequest
from headrace.providers.answer import MalformedAnswer
from headrace.providers.batches.stored_reply import StoredReply
from headrace.providers.bounds import embedding_bound
from headrace.providers.dialect import Outgoing
from headrace.providers.failure import AttemptFailed, Failure, without_secret
from headrace.providers.remote_attempt import BATCH, Sending, prompt_tokens
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage, openai_usage, usage_of, without_key
from headrace.struct_types import thread_safe

MAX_DIMENSIONS = 2**16


class _OpenAIVector(Struct):
    embedding: list[float]
    index: int = -1


class _OpenAIVectors(Struct):
    data: list[_OpenAIVector]
    usage: Raw = Raw()


class _GoogleVector(Struct):
    values: list[float]


class _GoogleVectors(Struct):
    embeddings: list[_GoogleVector]


class RemoteEmbedding:
    """See `RemoteAttempt`: the same, for an EmbeddingRequest that the target can honor."""

    WHAT = "vectors"

    def __init__(self, request: EmbeddingRequest, sending: Sending) -> None:
        self._request, self._sending = request, sending
        self.usage = ReportedUsage()
        self.fingerprint: str | None = None
        self.tier = "standard"
        self.first_content_s: float | None = None
        self._was_answered = False
        self._start_s = time.monotonic()

    @property
    def was_sent(self) -> bool:
        """Whether anything may have reached the target."""
        return self._sending.was_sent

    @property
    def plausible(self) -> TokenCounts | None:
        """As that of `RemoteAttempt`."""
        return TokenCounts(input=embedding_bound(self._request)) if self._was_answered else None

    async def batches(self) -> AsyncGenerator[Sequence[InferenceEvent]]:
        """One batch with all vectors. Raises AttemptFailed."""
        try:
            reply = await self._sending.send(self._outgoing())
            self._was_answered = True
            if isinstance(reply, StoredReply):
                self.tier = BATCH
            embedded = self._read(await reply.whole())
        except (MalformedAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            words = (
                str(error) if isinstance(error, MalformedAnswer) else f"sent no {self.WHAT} that can be read"
            )
            failure = Failure(phase="stream", kind="malformed", message=words, billed="yes")
            raise AttemptFailed(failure) from error
        except AttemptFailed as error:
            raise AttemptFailed(without_secret(error.failure, self._sending.key)) from error
        finally:
            self.usage = without_key(self.usage, self._sending.key)
        self.first_content_s = time.monotonic() - self._start_s
        yield [*(InputEmbedded(at, one) for at, one in enumerate(embedded)), *self._ends()]

    def _outgoing(self) -> Outgoing:
        return _outgoing(self._request, self._sending.target)

    def _read(self, body: bytes) -> list[Embedding]:
        """The vectors of a reply. Raises what `batches` makes a failure of."""
        if self._sending.target.row.embeddings == "google":
            reply = msgspec.json.decode(body, type=thread_safe(_GoogleVectors))
            vectors = [one.values for one in reply.embeddings]
        else:
            vectors = self._openai(body)
        return _checked(vectors, len(self._request.inputs))

    def _openai(self, body: bytes) -> list[list[float]]:
        found = msgspec.json.decode(body, type=thread_safe(_OpenAIVectors))
        self.usage = openai_usage(bytes(found.usage))
        if [one.index for one in found.data] == [-1] * len(found.data):
            return [one.embedding for one in found.data]
        if sorted(one.index for one in found.data) != list(range(len(found.data))):
            raise MalformedAnswer("sent vectors whose numbers are not those of the inputs")
        return [one.embedding for one in sorted(found.data, key=lambda one: one.index)]

    def _ends(self) -> list[PromptFinished]:
        if self.usage.tokens is not None:
            usage = usage_of(self.usage.tokens)
        else:
            words = "the target reports no token counts that can be right: these are estimates"
            self._sending.warn("usage", words)
            usage = Usage(prompt_tokens(self._request), 0, 0)
        took_s = time.monotonic() - self._start_s
        timing, nothing = Timing(0.0, took_s, took_s), Usage(0, 0, 0)
        count = len(self._request.inputs)
        return [PromptFinished(at, nothing if at else usage, timing, None) for at in range(count)]


def _outgoing(request: EmbeddingRequest, target: RemoteTarget) -> Outgoing:
    if target.row.embeddings == "google":
        return _google(request, target)
    body: dict[str, Any] = {
        "model": target.model,
        "input": [list(one) if isinstance(one, tuple) else one for one in request.inputs],
        "encoding_format": "float",
    }
    if request.dimensions is not None:
        body["dimensions"] = request.dimensions
    return Outgoing("/embeddings", msgspec.json.encode(body))


def _google(request: EmbeddingRequest, target: RemoteTarget) -> Outgoing:
    model = target.model.removeprefix("models/")
    kind = None if request.purpose is None else _google_task(request.purpose)
    common: dict[str, Any] = {"model": f"models/{model}"}
    if kind is not None:
        common["taskType"] = kind
    if request.dimensions is not None:
        common["outputDimensionality"] = request.dimensions
    entries = [{**common, "content": {"parts": [{"text": one}]}} for one in request.inputs]
    path = f"/models/{quote(model, safe='')}:batchEmbedContents"
    return Outgoing(path, msgspec.json.encode({"requests": entries}))


def _google_task(purpose: InputPurpose) -> str | None:
    """Google's word for what inputs are for, by the names of prompts that stand for it."""
    known = {
        "query": "RETRIEVAL_QUERY",
        "document": "RETRIEVAL_DOCUMENT",
        "classification": "CLASSIFICATION",
        "clustering": "CLUSTERING",
        "similarity": "SEMANTIC_SIMILARITY",
    }
    return next((word for name, word in known.items() if name in purpose.prompts), None)


def _checked(vectors: Sequence[Sequence[float]], count: int) -> list[Embedding]:
    """The vectors as they go on. Raises MalformedAnswer where they cannot be those of the inputs."""
    if len(vectors) != count:
        raise MalformedAnswer(f"sent {len(vectors):,} vectors for {count:,} inputs")
    sizes = {len(one) for one in vectors}
    if count and (len(sizes) != 1 or not 0 < min(sizes) <= MAX_DIMENSIONS):
        raise MalformedAnswer("sent vectors of different or impossible lengths")
    with np.errstate(over="ignore"):
        rows = np.asarray(vectors, dtype="<f4").reshape(count, -1) if count else np.empty((0, 1), "<f4")
    if not np.isfinite(rows).all():
        raise MalformedAnswer("sent vectors with numbers that are none")
    return [Embedding(1, row.tobytes()) for row in rows]
