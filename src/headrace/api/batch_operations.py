"""What batches may ask: the endpoints that a line can name, each as a body that a handler answers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest

from headrace.api.http.call_context import HttpCall
from headrace.api.http.errors import error_response
from headrace.api.remote_models import EXTRA, LIBRARIES
from headrace.api.service import Service
from headrace.config.extras import ExtraMissing, extra_module
from headrace.errors import HeadraceError
from headrace.inference.batches.batch_runner import DEFERRED, BatchRunner, LineAnswer, LineRequest
from headrace.inference.batches.deferral import Deferred, LaterAnswers

LOG: Final = logging.getLogger("headrace.api")

Operation = Callable[[bytes, HttpCall, Service], Awaitable[Struct | Raw]]
"""What an endpoint does with a body, without HTTP: the reply, or a HeadraceError."""


class BatchOperations:
    """Answers lines in the words of their endpoint, through the same chain of handlers as requests."""

    def __init__(self, operations: Mapping[str, Operation], service: Service) -> None:
        """`operations` by the path of their endpoint."""
        self._operations, self._service = operations, service

    def runner(self) -> BatchRunner:
        """What runs the batches of the service's store with these operations."""
        service = self._service
        return BatchRunner(
            self.answer,
            service.keys.account_of,
            read_keys=service.keys.refresh,
            database=service.shared,
            threads=service.threads,
            gate=service.gate,
            max_num_seqs=service.settings.max_num_seqs,
            later=_provider_jobs(service),
        )

    async def answer(self, line: LineRequest) -> LineAnswer:
        """Run a line as a request of its account, in the background."""
        call = HttpCall(
            request_id=line.request_id,
            work_id=line.work_id,
            account=line.account,
            background=True,
            hops=line.hops,
            deferral=line.deferral,
            no_store=line.deferral is not None,  # a kept answer would go before the one that was paid for
            method="POST",
            path=line.endpoint,
        )
        try:
            reply = await self._operations[line.endpoint](line.body, call, self._service)
            found = LineAnswer(200, msgspec.json.encode(reply))
        except Deferred:
            return LineAnswer(DEFERRED, b"")
        except HeadraceError as error:
            found = _failed(error, call)
        except Exception:  # the reply says that there was one, and this what it was
            LOG.exception("a line of a batch failed")
            found = _failed(HeadraceError("the server failed; its log has the details"), call)
        call.status = found.status
        self._service.ended(call)
        return found


def _provider_jobs(service: Service) -> LaterAnswers | None:
    """What sends lines in batches of providers; None where remote models cannot be served."""
    try:
        module = extra_module(EXTRA, "headrace.gateway.provider_jobs", *LIBRARIES)
    except ExtraMissing:
        return None
    jobs: LaterAnswers = module.ProviderJobs(service.shared, service.threads, service.remote)
    return jobs


def _failed(error: HeadraceError, call: HttpCall) -> LineAnswer:
    call.fail(error)
    response = error_response(error, call)
    pause_s = float(response.headers.get("retry-after", 1))
    return LineAnswer(response.status_code, bytes(response.body), pause_s)


def runner_of(http: HttpRequest) -> BatchRunner:
    """The runner of the app that `http` came to."""
    runner = http.app.state.batches
    assert isinstance(runner, BatchRunner)
    return runner
