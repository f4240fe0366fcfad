"""Submissions whose outcome comes later, because a grammar is compiled before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TypeVar

from headrace.engine.request import RequestHandle

T = TypeVar("T")


def submitted(submit: Callable[[], RequestHandle]) -> Future[RequestHandle]:
    """The outcome of a submission that takes no time."""
    outcome: Future[RequestHandle] = Future()
    _submit(outcome, submit)
    return outcome


def submitted_after(compiled: Future[T], submit: Callable[[T], RequestHandle]) -> Future[RequestHandle]:
    """The outcome of a submission with what was `compiled`, as soon as it is; its failure is that of
    compiling. Cancelled before, the request is not submitted at all, and nothing is compiled for it."""
    outcome: Future[RequestHandle] = Future()

    def go_on(compiled: Future[T]) -> None:
        if compiled.cancelled() or outcome.cancelled():
            return
        error = compiled.exception()
        if error is None:
            _submit(outcome, lambda: submit(compiled.result()))
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


def _submit(outcome: Future[RequestHandle], submit: Callable[[], RequestHandle]) -> None:
    try:
        handle = submit()
    except Exception as error:
        refuse(outcome, error)
    else:
        if not accept(outcome, handle):
            handle.cancel()
