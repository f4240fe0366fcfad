"""`prompt` of completions and `input` of embeddings: a text, token ids, or a list of several of these."""

from __future__ import annotations

from typing import Final, cast

from headrace.errors import InvalidRequest
from headrace.inference.requests import Prompt

MAX_PROMPTS: Final = 2048
_MAX_ID: Final = 2**31 - 1
_IDS: Final = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": _MAX_ID},
    "minItems": 1,
}
PROMPTS: Final = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        *(
            {"type": "array", "items": kind, "minItems": 1, "maxItems": MAX_PROMPTS}
            for kind in ({"type": "string"}, _IDS)
        ),
    ]
}


def read_prompts(value: object, name: str) -> tuple[Prompt, ...]:
    """The prompts in the field `name`; tokens are looked at only when there are not too many of them."""
    if isinstance(value, str):
        return (value,)
    entries = _entries(value, name)
    if isinstance(entries[0], int):
        return (_ids(entries, name),)
    if len(entries) > MAX_PROMPTS:
        raise InvalidRequest(
            f"{name} has {len(entries):,} texts, at most {MAX_PROMPTS:,} may be sent at a time: split it",
            param=name,
            code="invalid_value",
        )
    if all(isinstance(entry, str) for entry in entries):
        return tuple(cast("list[str]", entries))
    return tuple(_ids(_entries(entry, name), name) for entry in entries)


def _entries(value: object, name: str) -> list[object]:
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"{name} is a text, token ids, or a list of texts or of lists of ids; none may be empty",
            param=name,
            code="invalid_value" if value == [] else "invalid_type",
        )
    return cast("list[object]", value)


def _ids(entries: list[object], name: str) -> tuple[int, ...]:
    for token in entries:
        if type(token) is not int or not 0 <= token <= _MAX_ID:
            raise InvalidRequest(
                f"{name} has {token!r:.40} among token ids: these must be integers in [0, {_MAX_ID:,}]",
                param=name,
                code="invalid_value" if type(token) is int else "invalid_type",
            )
    return tuple(cast("list[int]", entries))
