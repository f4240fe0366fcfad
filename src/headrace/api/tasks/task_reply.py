"""What the endpoints of tasks share: texts of bodies, and usage."""

from __future__ import annotations

from typing import Final, cast

from headrace.api.openai.embedding_schema import EmbeddingUsage
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.requests import TextPair
from headrace.tasks.task_limits import MAX_TEXTS, check_texts

TEXT_LIST: Final = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_TEXTS}
TEXTS: Final = {"anyOf": [{"type": "string"}, TEXT_LIST]}
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


def refuse_twins(body: object, *twins: tuple[str, ...]) -> None:
    """InvalidRequest where a body has two fields of those that mean the same to different clients."""
    for names in twins:
        given = [name for name in names if getattr(body, name) is not None]
        if len(given) > 1:
            raise InvalidRequest(f"{given[0]} and {given[1]} say the same: send one of them", param=given[1])


def usage_of(call: CallContext) -> EmbeddingUsage:
    """The tokens of everything that was computed for a call."""
    count = sum(one.prompt_tokens for one in call.usages)
    return EmbeddingUsage(count, count)


def texts_of(value: object, param: str) -> list[str]:
    """The texts in a field that has one or several; InvalidRequest names it."""
    found = _text_list(value)
    if found is None:
        raise InvalidRequest(
            f"{param} is neither a text nor a list of texts", param=param, code="invalid_type"
        )
    check_texts(found, param)
    return found


def _text_list(value: object) -> list[str] | None:
    """One text or several as a list; None for anything else."""
    entries = cast("list[object]", value) if isinstance(value, list) else [value]
    return cast("list[str]", entries) if all(isinstance(one, str) for one in entries) else None


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
