"""What a dialect is: the translation between inference requests and one API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from headrace.grammar.constraint import Constraint
from headrace.inference.requests import GenerationRequest
from headrace.providers.answer import Answer
from headrace.providers.failure import Failure
from headrace.providers.sse import SseEvent
from headrace.providers.table import ProviderRow
from headrace.providers.target import RemoteTarget
from headrace.providers.usage import ReportedUsage

Warn = Callable[[str, str], None]


class Outgoing(Struct, frozen=True):
    """The path below the base URL, and the body of a request."""

    path: str
    body: bytes


class UpstreamReader(Protocol):
    """Reads the stream of one attempt into its Answer."""

    usage: ReportedUsage
    """The last report, as far as it has come."""
    fingerprint: str | None
    tier: str | None
    """The provider's word for how the request was processed, where it says so besides the usage."""
    is_done: bool
    """Whether the stream has said that it is over."""

    def read(self, event: SseEvent) -> None:
        """Take one event. Raises MalformedAnswer, msgspec.DecodeError, or AttemptFailed for an error."""
        ...


class Dialect(Protocol):
    """One API. Stateless. `headers` go with every request."""

    headers: Mapping[str, str]

    def outgoing(self, request: GenerationRequest, target: RemoteTarget, warn: Warn) -> Outgoing:
        """The request that `request` becomes; the target can honor it."""
        ...

    def reader(
        self, request: GenerationRequest, target: RemoteTarget, answer: Answer, warn: Warn
    ) -> UpstreamReader:
        """A reader of the stream that answers it."""
        ...

    def guarantees(self, wanted: Constraint, row: ProviderRow, *, closes: bool) -> bool:
        """Whether every whole answer matches the constraint, so that it need not be checked here."""
        ...

    def failure(self, status: int, body: bytes) -> Failure:
        """What an error reply means; its message may still have secrets."""
        ...
