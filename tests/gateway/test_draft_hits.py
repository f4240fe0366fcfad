"""Near hits as drafts of a real model: their bytes are those without a draft. TEST_DRAFT_HITS of them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
from cached import call_of, chat
from msgspec import Struct

from headrace.config.cache_settings import CacheSettings
from headrace.economy.savings import texts
from headrace.gateway.answer_record import content_of
from headrace.gateway.caching_handler import CachingHandler
from headrace.gateway.near_questions import NearQuestions
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity
from headrace.grammar.constraint import Constraint
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Batch, Handler
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import with_defaults
from headrace.storage.cached_answers import open_cache

HITS = int(os.environ.get("TEST_DRAFT_HITS", "30"))
AT_A_TIME = 4
SELECT = Constraint("regex", r"SELECT [A-Za-z ,()*=<>'0-9]{4,60}")


class Asked(Struct, frozen=True):
    """What came of a request: all that must be equal, whether it had a draft, tokens that were drafted right
    and wrong."""

    content: object
    has_draft: bool
    accepted: int
    rejected: int


def requests() -> Iterator[ChatRequest]:
    """Questions of a few kinds, each different from those before it in a few words, and all ways to draw."""
    random, seen = np.random.default_rng(29), set[str]()
    orders = [one for templates in texts.INTENTS.values() for one in templates]
    for number in range(20 * HITS):
        is_sql = number % 3 > 0
        text = texts.sql_question(random)[0] if is_sql else texts.filled(orders, random)
        if text in seen:
            continue
        seen.add(text)
        drawn: list[dict[str, Any]] = [
            {"temperature": 0},
            {"temperature": 0.8, "seed": number},
            {"temperature": 1.3, "top_p": 0.9, "repetition_penalty": 1.1, "seed": number},
            {"temperature": 1.0, "min_p": 0.05, "presence_penalty": 0.6, "seed": number},
        ]
        more = {"constraint": SELECT} if is_sql and number % 5 == 0 else {}
        yield chat(text, sampling=drawn[number % 4] | {"max_tokens": 24}, **more)


async def _ask(handler: Handler, request: ChatRequest) -> Asked:
    call = call_of()
    batches: list[Batch] = []
    source: Any = handler.handle(request, call)
    async with aclosing(source):
        async for batch in source:
            batches.append(batch)
    [usage] = call.usages
    has_draft = call.reply_headers.get("x-headrace-cache") == "draft"
    accepted, rejected = usage.accepted_prediction_tokens, usage.rejected_prediction_tokens
    return Asked(content_of(batches), has_draft, accepted, rejected)


async def _compare(plain: Handler, cached: CachingHandler) -> list[tuple[Asked, Asked]]:
    """The answers of requests without and with a draft, until so many had one."""
    found: list[tuple[Asked, Asked]] = []
    waiting: list[ChatRequest] = []
    for request in requests():
        waiting.append(request)
        if len(waiting) == AT_A_TIME:
            without = await asyncio.gather(*(_ask(plain, one) for one in waiting))
            having = await asyncio.gather(*(_ask(cached, one) for one in waiting))
            await cached.close()  # what was computed is kept now
            found += [both for both in zip(without, having, strict=True) if both[1].has_draft]
            waiting = []
            if len(found) >= HITS:
                break
    return found


def test_the_bytes_of_drafted_answers_are_those_without_a_draft(record_property: Any) -> None:
    model = load_model("mini", EngineOptions(threads=1, max_num_seqs=AT_A_TIME))
    settings = CacheSettings(near="draft")
    cache = ResponseCache(open_cache(None), limit_bytes=settings.bytes, ttl_s=settings.ttl)

    async def identify(request: GenerationRequest, call: CallContext) -> ModelIdentity:
        params = with_defaults(model.defaults, request.sampling)
        return ModelIdentity(name=model.name, digest=b"", params=params)

    with ModelThreads(1) as threads:
        plain = LocalHandler(OneModel(model), threads)
        near = NearQuestions(cache, settings.risk)
        cached = CachingHandler(plain, cache, settings, identify, is_idle=lambda: False, near=near)
        found = asyncio.run(_compare(plain, cached))
    cache.close()
    model.close()
    accepted, rejected = (sum(getattr(one, name) for _, one in found) for name in ("accepted", "rejected"))
    record_property("figures", f"{len(found):,} draft hits, {accepted:,} tokens right, {rejected:,} wrong")
    assert len(found) >= HITS
    assert [place for place, (one, other) in enumerate(found) if one.content != other.content] == []
    assert accepted > HITS and rejected > 0  # drafts of both kinds were verified
