"""Regular expressions from clients: searched by RE2, without backtracking, within a fixed number of steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import product
from typing import Any

from headrace.errors import InvalidRequest

MAX_CHARACTERS = 1000
MAX_STEPS = 20_000_000  # size of the program times bytes of text: below a second, whatever the pattern
_MAX_MEMORY = 1 << 20  # bytes, of a compiled pattern and its search

_re2: Any = importlib.import_module("re2")  # it has no types


def compile_re2(source: str, refused: Callable[[str], InvalidRequest], *, case_sensitive: bool = True) -> Any:
    """The pattern, within bounded memory. Raises what `refused` makes of the cause where RE2 cannot read
    it."""
    options = _re2.Options()
    options.log_errors, options.max_mem = False, _MAX_MEMORY
    options.case_sensitive = case_sensitive
    try:
        return _re2.compile(source, options)
    except UnicodeEncodeError as error:
        raise refused(str(error)) from None
    except _re2.error as error:
        raise refused(error.args[0].decode("utf-8", "replace")) from None


class LinearPattern:
    """A pattern in RE2's syntax (https://github.com/google/re2/wiki/Syntax) with at most one group that
    captures; \\d, \\w, \\s and \\b are those of ASCII.

    A pattern must not match the empty text: which of two such matches is the last is a matter of taste.
    All searches of one object together take `MAX_STEPS` at most.
    """

    def __init__(self, source: str, *, param: str | None = None) -> None:
        """Raises InvalidRequest that names `param` where the pattern cannot be searched so."""
        self._param, self._steps = param, 0
        if len(source) > MAX_CHARACTERS:
            raise self._refused(f"it has {len(source):,} characters, at most {MAX_CHARACTERS:,} are allowed")
        pattern = compile_re2(source, self._refused)
        if pattern.groups > 1:
            raise self._refused("it has several groups: write (?:...) for those that are not the answer")
        if any(_matches_between(pattern, *around) for around in product(("", "\n", " ", "a"), repeat=2)):
            raise self._refused("it matches the empty text: an answer has characters, write + for *")
        # A loop over all matches, in which a group keeps what it matched last: one search, not one for each.
        self._matches = compile_re2(rf"(?:(?s:.*?)({source}))*", self._refused)

    def last(self, text: str) -> str | None:
        """What the group holds in the last of all matches that do not overlap (without a group: the match);
        None where there is none. InvalidRequest where that could take too long."""
        data = text.encode("utf-8", "replace")
        self._steps += self._matches.programsize * len(data)
        if self._steps > MAX_STEPS:
            raise self._refused(f"it could take {self._steps:,} steps to search the text, over {MAX_STEPS:,}")
        found = self._matches.match(data)
        start, end = found.span(1)
        if start < 0:
            return None
        # The group may hold what it matched in an earlier round of the loop.
        if self._matches.groups > 1 and found.start(2) >= start:
            start, end = found.span(2)
        return data[start:end].decode()

    def _refused(self, cause: str) -> InvalidRequest:
        return InvalidRequest(
            f"the pattern cannot be searched: {cause}: simplify it (RE2's syntax)", param=self._param
        )


def _matches_between(pattern: Any, before: str, after: str) -> bool:
    """Whether the empty text matches there: that depends on its neighbors alone (RE2 has no look-around)."""
    place = len(before)
    return pattern.fullmatch(before + after, place, place) is not None
