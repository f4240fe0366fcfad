"""`prompt` of completions and `input` of embeddings: a text, token ids, or a list of several of these."""

from __future__ import annotations

from typing import Final, cast

from headrace.errors import InvalidRequest
from headrace.inference.requests import Prompt
from headrace.tokenization.tokenizer import Tokenizer

MAX_PROMPTS: Final = 2048
MAX_PART: Final = 2**20
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
            for kind in ({"anyOf": [{"type": "string"}, _IDS]},)
        ),
    ]
}

_PART: Final = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_OBJECTS: Final = (
    {"type": "object", "properties": {"prompt_string": {"type": "string"}}, "required": ["prompt_string"]},
    {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    {
        "type": "object",
        "properties": {"content": {"type": "array", "items": _PART, "minItems": 1}},
        "required": ["content"],
    },
)
_MIXED: Final = {
    "type": "array",
    "items": {"anyOf": [{"type": "string"}, _IDS["items"]]},
    "minItems": 1,
}
_INPUT: Final = {"anyOf": [{"type": "string"}, _MIXED, *_OBJECTS]}
INPUTS: Final = {
    "anyOf": [
        *_INPUT["anyOf"],
        {"type": "array", "items": _INPUT, "minItems": 1, "maxItems": MAX_PROMPTS},
    ],
    "description": (
        "Texts or token ids; also sequences of both, and objects with a text in `text`, `prompt_string` or "
        "`content`."
    ),
}


def read_inputs(value: object) -> tuple[Prompt, ...]:
    """`input` of embeddings: as `read_prompts`, and objects with a text of Jina and llama.cpp."""
    if isinstance(value, list):
        entries = cast("list[object]", value)
        return read_prompts([_text(entry) for entry in entries], "input")
    return read_prompts(_text(value), "input")


def is_mixed(value: object) -> bool:
    """Whether there are texts among the token ids of an input: the model's tokenizer reads these first."""
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return _has_both(entries) or any(_has_both(entry) for entry in entries)


def with_tokens(value: object, tokenizer: Tokenizer) -> object:
    """A mixed input with tokens in the place of its texts, as llama.cpp reads it: a text at the beginning
    gets special tokens, later ones get none. Not for the event loop."""
    entries = cast("list[object]", value)
    if _has_both(entries):
        return token_sequence(entries, tokenizer, "input")
    return [
        token_sequence(cast("list[object]", entry), tokenizer, "input") if _has_both(entry) else entry
        for entry in entries
    ]


def token_sequence(parts: list[object], tokenizer: Tokenizer, name: str) -> list[object]:
    """The tokens of texts and token ids in one sequence; anything else stays, for `read_prompts` to refuse.

    A text beyond MAX_PART characters is refused before its tokens are made.
    """
    found: list[object] = []
    for number, part in enumerate(parts):
        if not isinstance(part, str):
            found.append(part)
            continue
        if len(part) > MAX_PART:
            raise InvalidRequest(
                f"{name} has a text of {len(part):,} characters among token ids, at most {MAX_PART:,} may be",
                param=name,
                code="invalid_value",
            )
        found += tokenizer.encode(part, add_special=number == 0)
    return found


def _has_both(value: object) -> bool:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    return any(type(part) is int for part in parts) and any(isinstance(part, str) for part in parts)


def _text(value: object) -> object:
    """The text of an object; anything else as it is."""
    if not isinstance(value, dict):
        return value
    given = cast("dict[str, object]", value)
    for name in ("text", "prompt_string"):
        if given.keys() == {name} and isinstance(given[name], str):
            return given[name]
    parts = given.get("content")
    if given.keys() == {"content"} and isinstance(parts, list) and parts:
        found = [_part(part) for part in cast("list[object]", parts)]
        return "".join(found)
    raise InvalidRequest(
        "input has an object: it may have text or prompt_string, a text, or content, a list of parts of type"
        " text",
        param="input",
        code="invalid_value",
    )


def _part(value: object) -> str:
    part = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    text = part.get("text")
    if part.keys() != {"type", "text"} or part["type"] != "text" or not isinstance(text, str):
        raise InvalidRequest(
            "input has a content part that is no text: encoders of this server read text only",
            param="input",
            code="invalid_value",
        )
    return text


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
    return tuple(entry if isinstance(entry, str) else _ids(_entries(entry, name), name) for entry in entries)


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
