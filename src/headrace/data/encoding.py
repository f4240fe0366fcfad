"""Vectors for operators: each text once, and the same bytes whatever is computed with it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import numpy as np

from headrace.data.model_work import StatementWork, in_order_of_arrival, model_identity
from headrace.errors import ContextLengthExceeded
from headrace.inference.call_context import CallContext
from headrace.inference.encoder_inputs import encoder_inputs
from headrace.inference.keywords import new_id
from headrace.inference.requests import EmbeddingRequest
from headrace.ops.value import Array
from headrace.tasks.embed import check_pooled

AT_A_TIME = 256
"""Texts in one request."""
PAIRS_AT_A_TIME = 2048
"""Pairs whose vectors are in memory."""


class TextEncoder:
    """The embedder of an operator."""

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.size = 0

    async def open(self, work: StatementWork) -> str:
        """What names the model's weights. InvalidRequest where there is no embedder."""
        name = self.name or work.runner.able("embed")
        async with work.runner.lease(name, work.call(), "embed") as model:
            self.name, self.size = model.name, model.engine.limits.embedding_size
            return model_identity(model)

    async def tokens(self, work: StatementWork, texts: Sequence[str]) -> list[int]:
        """Of each text, as the model reads it."""
        call = work.call()
        async with work.runner.lease(self.name, call, "embed") as model:
            request = self._request(texts)
            found = await work.runner.in_thread(model, lambda: encoder_inputs(request, model, call))
            context = model.context_length
        counts = [len(one.ids) for one in found]
        if (longest := max(counts, default=0)) > context:
            raise ContextLengthExceeded(
                f"a text has {longest:,} tokens, the limit of {self.name} is {context:,}: shorten it",
                param="sql",
            )
        return counts

    async def vectors(
        self, work: StatementWork, texts: Sequence[str]
    ) -> AsyncGenerator[tuple[range, list[Array]]]:
        """Vectors [size] of portions of the texts, float32, of length 1 where the model makes them so."""
        portions = [
            range(start, min(start + AT_A_TIME, len(texts))) for start in range(0, len(texts), AT_A_TIME)
        ]

        async def portion(places: range) -> tuple[range, list[Array]]:
            request = self._request([texts[place] for place in places])

            async def rows(call: CallContext) -> list[Array]:
                return await work.runner.rows(request, call)

            found = await work.asked(rows)
            check_pooled(found)
            return places, [one[0] for one in found]

        async with aclosing(in_order_of_arrival(portion, portions, 2)) as found:
            async for one in found:
                yield one

    async def cosines(
        self, work: StatementWork, pairs: Sequence[Sequence[str]]
    ) -> AsyncGenerator[tuple[int, list[float]]]:
        """Of portions of pairs of texts: the place of the first pair, and the cosines of their vectors."""
        vectors: dict[str, Array] = {}
        for start in range(0, len(pairs), PAIRS_AT_A_TIME):
            part = pairs[start : start + PAIRS_AT_A_TIME]
            wanted = dict.fromkeys(text for pair in part for text in pair)
            vectors = {text: vector for text, vector in vectors.items() if text in wanted}
            texts = [text for text in wanted if text not in vectors]
            async for places, found in self.vectors(work, texts):
                vectors |= {texts[place]: vector for place, vector in zip(places, found, strict=True)}
            yield start, [cosine(vectors[first], vectors[second]) for first, second in part]

    async def pair_tokens(self, work: StatementWork, pairs: Sequence[Sequence[str]]) -> list[int]:
        """Of pairs of texts: a text counts with the first pair that it is in."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        left = dict(zip(texts, await self.tokens(work, texts), strict=True))
        return [sum(left.pop(text, 0) for text in pair) for pair in pairs]

    def _request(self, texts: Sequence[str]) -> EmbeddingRequest:
        return EmbeddingRequest(id=new_id(), model=self.name, inputs=tuple(texts))


def cosine(first: Array, second: Array) -> float:
    """Of two vectors; 0 where one has no length."""
    lengths = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(np.dot(first, second)) / lengths if lengths else 0.0
