"""What the endpoints of tasks share: texts of bodies, usage, and work that ends with its client."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

from msgspec import Struct
from starlette.requests import Request as HttpRequest

from headrace.api.http.errors import ClientGone
from headrace.api.http.generation import unless_gone
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.requests import TextPair
from headrace.tasks.task_limits import MAX_TEXTS, check_texts

T = TypeVar("T")

_LIST: Final = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_TEXTS}
TEXTS: Final = {"anyOf": [{"type": "string"}, _LIST]}
"""One text, or several."""
DOCUMENTS: Final = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_TEXTS,
    "items": {
        "anyOf": [
            {"type": "string"},
            {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        ]
    },
}
"""Texts, or objects with a text."""


class TokenUsage(Struct, frozen=True):
    """Tokens that were read."""

    prompt_tokens: int
    total_tokens: int


def usage_of(call: CallContext) -> TokenUsage:
    """The tokens of everything that was computed for a call."""
    count = sum(one.prompt_tokens for one in call.usages)
    return TokenUsage(count, count)


async def done(http: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the client leaves, which raises ClientGone."""
    found = await unless_gone(http, _boxed(work))
    if found is None:
        raise ClientGone("the client left before anything was computed")
    return found[0]


async def _boxed(work: Coroutine[Any, Any, T]) -> tuple[T]:
    return (await work,)


def texts_of(value: object, param: str) -> list[str]:
    """The texts in a field that has one or several; InvalidRequest names it."""
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(
        isinstance(one, str) for one in cast("list[object]", entries)
    ):
        raise InvalidRequest(f"{param} is neither a text nor a list of texts", param=param)
    found = cast("list[str]", entries)
    check_texts(found, param)
    return found


def documents_of(value: object, param: str) -> list[str]:
    """The texts of documents, which are texts or objects with a text; InvalidRequest names the field."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{param} is not a list of texts", param=param)
    entries = cast("list[object]", value)
    check_texts(entries, param)
    found = list[str]()
    for index, one in enumerate(entries):
        text = cast("dict[str, object]", one).get("text") if isinstance(one, dict) else one
        if not isinstance(text, str):
            raise InvalidRequest(f"{param}[{index}] is neither a text nor an object with a text", param=param)
        found.append(text)
    return found


def pairs_of(first: object, second: object) -> list[TextPair]:
    """One text against each of several, or pairs of two lists of one length, as vLLM's /score."""
    firsts, seconds = texts_of(first, "text_1"), texts_of(second, "text_2")
    if len(firsts) == 1:
        firsts = firsts * len(seconds)
    if len(firsts) != len(seconds):
        raise InvalidRequest(
            f"text_1 has {len(firsts):,} texts and text_2 {len(seconds):,}: send one, or equally many",
            param="text_1",
        )
    return [TextPair(one, other) for one, other in zip(firsts, seconds, strict=True)]
