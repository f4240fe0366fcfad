"""Earlier questions that are like one: all but the last user turn is the same, tenant and model, too."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.gateway.near_gate import NearGate
from headrace.gateway.near_index import NearIndex
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity, last_user_turn, partition_of
from headrace.gateway.text_vector import text_vector
from headrace.inference.call_context import CallContext
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.storage.cached_answers import StoredAnswer

LEAST_FOR_DRAFT = 0.6
MAX_PARTITIONS = 4096
"""That have an index; those that were asked longest ago are left out."""

Embed = Callable[[str, CallContext], Awaitable[NDArray[np.float32] | None]]


async def without_model(text: str, call: CallContext) -> NDArray[np.float32] | None:
    """The vector of words, for which no model is needed."""
    return text_vector(text)


class Question(Struct, frozen=True):
    """A request as near ones see it."""

    text: str
    partition: bytes
    vector: NDArray[np.float32]


class NearQuestions:
    """The indexes of all partitions. `embed` makes vectors whose length is 1."""

    def __init__(self, cache: ResponseCache, risk: float, embed: Embed = without_model) -> None:
        self._cache, self._risk, self._embed = cache, risk, embed
        self._indexes: OrderedDict[bytes, NearIndex] = OrderedDict()
        self._gates: dict[bytes, NearGate] = {}
        cache.dropped.append(self._dropped)
        for answer in cache.entries:
            self.added(answer)

    async def question(
        self, request: GenerationRequest, identity: ModelIdentity, tenant: bytes, call: CallContext
    ) -> Question | None:
        """The question of a request; None where it has none."""
        if not isinstance(request, ChatRequest) or request.context:
            return None
        turn = last_user_turn(request)
        text = None if turn is None else request.messages[turn].content
        vector = await self._embed(text, call) if text else None
        if text is None or vector is None or not vector.any():
            return None
        return Question(text, partition_of(request, identity, tenant), vector)

    def nearest(self, question: Question, count: int, least: float) -> list[tuple[float, StoredAnswer]]:
        """Answers to questions that are like it, the nearest first."""
        index = self._indexes.get(question.partition)
        if index is None or index.size != len(question.vector):
            return []
        self._indexes.move_to_end(question.partition)
        found = [(near, self._cache.find(id)) for near, id in index.search(question.vector, count, least)]
        return [(near, one) for near, one in found if one is not None]

    def gate(self, question: Question) -> NearGate:
        """What decides about near answers to such questions."""
        return self._gates.setdefault(question.partition, NearGate(self._risk))

    def added(self, answer: StoredAnswer) -> None:
        """An answer is kept."""
        if not answer.partition or len(answer.vector) % 256:
            return
        vector = np.frombuffer(answer.vector, np.float32)
        index = self._indexes.get(answer.partition)
        if index is None or index.size != len(vector):
            index = self._indexes[answer.partition] = NearIndex(len(vector))
        index.add(answer.key, vector)
        self._indexes.move_to_end(answer.partition)
        if len(self._indexes) > MAX_PARTITIONS:
            partition, _ = self._indexes.popitem(last=False)
            self._gates.pop(partition, None)

    def _dropped(self, answer: StoredAnswer) -> None:
        index = self._indexes.get(answer.partition)
        if index is not None:
            index.remove(answer.key)
            if not len(index):
                del self._indexes[answer.partition]
