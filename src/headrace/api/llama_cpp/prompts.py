"""`prompt` of llama.cpp's completions: text, token ids, both in one sequence, or a list of such."""

from __future__ import annotations

from typing import Final, cast

from headrace.api.openai.prompts import MAX_PROMPTS, token_sequence
from headrace.errors import InvalidRequest
from headrace.inference.requests import Prompt
from headrace.tokenization.tokenizer import Tokenizer

_MAX_ID: Final = 2**31 - 1
_PART: Final = {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 0, "maximum": _MAX_ID}]}
_OBJECT: Final = {
    "type": "object",
    "properties": {
        "prompt_string": {"type": "string"},
        "multimodal_data": {"type": "array", "maxItems": 0},
    },
    "required": ["prompt_string"],
}
LLAMA_PROMPTS: Final = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"anyOf": [_PART, {"type": "array", "items": _PART}, _OBJECT]}},
        _OBJECT,
    ],
    "description": (
        "A text; token ids and texts in one sequence; or a list of several of these. Texts after the first "
        "get no special tokens of their own."
    ),
}


def is_list(value: object) -> bool:
    """Whether the value asks for a list of replies."""
    entries = cast("list[object]", value) if isinstance(value, list) else []
    return bool(entries) and not any(isinstance(entry, int) for entry in entries)


def read_llama_prompts(value: object, tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    """The prompts. Sequences of texts and tokens become tokens."""
    if not is_list(value):
        return (_one(value, tokenizer),)
    entries = cast("list[object]", value)
    if len(entries) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt has {len(entries):,} entries, at most {MAX_PROMPTS:,} may be sent at a time: split it",
            param="prompt",
            code="invalid_value",
        )
    return tuple(_one(entry, tokenizer) for entry in entries)


def _one(value: object, tokenizer: Tokenizer) -> Prompt:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _text_of(cast("dict[str, object]", value))
    parts = cast("list[object]", value) if isinstance(value, list) else []
    if not parts:
        raise _bad(cast("object", value))
    found: list[int] = []
    for part in token_sequence(parts, tokenizer, "prompt"):
        if type(part) is not int or not 0 <= part <= _MAX_ID:
            raise _bad(part)
        found.append(part)
    return tuple(found)


def _text_of(entry: dict[str, object]) -> str:
    if entry.get("multimodal_data", []) != []:
        raise InvalidRequest(
            "prompt has multimodal_data: the models of this server read text only",
            param="prompt",
            code="unsupported_parameter",
        )
    text = entry.get("prompt_string")
    if not isinstance(text, str) or entry.keys() - {"prompt_string", "multimodal_data"}:
        raise _bad(entry)
    return text


def _bad(value: object) -> InvalidRequest:
    return InvalidRequest(
        f"prompt has {str(value)[:40]!r}: it is a text, a list of token ids and texts, or a list of several",
        param="prompt",
        code="invalid_value" if value in ([], -1) else "invalid_type",
    )
