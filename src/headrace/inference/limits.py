"""What an account may ask for: its tokens, reserved before a request runs and settled when it has ended; its
urgency; how long a model stays in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from msgspec.structs import replace

from headrace.engine.request import Usage
from headrace.inference.call_context import CallContext
from headrace.inference.events import Prepared
from headrace.inference.handler import Batch, EventBatches, Handler, Unchanged
from headrace.inference.requests import GenerationRequest, InferenceRequest


class LimitsHandler:
    """Charges the account of the call. RateLimited where it has too few tokens left."""

    def __init__(self, inner: Handler) -> None:
        self._inner = inner

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        request = _allowed(request, call)
        reserved, before = 0, len(call.usages)

        def reserve(first: Batch) -> Awaitable[None] | None:
            nonlocal reserved
            [prepared] = first
            assert isinstance(prepared, Prepared)
            cost = _cost(request, prepared)
            if call.account.is_shared:
                return reserve_shared(cost)
            call.account.reserve(cost)
            reserved = cost
            return None

        async def reserve_shared(cost: int) -> None:
            nonlocal reserved
            await call.account.reserve_shared(cost)
            reserved = cost

        def settle() -> None:
            call.when_ended(lambda: _settle(call, reserved, call.usages[before:]))

        return Unchanged(self._inner.handle(request, call), first=reserve, ended=settle)


def _allowed(request: InferenceRequest, call: CallContext) -> InferenceRequest:
    """The request as the account may have it; what is changed is a warning."""
    priority = call.account.bounded_priority(request.priority)
    if priority != request.priority:
        call.warn(
            "priority",
            f"{request.priority} is more urgent than this key may ask for: it runs with {priority}",
        )
        request = replace(request, priority=priority)
    wishes = request.route
    if wishes is not None and wishes.max_s is not None:
        request = replace(request, deadline_s=min(wishes.max_s, request.deadline_s or wishes.max_s))
    slo = request.slo
    if slo is not None and slo.urgent and call.account.bounded_priority(-1) > -1:
        request = replace(request, slo=replace(slo, urgent=False))
    keep_alive_s = allowed_keep_alive(request.keep_alive_s, call)
    return request if keep_alive_s == request.keep_alive_s else replace(request, keep_alive_s=keep_alive_s)


def allowed_keep_alive(keep_alive_s: float | None, call: CallContext) -> float | None:
    """The time that the call's account may keep a model in memory: others use it too."""
    if keep_alive_s is None or call.account.may("admin"):
        return keep_alive_s
    if all(warning.param != "keep_alive" for warning in call.warnings):  # a surface may have asked before
        call.warn("keep_alive", "keep_alive has no effect: it needs a key with the scope 'admin'")
    return None


def _settle(call: CallContext, reserved: int, usages: Sequence[Usage]) -> None:
    used = sum(usage.prompt_tokens + usage.completion_tokens for usage in usages)
    call.account.settle(reserved - used)


def _cost(request: InferenceRequest, prepared: Prepared) -> int:
    """Tokens of the prompts, and as many as may be generated as far as the request says so."""
    prompts = sum(len(prompt.tokens) or prompt.estimated_tokens for prompt in prepared.prompts)
    if prepared.params is None or not isinstance(request, GenerationRequest):
        return prompts
    most = prepared.choices * (prepared.params.max_tokens or 0)
    total = None if request.scaling is None else request.scaling.max_total_tokens
    return prompts + len(prepared.prompts) * (most if total is None else min(most or total, total))
