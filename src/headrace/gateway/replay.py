"""What a call learns of an answer that was not computed for it alone."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from headrace.gateway.answer_record import AnswerRecord
from headrace.gateway.response_key import ModelIdentity
from headrace.gateway.single_flight import Flight
from headrace.inference.call_context import CallContext
from headrace.inference.events import OutputDelta, OutputFinished, PromptFinished
from headrace.inference.handler import Batch

HEADER, COST = "x-headrace-cache", "x-headrace-cost-usd"


async def replayed(record: AnswerRecord, call: CallContext, identity: ModelIdentity) -> AsyncGenerator[Batch]:
    """A kept answer as the stream that it was: the same batches, warnings and usage."""
    call.model, call.is_given_again = identity.name, True
    call.warnings += [one for one in record.warnings if one not in call.warnings]
    for batch in record.batches:
        _count(call, batch)
        yield batch


def _count(call: CallContext, batch: Batch) -> None:
    if call.first_token_s is None and any(isinstance(one, OutputDelta | OutputFinished) for one in batch):
        call.first_token_s = time.monotonic() - call.arrival_s
    call.usages += [event.usage for event in batch if isinstance(event, PromptFinished)]


class SharedCall:
    """One call of those that read a flight. `is_own`: the flight was begun for it, and costs what it costs;
    the others pay nothing."""

    def __init__(self, call: CallContext, flight: Flight, request_id: str, *, is_own: bool) -> None:
        self.tokens = 0
        self._call, self._flight, self._id, self._is_own = call, flight, request_id, is_own
        self._seen = len(call.warnings)
        call.stops[request_id] = self._stop

    def note(self, batch: Batch) -> None:
        """Take over what the flight has learned by now."""
        call, inner = self._call, self._flight.call
        call.model, call.load_s = inner.model or call.model, call.load_s or inner.load_s
        call.warnings += [one for one in inner.warnings if one not in call.warnings]
        headers = {name: value for name, value in inner.reply_headers.items() if name != HEADER}
        if not self._is_own:
            call.is_given_again = True
            headers |= {COST: f"{0:.9f}"} if COST in headers else {}
        call.reply_headers.update(headers)
        if self._is_own:
            call.attempts = max(call.attempts, inner.attempts)  # of a local model's: attempts around it count
        _count(call, batch)
        ends = [event.usage for event in batch if isinstance(event, PromptFinished)]
        self.tokens += sum(one.prompt_tokens + one.completion_tokens for one in ends)

    def _stop(self, prompt: int) -> None:
        """A guard wants no more of a prompt: that ends it where no other call reads it."""
        inner = self._flight.call
        if self._flight.readers == 1:
            for stop in list(inner.stops.values()):
                self._flight.was_cut = True
                stop(prompt)

    def left(self) -> None:
        """The call reads no more. What still ends in the engine, and what that comes to, is its own."""
        call, inner = self._call, self._flight.call
        call.stops.pop(self._id, None)
        if inner.error is not None and call.error is None:
            call.fail(inner.error)
        if self._flight.readers:
            return
        if not call.usages:
            inner.when_ended(lambda: call.usages.extend(inner.usages))
        call.running += inner.running


def nano_usd_of(call: CallContext) -> int | None:
    """What a call has cost, where that is known."""
    said = call.reply_headers.get(COST)
    return None if said is None else round(float(said) * 1e9)
