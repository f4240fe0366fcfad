"""Money set aside for an attempt, and the request as the budget allows it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.gateway.target_state import TargetState
from headrace.inference.attempts import Hold, SpendRecorder, TokenCounts
from headrace.inference.call_context import CallContext
from headrace.inference.requests import EmbeddingRequest, GenerationRequest
from headrace.providers.bounds import choices_of, embedding_bound, limited, output_bound
from headrace.providers.remote_attempt import prompt_tokens

UNBOUNDED_OUTPUT = 32_768
"""Tokens of a choice for which money is set aside where the request has no `max_tokens` and no budget is kept
exactly."""


class Reservation(Struct, frozen=True):
    """A hold and the request to be sent. `warnings` are for the caller if this attempt answers. `is_less`:
    what is left of a budget cuts its output."""

    hold: Hold
    request: GenerationRequest | EmbeddingRequest
    warnings: Mapping[str, str] = {}
    is_less: bool = False


async def reserved(
    spend: SpendRecorder,
    state: TargetState,
    request: GenerationRequest | EmbeddingRequest,
    call: CallContext,
    route: str,
    *,
    processing: str,
) -> Reservation:
    """Set money aside at the price of a way of processing. Raises the error of a budget that does not
    allow the attempt."""
    account = call.account.name
    names = {"target": state.name, "provider": state.provider, "model": state.provider_model}
    if isinstance(request, EmbeddingRequest):
        most, bound = TokenCounts(input=embedding_bound(request)), None
    elif state.remote is None or not spend.bounds(account=account, route=route, **names):
        most, bound = estimate(request), None
    else:
        bound = output_bound(request, state.remote.target)
        most = TokenCounts(input=state.remote.most_input(request), output=bound.most)
    hold = await spend.reserve(
        account=account,
        **names,
        most=most,
        request_id=call.booking_id,
        route=route,
        processing=processing,
        least_output=0 if bound is None else bound.least,
    )
    if isinstance(request, EmbeddingRequest) or bound is None or hold.output is None or state.remote is None:
        return Reservation(hold, request)
    found = limited(request, state.remote.target, bound, hold.output)
    return Reservation(hold, found.request, found.warnings, found.is_less)


def estimate(request: GenerationRequest) -> TokenCounts:
    """What a request may come to, rather too much."""
    each = int(request.sampling.get("max_tokens") or UNBOUNDED_OUTPUT)
    return TokenCounts(input=prompt_tokens(request), output=each * choices_of(request))
