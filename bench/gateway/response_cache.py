"""The response cache on questions of people: look-up times, bytes of drafts, hits and what they save.

Questions are those of Banking77, many of which are paraphrases of one another; `mini` answers them. Each is
computed with the cache off and with drafts, in turns of which comes first, and asked again. Every answer with
a draft must have the bytes of the one without; the exit code is 1 where one has not. A thousand draft hits:
tests/gateway/test_draft_hits.py with TEST_DRAFT_HITS=1000.
Usage: python bench/gateway/response_cache.py [--only look-up|answers] [--requests 1000] [--data FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import lzma
import sys
import time
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np

from headrace.chat.messages import Message
from headrace.config.cache_settings import CacheSettings
from headrace.gateway.answer_record import content_of
from headrace.gateway.caching_handler import CachingHandler
from headrace.gateway.near_index import NearIndex
from headrace.gateway.near_questions import NearQuestions
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.handler import Batch, Handler
from headrace.inference.local_handler import LocalHandler
from headrace.inference.model_source import ModelThreads, OneModel
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.loading.loader import load_model
from headrace.loading.options import EngineOptions
from headrace.sampling.params import with_defaults
from headrace.storage.cached_answers import open_cache
from headrace.storage.keys import KeyLimits

ENTRIES, LOOKUPS, MAX_TOKENS = 100_000, 2000, 32


def milliseconds(times: Sequence[float]) -> str:
    found = np.array(times) * 1e3
    return f"p50 {np.median(found):.3f} ms, p99 {np.percentile(found, 99):.3f} ms"


def look_up() -> None:
    random = np.random.default_rng(0)
    centers = random.standard_normal((2000, 384))
    vectors = centers[random.integers(0, 2000, ENTRIES)] + 0.7 * random.standard_normal((ENTRIES, 384))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    index = NearIndex(384)
    for number, vector in enumerate(vectors):
        index.add(number.to_bytes(4, "big"), vector)
    for least in (0.9, 0.8, 0.6, 0.5):
        wall: list[float] = []
        used: list[float] = []
        for vector in vectors[random.integers(0, ENTRIES, LOOKUPS)]:
            start, start_cpu = time.perf_counter(), time.thread_time()
            index.search(vector, 5, least)
            wall.append(time.perf_counter() - start)
            used.append(time.thread_time() - start_cpu)
        print(f"look-up among {ENTRIES:,} from {least} on")
        print(f"  wall {milliseconds(wall)}; CPU {milliseconds(used)}")


async def answer(
    handler: Handler, text: str, sampling: dict[str, Any]
) -> tuple[object, str, float, int, int]:
    """Content, header, seconds, tokens of the answer, and of these those that were drafted."""
    call = CallContext(request_id=new_request_id(), account=Account("", KeyLimits(None, None, None, None)))
    request = ChatRequest(
        id=new_request_id(), messages=(Message("user", text),), sampling=sampling | {"max_tokens": MAX_TOKENS}
    )
    batches: list[Batch] = []
    start = time.perf_counter()
    source: Any = handler.handle(request, call)
    async with aclosing(source):
        async for batch in source:
            batches.append(batch)
    took_s = time.perf_counter() - start
    await asyncio.sleep(0)
    [usage] = call.usages
    header = call.reply_headers.get("x-headrace-cache", "")
    return content_of(batches), header, took_s, usage.completion_tokens, usage.accepted_prediction_tokens


async def compare(questions: Sequence[str]) -> bool:
    model = load_model("mini", EngineOptions(max_num_seqs=4))
    with ModelThreads(1) as threads:
        local = LocalHandler(OneModel(model), threads)
        settings = CacheSettings(near="draft")
        cache = ResponseCache(open_cache(None), limit_bytes=settings.bytes, ttl_s=settings.ttl)

        async def identify(request: GenerationRequest, call: CallContext) -> ModelIdentity:
            return ModelIdentity(
                name=model.name, digest=b"", params=with_defaults(model.defaults, request.sampling)
            )

        near = NearQuestions(cache, settings.risk)
        cached = CachingHandler(local, cache, settings, identify, is_idle=lambda: False, near=near)
        seconds = {"off": 0.0, "draft": 0.0, "exact": 0.0}
        drafted = accepted = tokens = differ = hits = wrong_hits = 0
        for number, text in enumerate(questions):
            sampling = {"temperature": 0} if number % 3 else {"temperature": 0.8, "seed": number}
            if number % 2:
                found = await answer(cached, text, sampling)
                plain = await answer(local, text, sampling)
            else:
                plain = await answer(local, text, sampling)
                found = await answer(cached, text, sampling)
            await cached.close()  # what was computed is kept now
            again = await answer(cached, text, sampling)
            if found[1] == "draft":
                drafted, accepted, tokens = drafted + 1, accepted + found[4], tokens + found[3]
                differ += found[0] != plain[0]
                seconds["off"] += plain[2]
                seconds["draft"] += found[2]
            hits += again[1] == "exact"
            wrong_hits += again[0] != plain[0]
            seconds["exact"] += again[2]
    model.close()
    print(f"{len(questions):,} questions: {drafted:,} drafts, {differ} differ from the answer without one")
    print(f"of {tokens:,} tokens of these answers {accepted:,} were drafted rightly")
    print(f"seconds of these: {seconds['off']:.1f} without, {seconds['draft']:.1f} with drafts")
    each_ms = seconds["exact"] / len(questions) * 1e3
    print(f"asked again: {hits:,} hits, {wrong_hits} differ, {each_ms:.2f} ms each")
    return not differ and not wrong_hits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", choices=("look-up", "answers"))
    arguments = parser.parse_args()
    if arguments.only != "answers":
        look_up()
    if arguments.only == "look-up":
        return 0
    with lzma.open(arguments.data / "intents" / "banking77" / "train.csv.xz", "rt", newline="") as rows:
        texts = list(dict.fromkeys(row["text"].strip() for row in csv.DictReader(rows)))
    order = np.random.default_rng(0).permutation(len(texts))[: arguments.requests]
    return 0 if asyncio.run(compare([texts[one] for one in order])) else 1


if __name__ == "__main__":
    sys.exit(main())
