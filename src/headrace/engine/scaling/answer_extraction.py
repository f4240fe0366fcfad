"""What of a text is its answer: the ways in which votes find it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, cast

from headrace.engine.scaling.options import Vote
from headrace.errors import InvalidRequest
from headrace.tokenization.linear_pattern import LinearPattern

Extract = Callable[[str], str | None]

_NUMBER = re.compile(r"(?<!\d)-?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?", re.ASCII)
_BOX = "\\boxed{"


def extract_of(vote: Vote) -> Extract:
    """What finds the answer in a text, None where there is none. Where a pattern takes too long or the
    caller's function fails, it raises InvalidRequest."""
    pattern = vote.pattern or ""
    if vote.extract == "regex":
        return LinearPattern(pattern, param="vote").last
    if vote.extract == "json_pointer":
        return lambda text: at_pointer(text, pattern)
    if vote.function is not None:
        return _checked(vote.function)
    return {"text": whole, "last_number": last_number, "boxed": boxed}[vote.extract]


def whole(text: str) -> str | None:
    """The text without white space around it; None for nothing else."""
    return text.strip() or None


def last_number(text: str) -> str | None:
    """The last number, in one form: without thousands' commas, leading zeros, zeros after the last digit."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    number = found[-1].replace(",", "")
    before, _, after = number.removeprefix("-").partition(".")
    before, after = before.lstrip("0") or "0", after.rstrip("0")
    shown = f"{before}.{after}" if after else before
    return f"-{shown}" if number.startswith("-") and shown != "0" else shown


def boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{}` that is closed, braces in it included."""
    end = len(text)
    while (place := text.rfind(_BOX, 0, end)) >= 0:
        depth = 1
        for at in range(place + len(_BOX), end):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                return text[place + len(_BOX) : at].strip()
        end = place
    return None


def at_pointer(text: str, pointer: str) -> str | None:
    """What a JSON pointer (RFC 6901) finds: a string as it is, all else as JSON with its keys in order."""
    try:
        value: Any = json.loads(text)
        for token in pointer.split("/")[1:]:
            name = token.replace("~1", "/").replace("~0", "~")
            value = cast("list[Any]", value)[_index(name)] if isinstance(value, list) else value[name]
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None


def _index(name: str) -> int:
    if not (name.isascii() and name.isdecimal()) or (name != "0" and name.startswith("0")):
        raise KeyError(name)
    return int(name)


def _checked(function: Callable[[str], object]) -> Extract:
    def extract(text: str) -> str | None:
        try:
            answer = function(text)
        except Exception as error:
            raise InvalidRequest(
                f"vote: the function failed: {type(error).__name__}: {error}", param="vote"
            ) from error
        if not isinstance(answer, str | None):
            kind = type(answer).__name__
            raise InvalidRequest(f"vote: the function gave {kind}, it must give a text or None", param="vote")
        return answer

    return extract
