"""A handler that looks on: what is asked and answered goes to the collector, and nothing is changed."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, Callable

from headrace.adapt.traffic.collector import Collector, TrafficPair
from headrace.config.adapt_settings import AdaptSettings
from headrace.errors import HeadraceError
from headrace.gateway.replay import nano_usd_of
from headrace.inference.call_context import CallContext
from headrace.inference.events import OutputDelta, OutputFinished, Prepared
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest, InferenceRequest
from headrace.inference.result import ChoiceResult
from headrace.providers.bounds import choices_of

TARGET = "x-headrace-target"
OUTCOMES = {"stop": "ok", "tool_calls": "ok", "length": "length"}


def is_answered_whole(request: InferenceRequest) -> bool:
    """Whether the answer is to a question, not the rest of one that was begun, nor what fills a gap: these
    would be learned, and given, as whole answers to the same question."""
    if isinstance(request, ChatRequest):
        return request.add_generation_prompt and not request.continue_final_message and not request.context
    return isinstance(request, CompletionRequest) and request.suffix is None


class TrafficHandler:
    """See `Handler`. Lives on one event loop."""

    def __init__(
        self,
        inner: Handler,
        collector: Collector,
        settings: AdaptSettings,
        *,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.inner, self._collector, self._settings, self._draw = inner, collector, settings, draw

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`. What is not collected passes without a generator of its own."""
        if not self._wants(request, call):
            return self.inner.handle(request, call)
        assert isinstance(request, GenerationRequest)
        return self._recorded(request, call)

    def _wants(self, request: InferenceRequest, call: CallContext) -> bool:
        if call.no_store or not self._settings.collects(call.account.name):
            return False
        if isinstance(request, ChatRequest):
            is_text = not request.context and not any(one.images for one in request.messages)
        else:
            prompts = request.prompts if isinstance(request, CompletionRequest) else ()
            is_text = len(prompts) == 1 and isinstance(prompts[0], str)
        if not is_text or not is_answered_whole(request):
            return False
        assert isinstance(request, GenerationRequest)
        return choices_of(request) == 1 and request.scaling is None and self._draw() < self._settings.sample

    async def _recorded(self, request: GenerationRequest, call: CallContext) -> AsyncGenerator[Batch]:
        choice, model, failed = ChoiceResult(), request.model or "", False
        source = self.inner.handle(request, call)
        try:
            async for batch in source:
                for event in batch:
                    if isinstance(event, OutputDelta | OutputFinished):
                        choice.add(event)
                    elif isinstance(event, Prepared):
                        model = request.model or event.model
                yield batch
        except HeadraceError:
            failed = True
            raise
        finally:
            await source.aclose()
            self._put(request, call, choice, model, failed=failed)

    def _put(
        self, request: GenerationRequest, call: CallContext, choice: ChoiceResult, model: str, *, failed: bool
    ) -> None:
        output = choice.output
        calls = ", ".join(f"{one.name}({one.arguments})" for one in output.calls)
        outcome = "error" if failed else "cancelled"
        if choice.finished is not None:
            outcome = OUTCOMES.get(choice.finished.reason, "error")
        self._collector.put(
            TrafficPair(
                request=request,
                call=call,
                answer=output.content + (f"\n{calls}" if calls and output.content else calls),
                outcome=outcome,
                endpoint=str(getattr(call, "path", "")),
                model=model,
                target=call.reply_headers.get(TARGET, model),
                nano_usd=nano_usd_of(call),
                total_s=time.monotonic() - call.arrival_s,
                prompt_tokens=sum(one.prompt_tokens for one in call.usages),
                completion_tokens=sum(one.completion_tokens for one in call.usages),
            )
        )
