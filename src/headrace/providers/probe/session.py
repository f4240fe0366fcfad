"""One endpoint while it is probed: requests through its dialect, within a budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from headrace.chat.messages import Message
from headrace.chat.tool_formats.events import Reasoning, Text
from headrace.errors import HeadraceError
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.events import InferenceEvent, OutputDelta, OutputFinished
from headrace.inference.requests import ChatRequest
from headrace.providers.failure import AttemptFailed
from headrace.providers.probe.endpoints import Endpoint, Price
from headrace.providers.probe.sample import Answered
from headrace.providers.remote_attempt import RemoteAttempt, prompt_tokens
from headrace.providers.remote_embedding import RemoteEmbedding
from headrace.providers.remote_handler import RemoteHandler
from headrace.providers.upstream import Upstream
from headrace.providers.usage import ReportedUsage
from headrace.storage.keys import KeyLimits

MAX_MESSAGE = 200


class BudgetSpent(Exception):
    """The next request could cost more than what is left of the budget: nothing was sent."""


class Session:
    """Requests to one endpoint. Lives on one event loop; `close` it there.

    `key` returns its key, `count` the tokens of a text by its tokenizer, None where that is not known.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        price: Price,
        key: Callable[[], str | None],
        count: Callable[[str], int] | None,
    ) -> None:
        self.endpoint, self.price, self.count = endpoint, price, count
        provider = endpoint.target.provider
        self._upstream = Upstream(provider.base_url, provider.settings)
        self._handler = RemoteHandler(endpoint.target, self._upstream, key, "probe")
        self._takes_temperature = endpoint.target.row.honors("temperature")
        self.spent_usd = 0.0
        self._held_usd = 0.0

    async def ask(
        self, text: str, *, max_tokens: int, greedy: bool = False, sampling: Mapping[str, Any] | None = None
    ) -> Answered:
        """The answer to a question. Raises BudgetSpent, before anything is sent."""
        params: dict[str, Any] = {"max_tokens": max_tokens, **(sampling or {})}
        if greedy and self._takes_temperature:
            found = await self._asked(text, {**params, "temperature": 0.0})
            if found.failure != "invalid" or "temperature" not in found.message:
                return found
            self._takes_temperature = False  # as of OpenAI's models that reason
        return await self._asked(text, params)

    async def _asked(self, text: str, params: Mapping[str, Any]) -> Answered:
        request = ChatRequest(id=new_request_id(), messages=(Message("user", text),), sampling=params)
        worst_usd = self.price.most_usd(prompt_tokens(request), int(params["max_tokens"]))
        if self.spent_usd + self._held_usd + worst_usd > self.endpoint.plan.budget_usd:
            raise BudgetSpent
        self._held_usd += worst_usd
        answered, usd = Answered(), worst_usd  # what is cut off may be billed
        try:
            answered, usd = await self._sent(request, worst_usd)
        finally:
            self._held_usd -= worst_usd
            self.spent_usd += usd
        answered.usd = usd
        return answered

    async def _sent(self, request: ChatRequest, worst_usd: float) -> tuple[Answered, float]:
        call = CallContext(request_id=request.id, account=Account("", KeyLimits()))
        answered = Answered()
        start_s = time.monotonic()
        try:
            attempt = self._handler.attempt(self._handler.adapted(request, (), call), call)
        except AttemptFailed as error:
            answered.failure, answered.message = error.failure.kind, error.failure.message[:MAX_MESSAGE]
            return answered, 0.0
        except HeadraceError as error:
            answered.failure, answered.message = "unsupported", error.message[:MAX_MESSAGE]
            return answered, 0.0
        billed = "yes"
        try:
            await _read(attempt, answered, start_s)
        except AttemptFailed as error:
            billed = error.failure.billed
            answered.failure, answered.message = error.failure.kind, error.failure.message[:MAX_MESSAGE]
        answered.total_s = time.monotonic() - start_s
        answered.tokens = attempt.usage.tokens
        return answered, self._cost(attempt.usage, answered, billed, worst_usd)

    def _cost(self, usage: ReportedUsage, answered: Answered, billed: str, worst_usd: float) -> float:
        if usage.nano_usd is not None:
            answered.stated_usd = usage.nano_usd / 1e9
            return answered.stated_usd
        if answered.tokens is not None:
            return self.price.usd_of(answered.tokens)
        return 0.0 if billed == "no" else worst_usd

    async def close(self) -> None:
        """Close its connections."""
        await self._upstream.close()


async def _read(attempt: RemoteAttempt | RemoteEmbedding, answered: Answered, start_s: float) -> None:
    async with aclosing(attempt.batches()) as batches:
        async for batch in batches:
            at_s = time.monotonic() - start_s
            for event in batch:
                _take(answered, event, at_s)


def _take(answered: Answered, event: InferenceEvent, at_s: float) -> None:
    if not isinstance(event, OutputDelta | OutputFinished):
        return
    if isinstance(event, OutputDelta):
        answered.logprobs += len(event.logprobs)
    else:
        answered.finish = event.reason
    for part in event.parts:
        if not isinstance(part, Text | Reasoning) or not part.text:
            continue
        answered.last_s = at_s
        if answered.first_s is None:
            answered.first_s = at_s
        if isinstance(part, Text):
            answered.text += part.text
            if answered.first_answer_s is None:
                answered.first_answer_s = at_s
