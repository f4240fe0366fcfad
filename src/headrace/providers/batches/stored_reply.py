"""The reply to a line of a provider's batch in the place of the reply to a request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec

from headrace.inference.batches.deferral import Deferral, Deferred
from headrace.providers.batches.unfolding import unfolded
from headrace.providers.dialect import Outgoing
from headrace.providers.failure import AttemptFailed, Failure
from headrace.providers.sse import SseEvent
from headrace.providers.target import RemoteTarget

_OF_STREAMS = ("stream", "stream_options")


class StoredReply:
    """A reply that was read long ago; otherwise like `UpstreamReply`."""

    def __init__(self, status: int, content: bytes, path: str) -> None:
        self.status, self.content, self._path = status, content, path
        self.received = len(content)

    async def events(self) -> AsyncGenerator[list[SseEvent]]:
        """The events that a stream with this reply would have had."""
        yield unfolded(self._path, self.content)

    async def whole(self) -> bytes:
        """All of it."""
        return self.content

    def finish(self) -> None:
        """Nothing is left to be read."""

    async def close(self, cause: str = "") -> None:
        """Nothing is open."""


def later_reply(deferral: Deferral, target: RemoteTarget, outgoing: Outgoing) -> StoredReply | None:
    """What the provider's batch has answered; None where the request is to be sent now. Raises Deferred where
    it goes into the next batch, AttemptFailed where there is no answer and will be none."""
    answer = deferral.for_target(target.name)
    if answer is not None:
        deferral.taken = True
        if answer.status:
            return StoredReply(answer.status, answer.body, outgoing.path)
        raise _failed("has not answered this line of its batch")
    if deferral.otherwise == "defer":
        raise Deferred(outgoing.path, _body(outgoing.body))
    if deferral.otherwise == "fail":
        raise _failed("was not asked again: the batch is over")
    return None


def _body(body: bytes) -> bytes:
    """A body as lines of batches have it."""
    fields = cast("dict[str, Any]", msgspec.json.decode(body))
    return msgspec.json.encode({name: value for name, value in fields.items() if name not in _OF_STREAMS})


def _failed(message: str) -> AttemptFailed:
    return AttemptFailed(Failure(phase="headers", kind="overloaded", message=message))
