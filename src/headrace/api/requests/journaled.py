"""The requests that the journal has, also of earlier servers, for `GET /v1/requests`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from msgspec import Struct

from headrace.api.http.journaling import MAX_OF_ONE_ID, ServerJournal
from headrace.api.http.request_log import RequestLog
from headrace.journal.frames import MAX_NUMBER, tag_of
from headrace.journal.reader import RecordKind
from headrace.journal.records import EndedRequest, OpenedRequest, shared_id
from headrace.storage.request_log import LogFilter, LoggedRequest

CURSOR = "journal_"
"""Before the nonce of a request: where the next page of the journal begins."""
AT_A_TIME, MAX_LOOKS = 1000, 3  # requests that are looked at for one page, however few of them match


class JournalPage(Struct, frozen=True):
    """Requests with their cursors, newest first. `last` is the cursor of what was looked at last."""

    entries: list[tuple[str, LoggedRequest]]
    last: str | None
    has_more: bool


class JournalList:
    """What the journal says of requests that have ended. Reads in the store's threads."""

    def __init__(self, journal: ServerJournal, log: RequestLog) -> None:
        self._journal, self._records, self._log = journal, journal.journal.log, log

    async def place(self, after: str, owner: str | None) -> int | None:
        """Where the page after that request or cursor begins; None where `owner` (None: anybody) has none."""
        found = await self._journal.threads.run(lambda: self._of_id(after, owner))
        return min(found, default=None)

    async def find(self, request_id: str, owner: str | None, *, content: bool) -> LoggedRequest | None:
        """The latest request of that id that has ended; with `content` what the client sent."""

        def read() -> LoggedRequest | None:
            found = self._of_id(request_id, owner)
            if not found:
                return None
            number = max(found)
            bodies = self._records.read([number], RecordKind.OPENED)[number] if content else []
            opened = [msgspec.msgpack.decode(one.payload, type=OpenedRequest) for one in bodies]
            return _line(found[number], next((one.body for one in opened), None))

        return await self._journal.threads.run(read)

    async def page(self, wanted: LogFilter, before: int | None) -> JournalPage:
        """Requests that match, newest first, without those that the request log has. It looks at a number of
        requests that is bounded: there may be more although this page has few."""
        found: list[tuple[str, LoggedRequest]] = []
        last: str | None = None
        place, most = MAX_NUMBER if before is None else before, min(AT_A_TIME, max(200, 2 * wanted.limit))
        for _ in range(MAX_LOOKS):
            looked = await self._journal.threads.run(partial(self._look, wanted.owner, place, most))
            matching = [one for one in looked if _matches(one[2], wanted)]
            known = await self._log.known([line.id for _, _, line in matching])
            for _, cursor, line in matching:
                if (line.id, line.arrived_s) in known:
                    continue
                if len(found) == wanted.limit:
                    return JournalPage(found, found[-1][0] if found else None, has_more=True)
                found.append((cursor, line))
            if len(looked) < most:
                return JournalPage(found, None, has_more=False)
            (place, last, _), most = looked[-1], AT_A_TIME
        return JournalPage(found, last, has_more=True)

    def _look(self, owner: str | None, before: int, most: int) -> list[tuple[int, str, LoggedRequest]]:
        """Numbers, cursors and lines of the newest requests below `before`."""
        tag = None if owner is None else tag_of(owner)
        numbers = self._records.latest(RecordKind.LISTED, tag=tag, before=before, most=most)
        found = self._ended(numbers, owner)
        return [(number, f"{CURSOR}{one.nonce}", _line(one)) for number, one in found.items()]

    def _of_id(self, request_id: str, owner: str | None) -> dict[int, EndedRequest]:
        numbers = self._records.find(tag_of(shared_id(request_id)))[:MAX_OF_ONE_ID]
        return self._ended(numbers, owner)

    def _ended(self, numbers: Sequence[int], owner: str | None) -> dict[int, EndedRequest]:
        """Those of `owner`, in the order of `numbers`."""
        found = self._records.read(numbers, RecordKind.LISTED)
        ended = {
            number: msgspec.msgpack.decode(found[number][-1].payload, type=EndedRequest)
            for number in numbers
            if found.get(number)
        }
        return {number: one for number, one in ended.items() if owner is None or one.owner == owner}


def _line(ended: EndedRequest, body: bytes | None = None) -> LoggedRequest:
    return LoggedRequest(
        id=ended.request_id,
        arrived_s=ended.arrived_unix_s,
        key_name=ended.key_name or None,
        method=ended.method,
        path=ended.path,
        status=ended.status,
        model=ended.model or None,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        completion_tokens=None if ended.prompt_tokens is None else ended.completion_tokens,
        first_token_s=ended.first_token_s,
        total_s=ended.total_s,
        error=ended.error,
        body=body,
        owner=ended.owner,
        trace_id=ended.trace_id,
    )


def _matches(line: LoggedRequest, wanted: LogFilter) -> bool:
    asked = (
        *((wanted.status, line.outcome), (wanted.model, line.model)),
        *((wanted.endpoint, line.path), (wanted.key_name, line.key_name)),
    )
    return line.arrived_s > wanted.since_s and all(one is None or one == has for one, has in asked)
