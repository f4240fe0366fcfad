"""Lengths of prompts and answers in tokens: a constant, or a seeded distribution."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from msgspec import Struct

from headrace.errors import UsageError

_FORMS = re.compile(r"(?P<first>\d+)(?:(?P<sign>[:~])(?P<second>\d+))?")
MAX_TOKENS = 2**20


class Lengths(Struct, frozen=True):
    """Token counts, at least 1: the constant `first`, uniform from `first` to `second`, or normal with
    mean `first` and standard deviation `second`.
    """

    form: Literal["fixed", "uniform", "normal"]
    first: int
    second: int = 0

    def draw(self, rng: np.random.Generator) -> int:
        """Draw one length."""
        if self.form == "uniform":
            return int(rng.integers(self.first, self.second + 1))
        if self.form == "normal":
            return max(1, round(rng.normal(self.first, self.second)))
        return self.first

    def __str__(self) -> str:
        sign = {"fixed": "", "uniform": ":", "normal": "~"}[self.form]
        return f"{self.first}{sign}{self.second}" if sign else str(self.first)


def parse_lengths(text: str, param: str) -> Lengths:
    """Parse `512`, `128:1024` (uniform) or `512~100` (normal). Raises UsageError that names `param`."""
    flag = "--" + param.replace("_", "-")
    found = _FORMS.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{flag} is {text!r}: write N, LOW:HIGH (uniform) or MEAN~DEVIATION (normal)", param=param
        )
    first, sign, second = int(found["first"]), found["sign"], int(found["second"] or 0)
    if not 1 <= first <= MAX_TOKENS or second > MAX_TOKENS or (sign == ":" and second < first):
        raise UsageError(
            f"{flag} is {text!r}: token counts lie between 1 and {MAX_TOKENS:,}, LOW before HIGH",
            param=param,
        )
    if sign is None:
        return Lengths("fixed", first)
    return Lengths("uniform" if sign == ":" else "normal", first, second)
