"""Records what a Python program computes, so that one that was killed goes on where it was."""

from __future__ import annotations

import os
import time
from pathlib import Path

from headrace.errors import UsageError
from headrace.inference.call_context import CallContext
from headrace.inference.handler import EventBatches, Handler
from headrace.inference.requests import InferenceRequest
from headrace.journal.call_journal import CallJournal, Journal
from headrace.journal.log import Log
from headrace.journal.records import EndedReply, OpenedRequest


class ProgramJournal:
    """The journal of one program at a time. Where an earlier one was killed before it had closed it, what it
    has computed is given again to the same calls, in the same order of equal ones, and goes on."""

    def __init__(self, folder: Path) -> None:
        """Raises JournalInUse, JournalUnwritable; UsageError where it has requests of a server that go on."""
        self._journal = Journal(Log(folder), on_full="pause")
        unfinished = self._journal.unfinished()
        if any(one.opened.path for one in unfinished):
            self._journal.close_now(None)
            raise UsageError(
                f"the journal {folder} is a server's, which has requests to go on with: name another folder",
                param="journal",
            )
        known = next(reversed(unfinished), None)
        if known is not None:
            self.call = CallJournal(self._journal, known.number, known.opened, known)
            return
        nonce = os.urandom(16).hex()
        opened = OpenedRequest(request_id=f"program_{nonce}", nonce=nonce, arrived_unix_s=time.time())
        self.call = self._journal.begin(opened)

    def close(self, *, has_ended: bool = True) -> None:
        """The program has come to its end: the next one begins anew, unless this one could not begin."""
        ended = EndedReply(status=200, ended_unix_s=time.time()) if has_ended else None
        self._journal.close_now(self.call, ended)


class JournalHandler:
    """Lets every call be recorded in a program's journal."""

    def __init__(self, inner: Handler, journal: ProgramJournal) -> None:
        self._inner, self._journal = inner, journal

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`."""
        call.journal = self._journal.call
        return self._inner.handle(request, call)
