"""A handler that gives kept answers, and keeps those of the handler inside it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from headrace.config.cache_settings import CacheSettings
from headrace.gateway.answer_record import AnswerRecord, packed, text_of, tokens_of
from headrace.gateway.cache_audit import Audit, CacheAudits, Identify
from headrace.gateway.near_answers import near_answer
from headrace.gateway.near_gate import NearGate
from headrace.gateway.near_questions import LEAST_FOR_DRAFT, NearQuestions, Question
from headrace.gateway.replay import COST, HEADER, SharedCall, nano_usd_of, replayed
from headrace.gateway.response_cache import ResponseCache
from headrace.gateway.response_key import ModelIdentity, is_candidate, is_deterministic, key_of
from headrace.gateway.single_flight import MAX_FLIGHT_BYTES, Flight, is_whole
from headrace.gateway.typed_values import NotEncodable
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.requests import ChatRequest, GenerationRequest, InferenceRequest
from headrace.storage.cached_answers import StoredAnswer

LARGE_CHARACTERS = 64 * 1024
"""From there on a key is computed in a thread."""


class _Asked(Struct, frozen=True):
    """A request, and what is known of it. `is_exact`: the same request has the same answer, under `key`."""

    request: GenerationRequest
    call: CallContext
    identity: ModelIdentity
    tenant: bytes
    key: bytes
    is_exact: bool
    question: Question | None

    @property
    def flight_key(self) -> object:
        """Requests with the same are computed once. What has times of its own, or is to tell where they went,
        is computed alone."""
        one = self.request
        has_times = one.deadline_s is not None or one.slo is not None or self.call.explain
        return (self.key, one.priority, self.call.background, self.call.booking_id if has_times else "")


class CachingHandler:
    """See `Handler`. `knows` says without waiting whether there may be an identity for a request. Lives on
    one event loop; `close` it there."""

    def __init__(
        self,
        inner: Handler,
        cache: ResponseCache,
        settings: CacheSettings,
        identify: Identify,
        *,
        is_idle: Callable[[], bool],
        knows: Callable[[GenerationRequest], bool] = lambda request: True,
        near: NearQuestions | None = None,
    ) -> None:
        self.inner, self._cache, self._settings = inner, cache, settings
        self._identify, self._knows, self._near = identify, knows, near
        self.audits = CacheAudits(lambda: self.inner, cache, identify, is_idle)
        self._flights: dict[object, Flight] = {}
        self._keeping: set[asyncio.Task[None]] = set()

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`. What is never kept passes without a generator of its own."""
        if not isinstance(request, GenerationRequest):
            return self.inner.handle(request, call)
        call.reply_headers.setdefault(HEADER, "none")
        if not is_candidate(request, call) or not self._knows(request):
            return self.inner.handle(request, call)
        return self._batches(request, call)

    async def _batches(self, request: GenerationRequest, call: CallContext) -> AsyncGenerator[Batch]:
        with call.stage("response cache"):
            asked = await self._asked(request, call)
            record = None if asked is None else await self._kept(asked)
        if asked is None:
            source: EventBatches = self.inner.handle(request, call)
        else:
            source = self._computed(asked) if record is None else replayed(record, call, asked.identity)
        try:
            async for batch in source:
                yield batch
        finally:
            await source.aclose()

    async def _asked(self, request: GenerationRequest, call: CallContext) -> _Asked | None:
        """None where nothing is kept of it."""
        identity = await self._identify(request, call)
        if identity is None:
            return None
        is_exact = self._settings.exact == "auto" and is_deterministic(request, identity)
        if not is_exact and self._near is None:
            return None
        tenant = self.tenant_of(call.account)
        try:
            question = None
            if self._near is not None and identity.is_local:
                question = await self._near.question(request, identity, tenant, call)
            if is_exact:
                is_large = _characters(request) > LARGE_CHARACTERS
                key = (
                    key_of(request, identity, tenant)
                    if not is_large
                    else await self._cache.in_thread(lambda: key_of(request, identity, tenant))
                )
            elif question is None:
                return None
            else:
                key = os.urandom(32)  # it is kept for its likes alone
        except NotEncodable:
            return None
        return _Asked(request, call, identity, tenant, key, is_exact, question)

    def tenant_of(self, account: Account) -> bytes:
        """Whose answers these are: a key's own, or those of its team [16 bytes]."""
        team = self._settings.team_of(account.name)
        owner = f"key\0{account.cache_salt}" if team is None else f"team\0{team}"
        return hashlib.sha256(owner.encode()).digest()[:16]

    async def _kept(self, asked: _Asked) -> AnswerRecord | None:
        """The answer that is given again, if there is one."""
        name = asked.identity.name
        found = self._cache.find(asked.key) if asked.is_exact else None
        if found is not None:
            record = await self._read(found)
            if record is not None:
                self._hit(asked, found, "exact")
                self.audits.consider(Audit(asked.request, asked.identity, record, asked.call.account))
                return record
        record = await self._near_answer(asked)
        if record is None and asked.is_exact:
            self._cache.counts[name, "miss"] += 1
        return record

    def _hit(self, asked: _Asked, found: StoredAnswer, kind: str) -> None:
        self._cache.hit(found, kind)
        asked.call.reply_headers[HEADER] = kind
        if not asked.identity.is_local:
            asked.call.reply_headers[COST] = f"{0:.9f}"

    async def _read(self, answer: StoredAnswer) -> AnswerRecord | None:
        """An answer from the file; what cannot be read is forgotten."""
        record = await self._cache.in_thread(lambda: self._cache.body(answer))
        if record is None:
            self._cache.forget([answer], "unreadable")
        return record

    async def _near_answer(self, asked: _Asked) -> AnswerRecord | None:
        """The answer to similar questions, where it is asked for and certified."""
        if not self._may_be_near(asked):
            return None
        found = await self._agreed(asked)
        if found is None or not self._gate(asked).serves(found[0]):
            return None
        self._hit(asked, found[1], "near")
        record = found[2]
        [prepared] = record.batches[0]
        assert isinstance(prepared, Prepared)
        tokens = len(prepared.prompts[0].tokens)
        shown = replace(prepared.prompts[0], tokens=(), text="", estimated_tokens=tokens)
        return replace(record, batches=((replace(prepared, prompts=(shown,)),), *record.batches[1:]))

    def _may_be_near(self, asked: _Asked) -> bool:
        params = asked.identity.params
        is_one = params is not None and params.n == 1 and params.logprobs is None
        return self._settings.near == "answer" and asked.request.cache == "near" and is_one

    def _gate(self, asked: _Asked) -> NearGate:
        assert self._near is not None and asked.question is not None
        return self._near.gate(asked.question)

    async def _agreed(self, asked: _Asked) -> tuple[float, StoredAnswer, AnswerRecord] | None:
        """What the nearest answers agree on: the score, the nearest and its record."""
        if self._near is None or asked.question is None:
            return None
        return await near_answer(asked.question, self._near, self._read)

    async def _computed(self, asked: _Asked) -> AsyncGenerator[Batch]:
        flight = self._flights.get(asked.flight_key)
        is_own = flight is None or not flight.is_open
        agreed = await self._agreed(asked) if is_own and self._may_be_near(asked) else None
        if is_own:
            request = await self._with_draft(asked)
            flight = self._flights.get(asked.flight_key)  # another one may have begun meanwhile
            is_own = flight is None or not flight.is_open
            if is_own:
                flight = self._begin(asked, request)
        assert flight is not None
        shared = SharedCall(asked.call, flight, asked.request.id, is_own=is_own)
        try:
            async with aclosing(flight.read()) as batches:
                async for batch in batches:
                    shared.note(batch)
                    yield batch
            if not is_own and flight.is_complete:
                self._cache.shared(asked.identity.name, shared.tokens, nano_usd_of(flight.call) or 0)
            if is_own and agreed is not None and flight.is_complete and not flight.dropped:
                self._gate(asked).learn(agreed[0], text_of(flight.batches) != text_of(agreed[2].batches))
        finally:
            shared.left()

    async def _with_draft(self, asked: _Asked) -> GenerationRequest:
        """The request with the nearest answer as its prediction, which changes no byte of its own."""
        request, params = asked.request, asked.identity.params
        if self._near is None or asked.question is None or not isinstance(request, ChatRequest):
            return request
        if request.prediction is not None or params is None or params.n > 1 or params.use_beam_search:
            return request
        for _, answer in self._near.nearest(asked.question, 1, LEAST_FOR_DRAFT):
            record = await self._read(answer)
            text = None if record is None else text_of(record.batches)
            if text:
                asked.call.reply_headers[HEADER] = "draft"
                self._cache.counts[asked.identity.name, "draft"] += 1
                return replace(request, prediction=text)
        return request

    def _begin(self, asked: _Asked, request: GenerationRequest) -> Flight:
        """Compute an answer for all who ask for it while it is computed."""
        outer = asked.call
        call = CallContext(
            request_id=outer.request_id,
            booking_id=outer.booking_id,
            work_id=outer.work_id,
            account=outer.account,
            route=outer.route,
            _trace=outer.trace,
            arrival_s=outer.arrival_s,
            background=outer.background,
            hops=outer.hops,
            explain=outer.explain,
            stages=outer.stages,
            traces=outer.traces,
            ordered_elsewhere=outer.ordered_elsewhere,
        )

        def ended(flight: Flight) -> None:
            if self._flights.get(asked.flight_key) is flight:
                del self._flights[asked.flight_key]
            if flight.is_complete and not flight.dropped and flight.bytes <= MAX_FLIGHT_BYTES:
                keeping = asyncio.ensure_future(self._keep(asked, flight))
                self._keeping.add(keeping)
                keeping.add_done_callback(self._keeping.discard)

        flight = Flight(self.inner.handle(request, call), call, ended)
        self._flights[asked.flight_key] = flight
        return flight

    async def _keep(self, asked: _Asked, flight: Flight) -> None:
        """Keep what was computed, if it is what the same request gets the next time."""
        call, identity = flight.call, asked.identity
        if call.no_store:
            return
        prepared = flight.batches[0][0] if flight.batches else None
        if not isinstance(prepared, Prepared) or prepared.model != identity.name or call.error is not None:
            return
        if not is_whole(flight.batches) or await self._identify(asked.request, call) != identity:
            return
        question = asked.question
        if question is not None and not asked.is_exact and text_of(flight.batches) is None:
            return
        batches, warnings = list(flight.batches), list(call.warnings)
        text = "" if question is None else question.text
        try:
            body = await self._cache.in_thread(lambda: packed(batches, warnings, text))
        except NotEncodable:
            return
        now_s = self._cache.clock.now_s()
        answer = StoredAnswer(
            key=asked.key,
            tenant=asked.tenant,
            model=identity.name,
            identity=identity.digest,
            partition=b"" if question is None else question.partition,
            vector=b"" if question is None else question.vector.tobytes(),
            created_s=now_s,
            used_s=now_s,
            tokens=tokens_of(batches),
            nano_usd=nano_usd_of(call),
            size_bytes=0,
        )
        if self._cache.add(answer, body) and self._near is not None:
            self._near.added(answer)

    async def close(self) -> None:
        """Stop audits, and keep what has just been computed."""
        await self.audits.close()
        if self._keeping:
            await asyncio.wait(self._keeping)


def _characters(request: GenerationRequest) -> int:
    """About how long a request is."""
    if isinstance(request, ChatRequest):
        return sum(len(one.content or "") for one in request.messages) + len(request.context)
    return sum(map(len, getattr(request, "prompts", ())))
