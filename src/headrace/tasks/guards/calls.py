"""Calls of tools as guards read them: names and values, without JSON around them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import cast


class _Pairs(list[tuple[str, object]]):
    """An object whose keys are there twice: all are read, also those that another parser would not take."""


def call_text(name: str, arguments: str) -> str:
    """All texts and numbers of a call, each on a line; of arguments that are no JSON the text as it is."""
    try:
        return "\n".join([name, *_leaves(json.loads(arguments, object_pairs_hook=_all_pairs))])
    except (ValueError, RecursionError):
        return f"{name}\n{arguments}"


def redacted_arguments(arguments: str, redact: Callable[[str], str]) -> str:
    """The arguments with texts, keys and numbers redacted: still JSON where they were. Of a key that is there
    twice the last one stays."""
    try:
        value = json.loads(arguments)
        is_whole = value == json.loads(arguments, object_pairs_hook=_all_pairs)
        changed = _mapped(value, redact)
    except (ValueError, RecursionError):
        return redact(arguments)
    return arguments if changed == value and is_whole else json.dumps(changed, ensure_ascii=False)


def _all_pairs(pairs: list[tuple[str, object]]) -> object:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Pairs(pairs)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, dict | _Pairs):
        entries = value if isinstance(value, _Pairs) else cast("dict[str, object]", value).items()
        for key, one in entries:
            yield key
            yield from _leaves(one)
    elif isinstance(value, list):
        for one in cast("list[object]", value):
            yield from _leaves(one)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _mapped(value: object, redact: Callable[[str], str]) -> object:
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value)
        return {redact(key): _mapped(one, redact) for key, one in entries.items()}
    if isinstance(value, list):
        return [_mapped(one, redact) for one in cast("list[object]", value)]
    if isinstance(value, str):
        return redact(value)
    if value is None or isinstance(value, bool):
        return value
    shown = redact(str(value))
    return value if shown == str(value) else shown
