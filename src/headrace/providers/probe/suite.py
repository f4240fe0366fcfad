"""A small suite of questions whose answers are checked: `suite.toml` beside this file.

It finds what is broken, such as a wrong template or a coarse quantization, and what changes; it does not
order good models.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

FILE = Path(__file__).with_name("suite.toml")
Check = Literal["number", "word", "json", "match"]
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_MARKS = " \t\r\n.!\"'`*"
MAX_ANSWER = 20_000


class Item(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question; `right` is what its check compares with."""

    group: str
    prompt: str
    check: Check
    right: Any

    def is_right(self, answer: str) -> bool:
        """Whether an answer is right. No answer raises."""
        return len(answer) <= MAX_ANSWER and _CHECKS[self.check](answer.strip(), self.right)


@cache
def suite() -> Sequence[Item]:
    """All questions, in the order of the file."""
    return [msgspec.convert(one, Item) for one in tomllib.loads(FILE.read_text("utf-8"))["item"]]


def _number(answer: str, right: float) -> bool:
    found = _NUMBER.findall(answer)
    return bool(found) and math.isclose(float(found[-1].replace(",", "")), right)


def _word(answer: str, right: Sequence[str]) -> bool:
    return answer.strip(_MARKS).lower() in right


def _json(answer: str, right: object) -> bool:
    try:
        return msgspec.json.decode(answer) == right
    except (msgspec.DecodeError, RecursionError):
        return False


def _match(answer: str, right: str) -> bool:
    return re.fullmatch(right, answer) is not None


_CHECKS = {"number": _number, "word": _word, "json": _json, "match": _match}
