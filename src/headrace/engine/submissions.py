"""Submissions whose outcome comes later, because a grammar is compiled before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from headrace.engine.request import EngineRequest, EventCallback, RequestHandle

Submit = Callable[[EngineRequest, EventCallback], RequestHandle]


def submitted(submit: Submit, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
    """The outcome of a submission that takes no time."""
    outcome: Future[RequestHandle] = Future()
    _submit(outcome, submit, request, sink)
    return outcome


def submitted_after(
    compiled: Future[Any], submit: Submit, request: EngineRequest, sink: EventCallback
) -> Future[RequestHandle]:
    """The outcome of a submission as soon as the request's grammar is `compiled`; its failure is that of
    compiling. Cancelled before, the request is not submitted at all, and nothing is compiled for it."""
    outcome: Future[RequestHandle] = Future()

    def go_on(compiled: Future[Any]) -> None:
        if compiled.cancelled() or outcome.cancelled():
            return
        error = compiled.exception()
        if error is None:
            _submit(outcome, submit, request, sink)
        else:
            refuse(outcome, error)

    outcome.add_done_callback(lambda done: done.cancelled() and compiled.cancel())
    compiled.add_done_callback(go_on)
    return outcome


def accept(outcome: Future[RequestHandle], handle: RequestHandle) -> bool:
    """The submission has succeeded; False where the caller has cancelled it before."""
    try:
        outcome.set_result(handle)
    except InvalidStateError:
        return not outcome.cancelled()
    return True


def refuse(outcome: Future[RequestHandle], error: BaseException) -> None:
    """The submission has failed."""
    try:
        outcome.set_exception(error)
    except InvalidStateError:  # the caller has cancelled it
        return


def _submit(
    outcome: Future[RequestHandle], submit: Submit, request: EngineRequest, sink: EventCallback
) -> None:
    try:
        handle = submit(request, sink)
    except Exception as error:
        refuse(outcome, error)
    else:
        if not accept(outcome, handle):
            handle.cancel()
