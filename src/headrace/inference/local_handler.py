"""The end of every chain: a local model answers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from headrace import __version__, _native
from headrace.engine.request import EngineRequest
from headrace.engine.turns import BATCH_PRIORITY
from headrace.engine.validation import MAX_PRIORITY
from headrace.errors import InvalidRequest, NotResumable, TargetUnreachable
from headrace.grammar.constraint import GrammarError
from headrace.inference.call_context import CallContext
from headrace.inference.engine_run import EngineRun
from headrace.inference.event_bridge import EventBridge
from headrace.inference.events import Prepared, PreparedPrompt, Started
from headrace.inference.handler import Batch, EventBatches
from headrace.inference.model_runner import check_tasks
from headrace.inference.model_source import ModelSource, ModelThreads
from headrace.inference.preparation import PreparedRequest, prepare_request, prompt_texts
from headrace.inference.requests import CompletionRequest, EmbeddingRequest, InferenceRequest, RouteWishes
from headrace.journal.call_journal import CallJournal
from headrace.telemetry.request_metrics import ModelMetrics

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

USUAL_KV_TYPE = "bf16"
HASHED_BYTES = 64 * 1024  # of the beginning and the end of each file of weights
USUAL_TOKENS = 128
"""Of an answer, for predictions, where no length is known."""
QUICK_TOKENS = 4 * 1024
QUICK_CHARACTERS = 4 * 1024
"""Smaller requests are prepared and submitted on the event loop: handing them to a thread takes longer."""


class Degraded(Exception):
    """A model would be late, and another one is to answer."""

    def __init__(self, refusal: TargetUnreachable, fallback: str) -> None:
        super().__init__(refusal.message)
        self.refusal, self.fallback, self.message = refusal, fallback, refusal.message


class Degrading:
    """The batches of a model, or of its fallback where it cannot make the target of its first token."""

    __slots__ = ("_answer", "_batches", "_call", "_is_decided", "_request")

    def __init__(
        self,
        answer: Callable[[InferenceRequest], EventBatches],
        request: InferenceRequest,
        call: CallContext,
    ) -> None:
        self._answer, self._request, self._call = answer, request, call
        self._batches = answer(request)
        self._is_decided = False

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[Batch]:
        return self._batches.__anext__() if self._is_decided else self._first()

    async def _first(self) -> Batch:
        try:
            batch = await self._batches.__anext__()
        except Degraded as late:
            batch = await self._first_of_fallback(late)
        self._is_decided = True
        return batch

    async def _first_of_fallback(self, late: Degraded) -> Batch:
        self._call.warn("slo", f"{late.message}; {late.fallback} answers instead of {self._call.model}")
        await self._batches.aclose()
        self._batches = self._answer(replace(self._request, model=late.fallback))
        try:
            return await self._batches.__anext__()
        except Degraded as error:  # late, too: there is no third one
            raise error.refusal from None

    async def aclose(self) -> None:
        """Cancel what is running."""
        await self._batches.aclose()


class LocalHandler:
    """Chat template, tokenizer, engine client and output parser of the models of one process.

    Lives on one event loop at a time. `runs` are the requests that have not ended, with the tokens of their
    prompts while nothing has been computed.
    """

    def __init__(
        self,
        models: ModelSource,
        threads: ModelThreads,
        tool_format: str | None = None,
        *,
        usd_per_hour: float | None = None,
    ) -> None:
        """`usd_per_hour` is the price of this machine, where it has one."""
        self._models, self._usd_per_hour = models, usd_per_hour
        self._threads = threads
        self._bridge: EventBridge | None = None
        self.tool_format = tool_format
        self.runs: dict[EngineRun, int] = {}
        self.queued_tokens = 0
        """Tokens of prompts that have not produced anything yet."""

    def close(self) -> None:
        """The engine is about to stop: nothing may keep it from that. From any thread."""
        if self._bridge is not None:
            self._bridge.close()

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        return Degrading(lambda asked: self._answer(asked, call), request, call)

    async def _answer(self, request: InferenceRequest, call: CallContext) -> AsyncGenerator[Batch]:
        """The events of one model. Degraded, before any of them, where another one is to answer."""
        asked_s = time.monotonic()
        if request.route is not None and not call.routed:
            request = self._as_wished(request, request.route, call)
        with call.stage("acquire model"):
            model, release = await self._models.acquire(self._name(request), request.keep_alive_s, call)
        call.load_s += time.monotonic() - asked_s
        run: EngineRun | None = None
        pace, may_be_refused = model.engine.limits.pace, _may_be_refused(request, model)
        try:
            self._check_kind(request, model)
            with call.stage("prepare"):
                prepared = await self._prepared(request, model, call)
            call.params = prepared.params
            announced = _announced(request, prepared, model)
            is_sure = not may_be_refused or pace.fallback is None
            if is_sure:
                yield [announced]
            run = await self._started(prepared, model, call)
            call.stops[request.id] = run.stop
            # Where it may be refused because of its target, no reply begins before that is decided.
            first = await run.next() if may_be_refused else []
            if not is_sure:
                yield [announced]
            yield [Started()]
            read = prepared.reader.read
            while indexed := first or await run.next():
                first = []
                self._computing(run)
                yield [event for index, events in indexed for event in read(index, events)]
        except TargetUnreachable as error:
            raise error if pace.fallback is None else Degraded(error, pace.fallback) from None
        finally:
            if run is not None:
                call.stops.pop(request.id, None)
                self._end(run, call)
            call.when_ended(release)

    def _as_wished(
        self, request: InferenceRequest, wishes: RouteWishes, call: CallContext
    ) -> InferenceRequest:
        """A request that no route has seen, with as much time as its money pays; warns of what has no
        effect."""
        name = request.model or "the default model"
        if wishes.quality is not None:
            call.warn("route", f"quality has no effect: {name} is one model, there is no choice")
        if wishes.max_usd is None:
            return request
        if not self._usd_per_hour:
            message = f"max_usd has no effect: {name} runs on this machine, which has no price:"
            if all(message not in one.message for one in call.warnings):  # of an earlier step of an agent
                call.warn("route", f"{message} set node_usd_per_hour")
            return request
        most_s = wishes.max_usd * 3600 / self._usd_per_hour
        if most_s <= 0:
            raise InvalidRequest(
                f"max_usd is 0, and {name} costs ${self._usd_per_hour:g} an hour here: allow more",
                param="route",
            )
        return replace(request, deadline_s=min(most_s, request.deadline_s or most_s))

    async def predict(self, request: InferenceRequest, call: CallContext) -> LoadedModel:
        """Do all but compute: the stages and traces of `call` say what would take how long. The model that
        would answer. Where no length is asked for an answer is as long as the mean of the model's so far."""
        with call.stage("acquire model"):
            model, release = await self._models.acquire(self._name(request), request.keep_alive_s, call)
        call.model = model.name
        try:
            self._check_kind(request, model)
            metrics = self._models.metrics(model)
            answers = sum(metrics.ended.values())
            usual = round(metrics.generation_tokens / answers) if answers else USUAL_TOKENS

            def asked(one: EngineRequest) -> EngineRequest:
                room = max(1, model.context_length - len(one.prompt))
                most = one.params.max_tokens or min(max(usual, 1), room)
                params = replace(one.params, max_tokens=most, seed=one.params.seed or 0)
                return replace(one, predicts=True, constraint=None, params=params)

            with call.stage("prepare"):
                prepared = await self._prepared(request, model, call)
            requests = tuple(asked(one) for one in prepared.requests)
            count = len(requests)
            run = EngineRun(
                *(model.engine, self._event_bridge(), ModelMetrics(), call, count), max_traces=count
            )
            await self._threads.run(model, lambda: run.submit(requests))
            while await run.next():
                pass
            call.usages.clear()  # nobody has used these tokens
            call.first_token_s = None
        finally:
            call.when_ended(release)
        return model

    async def _started(self, prepared: PreparedRequest, model: LoadedModel, call: CallContext) -> EngineRun:
        """The run of a request. Where the schemas of tools cannot be compiled, these may have any
        arguments."""
        try:
            return await self._submitted(prepared, model, call)
        except InvalidRequest as error:
            if prepared.otherwise is None or error.code != GrammarError.code:
                raise
            call.warn("tools", f"calls can have any arguments: {error.message}")
            again = tuple(replace(one, constraint=prepared.otherwise) for one in prepared.requests)
            return await self._submitted(replace(prepared, requests=again), model, call)

    async def _submitted(self, prepared: PreparedRequest, model: LoadedModel, call: CallContext) -> EngineRun:
        engine, metrics = model.engine, self._models.metrics(model)
        run = EngineRun(engine, self._event_bridge(), metrics, call, len(prepared.requests), plan=model.plan)
        if call.journal is not None and all(map(_generates, prepared.requests)):
            prepared = self._recorded(call.journal, run, prepared, model)
        tokens = sum(len(one.prompt) for one in prepared.requests)
        self.runs[run] = tokens
        self.queued_tokens += tokens
        try:
            await self._submit(run, prepared, model, quick=tokens <= QUICK_TOKENS)
        except BaseException:
            self._end(run, call)
            raise
        return run

    @staticmethod
    def _recorded(
        journal: CallJournal, run: EngineRun, prepared: PreparedRequest, model: LoadedModel
    ) -> PreparedRequest:
        """The request, recorded from now on, and going on where an earlier server was killed."""
        recorded = journal.begin_run(prepared.requests, model.name, fingerprint_of(model), _native.isa())
        if recorded.computed_by != recorded.computes_by:
            raise NotResumable(
                "this request was begun with other weights or caches, another version of Headrace or another "
                f"instruction set ({recorded.computed_by}, now {recorded.computes_by}): send it again"
            )
        return replace(prepared, requests=run.resume(recorded, prepared.requests))

    def _computing(self, run: EngineRun) -> None:
        """Its prompts wait no more."""
        if waiting := self.runs[run]:
            self.queued_tokens -= waiting
            self.runs[run] = 0

    def _end(self, run: EngineRun, call: CallContext) -> None:
        self._computing(run)
        run.cancel()  # pages are free after the current step, which nothing here waits for
        call.running.append(run.finished)
        call.when_ended(lambda: self._forget(run))

    def _forget(self, run: EngineRun) -> None:
        del self.runs[run]

    async def _prepared(
        self, request: InferenceRequest, model: LoadedModel, call: CallContext
    ) -> PreparedRequest:
        def prepare() -> PreparedRequest:
            prepared = prepare_request(request, model, call, self.tool_format)
            check_choices(prepared, model)
            if not call.background:
                return prepared
            later = tuple(replace(one, priority=MAX_PRIORITY) for one in prepared.requests)
            return replace(prepared, requests=later)

        quick = (
            isinstance(request, CompletionRequest)
            and request.constraint is None  # whose schema may take longer than the prompt
            and model.tokenizer.is_bounded
            and _characters(request) <= QUICK_CHARACTERS
        )
        return (
            prepare()
            if quick
            else await self._threads.run(model, prepare, batch=request.priority >= BATCH_PRIORITY)
        )

    async def _submit(
        self, run: EngineRun, prepared: PreparedRequest, model: LoadedModel, *, quick: bool
    ) -> None:
        """Where it may take long in a thread (every token is validated), or without one (grammars)."""
        if any(one.constraint for one in prepared.requests):
            await run.submit_later(prepared.requests)
        elif quick:
            run.submit(prepared.requests)
        else:  # shielded: what has begun must end, so that every request that was taken is accounted for
            submit = partial(run.submit, prepared.requests)
            submitting = self._threads.run(
                model, submit, batch=prepared.requests[0].priority >= BATCH_PRIORITY
            )
            # Where this is cancelled meanwhile, no other code looks at a refusal, and asyncio would log it.
            submitting.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.shield(submitting)

    def _name(self, request: InferenceRequest) -> str | None:
        """The model that is asked; for embeddings without a name the first that makes them, if any does."""
        if request.model is None and isinstance(request, EmbeddingRequest):
            return self._models.able(request.task)
        return request.model

    def _check_kind(self, request: InferenceRequest, model: LoadedModel) -> None:
        if not isinstance(request, EmbeddingRequest):
            if "generate" not in model.tasks:
                check_tasks(model, "generate")
            return
        if not model.engine.limits.embedding_size:
            raise InvalidRequest(
                f"{model.name} generates text and makes no embeddings; {self._models.encoders()}: name an "
                "encoder such as BERT",
                param="model",
            )
        check_tasks(model, request.task)

    def _event_bridge(self) -> EventBridge:
        loop = asyncio.get_running_loop()
        if self._bridge is None or self._bridge.loop is not loop:
            self._bridge = EventBridge(loop)
        return self._bridge


