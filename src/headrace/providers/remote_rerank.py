"""One attempt to have documents ranked by one target: a query with its documents, and a score of each.

The bodies are those of Cohere (v2), which Jina, vLLM, llama.cpp and Headrace take, too, and of TEI.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, Struct

from headrace.engine.request import Embedding
from headrace.inference.attempts import TokenCounts
from headrace.inference.requests import EmbeddingRequest, TextPair
from headrace.providers.answer import MalformedAnswer
from headrace.providers.dialect import Outgoing
from headrace.providers.remote_embedding import RemoteEmbedding
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage, count, openai_usage, read_object
from headrace.struct_types import thread_safe


class _Ranked(Struct):
    index: int
    relevance_score: float


class _Meta(Struct):
    billed_units: Raw = Raw()


class _Ranks(Struct):
    results: list[_Ranked]
    usage: Raw = Raw()
    meta: _Meta | None = None


class _TeiRank(Struct):
    index: int
    score: float


class RemoteRerank(RemoteEmbedding):
    """See `RemoteEmbedding`: of each pair, whose first texts are the same, its score."""

    WHAT = "scores"

    def _outgoing(self) -> Outgoing:
        return rerank_body(self._request, self._sending.target)

    def _read(self, body: bytes) -> list[Embedding]:
        if self._sending.target.row.rerank == "tei":
            reply = msgspec.json.decode(body, type=thread_safe(list[_TeiRank]))
            found = [(one.index, one.score) for one in reply]
        else:
            ranks = msgspec.json.decode(body, type=thread_safe(_Ranks))
            self.usage = _usage(ranks)
            found = [(one.index, one.relevance_score) for one in ranks.results]
        count = len(self._request.inputs)
        if sorted(index for index, _ in found) != list(range(count)):
            raise MalformedAnswer(
                f"sent {len(found):,} scores, which are not one for each of {count:,} documents"
            )
        if not all(math.isfinite(score) and abs(score) < 1e30 for _, score in found):
            raise MalformedAnswer("sent scores that are no numbers")
        return [Embedding(1, np.array([score], "<f4").tobytes()) for _, score in sorted(found)]


def rerank_body(request: EmbeddingRequest, target: RemoteTarget) -> Outgoing:
    """What asks a target for the scores of all documents."""
    pairs = [one for one in request.inputs if isinstance(one, TextPair)]
    query, documents = pairs[0].first, [one.second for one in pairs]
    row = target.row
    if row.rerank == "tei":
        body: dict[str, Any] = {"query": query, "texts": documents, "truncate": bool(request.truncate)}
    else:
        body = {"model": target.model, "query": query, "documents": documents, **row.rerank_extra}
    return Outgoing("/rerank", msgspec.json.encode(body))


def _usage(ranks: _Ranks) -> ReportedUsage:
    """Tokens, of which some name only the total, or what is billed instead of them."""
    raw = bytes(ranks.usage)
    if raw not in (b"", b"null"):
        found = openai_usage(raw)
        total = None if found.tokens is not None else _total(raw)
        return found if total is None else ReportedUsage(TokenCounts(input=total), raw, found.nano_usd)
    return ReportedUsage(raw=b"" if ranks.meta is None else bytes(ranks.meta.billed_units))


def _total(raw: bytes) -> int | None:
    try:
        return count(read_object(raw), "total_tokens") or None
    except ValueError:
        return None
