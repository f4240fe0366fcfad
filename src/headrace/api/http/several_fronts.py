"""What only one of several servers behind one address would have is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from starlette.datastructures import Headers

from headrace.api.http.call_context import HttpCall
from headrace.api.http.idempotency import HEADER as IDEMPOTENCY_KEY
from headrace.errors import InvalidRequest

if TYPE_CHECKING:
    from headrace.api.openai.responses.body import ResponseBody

STORED = {
    "/v1/files": "files",
    "/v1/batches": "batches",
    "/v1/messages/batches": "batches",
    "/v1/responses/resp_": "stored responses",
}
"""Beginnings of paths, and what they are about: what servers with a common ledger keep there."""
LOCAL = {
    "/v1/fine_tuning": "fine-tuning jobs",
    "/v1/vector_stores": "vector stores",
    "/v1/adapt": "the adaptive loop",
    "/v1/load_lora_adapter": "adapters that are loaded by requests",
    "/v1/unload_lora_adapter": "adapters that are loaded by requests",
    "/api/create": "aliases",
    "/api/copy": "aliases",
    "/api/delete": "aliases",
}
"""What each server has in its own store in any case."""
REQUESTS = "/v1/requests"


class OneFrontOnly(InvalidRequest):
    """It needs what one server keeps in its own store, and several answer at this address."""

    remedy = "Serve it from one server (fronts = 1), and send such requests there."
    code = "one_front_only"


def check_front(call: HttpCall, headers: Headers, *, is_shared: bool) -> None:
    """Raises OneFrontOnly. `is_shared`: the servers have a common ledger."""
    for beginning, what in (LOCAL if is_shared else LOCAL | STORED).items():
        if call.path == beginning or call.path.startswith(beginning.rstrip("/") + _after(beginning)):
            raise _refused(what, None)
    if call.path == REQUESTS or call.path.startswith(REQUESTS + "/"):
        if call.method == "DELETE":
            raise _refused("what is to be deleted of a request", None)
        call.warn("requests", "of this server alone: each has a log of its own")
    if IDEMPOTENCY_KEY in headers:
        raise _refused("replies of an Idempotency-Key", IDEMPOTENCY_KEY)


def _after(beginning: str) -> str:
    return "" if beginning.endswith("_") else "/"


def without_store(body: ResponseBody, call: HttpCall) -> ResponseBody:
    """The request without `store`, with a warning where the client has not said so. Raises OneFrontOnly."""
    for name, asked in (
        ("store", body.store),
        ("background", body.background),
        ("previous_response_id", body.previous_response_id is not None),
    ):
        if asked:
            raise _refused("stored responses", name)
    if body.store is None:
        call.warn(
            "store", "not kept: several servers answer at this address, and each has a store of its own"
        )
    return replace(body, store=False)


def _refused(what: str, param: str | None) -> OneFrontOnly:
    return OneFrontOnly(
        f"{what}: only one of the servers at this address would have them, since each has a store of its own",
        param=param,
    )