def _generates(request: EngineRequest) -> bool:
    return request.embed is None and not request.continuations and not request.predicts


def _may_be_refused(request: InferenceRequest, model: LoadedModel) -> bool:
    return model.engine.limits.pace.refuses(None if request.slo is None else request.slo.ttft_s)


def _announced(request: InferenceRequest, prepared: PreparedRequest, model: LoadedModel) -> Prepared:
    texts = prompt_texts(request, prepared.requests, model)
    prompts = tuple(
        PreparedPrompt(one.prompt, text) for one, text in zip(prepared.requests, texts, strict=True)
    )
    return Prepared(model.name, prompts, prepared.params, prepared.choices, fingerprint_of(model))


def fingerprint_of(model: LoadedModel) -> str:
    """A text that stays the same as long as version, weights and their type do, and the type of the cache."""
    kv_type = model.plan.kv_type
    types = f"{model.plan.weights_bytes}{'' if kv_type == USUAL_KV_TYPE else kv_type}"
    base = _fingerprint(model.folder, model.created_s, types)
    return f"{base}-{model.adapter[:12]}" if model.adapter else base


@lru_cache(16)
def _fingerprint(folder: Path, loaded_s: int, types: str) -> str:
    """It is made anew where a model was loaded again, at `loaded_s`: its files may be others."""
    found = hashlib.blake2b(types.encode(), digest_size=6)
    files = [folder] if folder.is_file() else sorted(folder.glob("*.safetensors"))
    for path in files:
        with path.open("rb") as file:
            size = path.stat().st_size
            found.update(size.to_bytes(8, "little") + file.read(HASHED_BYTES))
            file.seek(max(0, size - HASHED_BYTES))
            found.update(file.read())
    return f"b{__version__}-{found.hexdigest()}"


def check_choices(prepared: PreparedRequest, model: LoadedModel) -> None:
    """InvalidRequest for more choices than are ever computed concurrently: a retry would not help."""
    asked, limit = prepared.choices * len(prepared.requests), model.engine.limits.max_choices
    if asked > limit:
        raise InvalidRequest(
            f"the request asks for {asked:,} choices (prompts times n), at most {limit:,} are computed "
            "concurrently: split it",
            param="n",
        )


def _characters(request: CompletionRequest) -> int:
    return sum(map(len, request.prompts)) + len(request.suffix or "")
