"""Promoted students within a server: which requests they get, and their answers as those of a model here.

A student is the small model of a cascade whose large one is the incumbent (`gateway/cascade.py`): what it is
not sure of the incumbent answers, a part of its answers is audited, and its gate closes when these are wrong.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.decisions.comparisons import AnswerPair, JudgedPair, conversation_text
from headrace.adapt.students.ladder import CASCADE, STUDENT, gate_name
from headrace.adapt.students.registry import StudentRow
from headrace.adapt.students.rungs.names import is_of_student, student_model
from headrace.adapt.students.rungs.word_states import tagged
from headrace.adapt.students.student import LEAST_SCORE, MAX_TOKENS, Student, StudentAnswer, is_same
from headrace.adapt.traffic.collector import Collector
from headrace.adapt.traffic.fingerprint import fingerprint
from headrace.adapt.traffic.handler import is_answered_whole
from headrace.adapt.traffic.kmeans import Floats
from headrace.adapt.traffic.tasks import unit
from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Text
from headrace.config.adapt_settings import AdaptSettings
from headrace.engine.request import Timing, Usage
from headrace.errors import HeadraceError, InvalidRequest, ModelNotFound
from headrace.gateway.labels import question_of
from headrace.gateway.routes import LocalTarget, Route, Worse, plain_route
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.events import (
    OutputDelta,
    OutputFinished,
    Prepared,
    PreparedPrompt,
    PromptFinished,
    Started,
    TokenText,
)
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
    InferenceRequest,
)
from headrace.inference.result import ChoiceResult
from headrace.providers.remote_attempt import prompt_tokens
from headrace.storage.keys import KeyLimits
from headrace.tasks.embed import EmbedOptions, embed_texts
from headrace.tasks.pii.operators import PLACEHOLDER

GROW_EVERY = 20
"""Audits after which the part of the requests that a student gets is doubled."""
MAX_OPEN = 1024


Verdicts = Callable[[StudentRow, Sequence[AnswerPair]], Sequence[JudgedPair]]


class Promotion(Struct, frozen=True):
    """A promoted student, and how many of its answers were audited."""

    row: StudentRow
    student: Student
    audited: int = 0

    @property
    def share(self) -> float:
        """The part of the requests that it gets: what was given, doubled after audits that found no alarm."""
        return min(1.0, self.row.share * 2.0 ** min(self.audited // GROW_EVERY, 30))


class _Asked(Struct, frozen=True):
    promotion: Promotion
    redacted: GenerationRequest

    @property
    def question(self) -> str:
        return question_of(self.redacted)


class Promotions:
    """Lives on the event loop. `known` are promoted students by task."""

    def __init__(
        self,
        settings: AdaptSettings,
        collector: Collector,
        runner: ModelRunner,
    ) -> None:
        self._settings, self._collector = settings, collector
        self.runner = runner
        self.verdicts: Verdicts | None = None
        """What judges say of pairs; from a thread."""
        self.known: dict[str, Promotion] = {}
        self._open: dict[str, _Asked] = {}

    def before_local(
        self, request: InferenceRequest, served: Callable[[str | None], str | None]
    ) -> Route | None:
        """The model of this machine that a request names, as a route, where a student was put before it."""
        if not self.known or not isinstance(request, GenerationRequest):
            return None
        try:
            name = served(request.model)
        except HeadraceError:  # says so when it is asked
            return None
        if name is None or not any(one.row.route == name for one in self.known.values()):
            return None
        return plain_route(name)

    async def reroute(self, route: Route, request: GenerationRequest, call: CallContext) -> Route:
        """See `gateway.routing_handler.Reroute`: a cascade from the student to the route's own targets, where
        the task of the request has a student."""
        name = call.account.name
        is_candidate = any(one.row.route == route.name for one in self.known.values())
        if not is_candidate or not self._settings.collects(name) or not _wants_text(request):
            return route
        redacted = await self._collector.redacted(request, call)
        if redacted is None:
            return route
        endpoint = str(getattr(call, "path", ""))
        print_ = fingerprint(redacted, group=self._settings.group_of(name), endpoint=endpoint)
        found = self.known.get(print_.id)
        if found is None or found.row.route != route.name or place_of(call) >= found.share:
            return route
        if len(self._open) >= MAX_OPEN:
            self._open.pop(next(iter(self._open)))
        self._open[request.id] = _Asked(found, redacted)
        settings = replace(
            route.settings,
            route="cascade",
            score=CASCADE.score,
            compare=CASCADE.compare,
            audit=found.row.audit,
            hedge=False,
        )
        targets = (LocalTarget(STUDENT + found.row.id), *route.targets)
        worse = self._worse(found, redacted) if found.row.is_judged else None
        return replace(route, targets=targets, settings=settings, gate=gate_name(found.row.task), worse=worse)

    def _worse(self, found: Promotion, redacted: GenerationRequest) -> Worse:
        """What compares an answer of a student that is judged with the incumbent's, in audits: neither has
        personal data when the judge reads it."""

        async def worse(small: ChoiceResult, large: ChoiceResult) -> bool | None:
            call = CallContext(request_id=new_request_id(), account=Account("", KeyLimits()), background=True)
            texts = (small.output.content or "", large.output.content or "")
            if is_same(*texts):
                return False
            both = CompletionRequest(id=call.request_id, prompts=texts)
            safe = await self._collector.redacted(both, call)
            if self.verdicts is None or not isinstance(safe, CompletionRequest):
                return None
            pair = AnswerPair(prompt_text(redacted), *map(str, safe.prompts))
            [said] = await asyncio.to_thread(self.verdicts, found.row, [pair])
            return None if said.verdict == "refused" else said.verdict == "worse"

        return worse

    def taken(self, request: InferenceRequest) -> _Asked | None:
        """What a student is asked by a request that was rerouted; None for all others. Nobody else's request
        reaches a student, whatever model it names."""
        if not (request.model or "").startswith(STUDENT):
            return None
        found = self._open.pop(request.id, None)
        return found if found is not None and request.model == STUDENT + found.promotion.row.id else None


def prompt_text(request: GenerationRequest) -> str:
    """What was asked, as a judge reads it."""
    if not isinstance(request, ChatRequest):
        return question_of(request)
    return conversation_text([(one.role, one.content or "") for one in request.messages])


def _wants_text(request: GenerationRequest) -> bool:
    """Whether an answer is text and nothing besides, as those of students are."""
    may_call = isinstance(request, ChatRequest) and request.tools is not None
    wants_more = any(request.sampling.get(name) is not None for name in ("logprobs", "prompt_logprobs"))
    return is_answered_whole(request) and not (may_call or wants_more or request.show_prompt)


def _as_chat(request: GenerationRequest) -> ChatRequest:
    """A prompt to continue as a question: so students that write have learned it."""
    if isinstance(request, ChatRequest):
        return request
    assert isinstance(request, CompletionRequest)
    shared = {name: getattr(request, name) for name in GenerationRequest.__struct_fields__}
    return ChatRequest(**shared, messages=(Message("user", str(request.prompts[0])),))


def _prompt_text(request: GenerationRequest) -> str:
    """Of a completion its prompt, which may be repeated before the answer."""
    return str(request.prompts[0]) if isinstance(request, CompletionRequest) else ""


def place_of(call: CallContext) -> float:
    """From 0 to 1: a student that gets a greater part of the requests gets this one.

    The same when a request is made again after its server was killed. The part only grows, so that what is
    beyond it no student has begun.
    """
    digest = hashlib.blake2b(call.nonce.encode(), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64


class StudentHandler:
    """See `Handler`: in front of the models of this machine."""

    def __init__(self, inner: Handler, promotions: Promotions) -> None:
        self._inner, self._promotions = inner, promotions

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        asked = self._promotions.taken(request)
        if asked is None:
            if is_of_student(request.model):
                raise ModelNotFound(f"there is no model {request.model!r:.100}", param="model")
            return self._inner.handle(request, call)
        assert isinstance(request, GenerationRequest)
        answers = self._written if asked.promotion.row.model.is_loaded else self._batches
        return answers(asked, request, call)

    async def _written(
        self, asked: _Asked, request: GenerationRequest, call: CallContext
    ) -> AsyncGenerator[Batch]:
        """What a student writes, as it was judged: to the request without personal data, the likeliest
        tokens. An answer with what stands for such data is none."""
        row = asked.promotion.row
        own = replace(
            _as_chat(asked.redacted),
            id=request.id,
            model=student_model(row.model.base, row.id),
            sampling={
                **request.sampling,
                "temperature": 0.0,
                "max_tokens": min(request.sampling.get("max_tokens") or MAX_TOKENS, MAX_TOKENS),
            },
            fit_context=True,  # a bound, not a reservation: the base's context may be smaller than it
        )
        text = ""
        async with aclosing(self._inner.handle(own, call)) as batches:
            async for batch in batches:
                kept: Batch = []
                for event in batch:
                    if isinstance(event, Prepared):
                        prompts = tuple(replace(one, text=_prompt_text(request)) for one in event.prompts)
                        event = replace(
                            event, model=request.model or "", prompts=prompts, fingerprint=row.card.weights
                        )
                    elif isinstance(event, OutputDelta | OutputFinished):
                        text += "".join(one.text for one in event.parts if isinstance(one, Text))
                    kept.append(event)
                if PLACEHOLDER.search(text):
                    raise InvalidRequest(
                        "the student's answer has what stands for personal data", param="model"
                    )
                yield kept

    async def _batches(
        self, asked: _Asked, request: GenerationRequest, call: CallContext
    ) -> AsyncGenerator[Batch]:
        start_s, weights = time.monotonic(), asked.promotion.row.card.weights  # as they were certified
        tokens = prompt_tokens(request)
        prompt = PreparedPrompt((), _prompt_text(request), estimated_tokens=tokens)
        yield [Prepared(model=request.model or "", prompts=(prompt,), fingerprint=weights)]
        yield [Started()]
        said = await self._said(asked, call)
        text = said.text or " "
        logprob = said.score if said.text else LEAST_SCORE
        took_s = time.monotonic() - start_s
        token = TokenText(0, text.encode(), logprob if math.isfinite(logprob) else LEAST_SCORE)
        yield [
            OutputDelta(0, (Text(text),), (), (token,)),
            OutputFinished(0, (), "stop", "stop"),
            PromptFinished(0, Usage(tokens, 1, 0), Timing(0.0, took_s, took_s), None),
        ]

    async def _said(self, asked: _Asked, call: CallContext) -> StudentAnswer:
        """What a student says that writes nothing."""
        row, runner = asked.promotion.row, self._promotions.runner
        if row.model.writes:
            [found] = await tagged(runner, row.model, [asked.question], call)
            return found
        vectors = await embedded(runner, row.encoder, [asked.question], call)
        [found] = asked.promotion.student.answer([asked.question], vectors)
        return found


async def embedded(
    runner: ModelRunner, encoder: str, texts: Sequence[str], call: CallContext, priority: int = 0
) -> Floats:
    """Vectors [texts, size] of length 1; of long texts the beginning counts."""
    options = EmbedOptions(truncate=True, priority=priority)
    own = call.nested("student", background=priority > 0)
    return unit(await embed_texts(runner, encoder, texts, own, options))
