"""What the bodies of tasks share: texts, and how a reply is made that is not streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast

from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.errors import ClientGone, json_response
from headrace.api.http.generation import unless_gone
from headrace.api.openai.schema import EmbeddingUsage
from headrace.api.service import Service, get_service
from headrace.errors import InvalidRequest
from headrace.tasks.task_limits import MAX_TEXTS

TEXTS: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_TEXTS},
    ]
}
Body = TypeVar("Body", bound=RequestBody)


def read_texts(given: object, name: str) -> list[str]:
    """A text or a list of 1 to MAX_TEXTS texts. InvalidRequest for anything else."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in cast("list[object]", texts)):
        raise InvalidRequest(f"{name} is a text or a list of texts", param=name, code="invalid_type")
    found = cast("list[str]", texts)
    if not 0 < len(found) <= MAX_TEXTS:
        raise InvalidRequest(
            f"{name} has {len(found):,} texts, it must have 1 to {MAX_TEXTS:,}: split it",
            param=name,
            code="invalid_value",
        )
    return found


async def reply_to(
    http: HttpRequest, kind: type[Body], answer: Callable[[Body, HttpCall, Service], Awaitable[Struct | Raw]]
) -> Response:
    """Read the body, answer it unless the client leaves first."""
    body = await read_checked(kind, http)
    call = call_of(http)

    async def work() -> Struct | Raw:
        return await answer(body, call, get_service(http))

    found = await unless_gone(http, work())
    if found is None:
        raise ClientGone("the client left before anything was computed")
    return json_response(found)


def usage_of(call: HttpCall) -> EmbeddingUsage:
    """The tokens that were read for a call."""
    tokens = sum(usage.prompt_tokens for usage in call.usages)
    return EmbeddingUsage(tokens, tokens)
