"""Tokens that an account may use: reserved before a request runs, settled when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from headrace.engine.request import Usage
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.handler import EventBatches, Handler
from headrace.inference.requests import GenerationRequest, InferenceRequest


class LimitsHandler:
    """Charges the account of the call. RateLimited where it has too few tokens left."""

    def __init__(self, inner: Handler) -> None:
        self._inner = inner

    async def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        reserved, before = 0, len(call.usages)
        try:
            async with aclosing(self._inner.handle(request, call)) as batches:
                async for batch in batches:
                    if not reserved and isinstance(batch[0], Prepared):
                        cost = _cost(request, batch[0])
                        call.account.reserve(cost)
                        reserved = cost
                    yield batch
        finally:
            call.when_ended(lambda: _settle(call, reserved, call.usages[before:]))


def _settle(call: CallContext, reserved: int, usages: Sequence[Usage]) -> None:
    used = sum(usage.prompt_tokens + usage.completion_tokens for usage in usages)
    call.account.settle(reserved - used)


def _cost(request: InferenceRequest, prepared: Prepared) -> int:
    """Tokens of the prompts, and as many as may be generated as far as the request says so."""
    prompts = sum(len(prompt.tokens) for prompt in prepared.prompts)
    if prepared.params is None or not isinstance(request, GenerationRequest):
        return prompts
    most = prepared.choices * (prepared.params.max_tokens or 0)
    total = None if request.scaling is None else request.scaling.max_total_tokens
    return prompts + len(prepared.prompts) * (most if total is None else min(most or total, total))
