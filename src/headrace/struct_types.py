"""Types that msgspec converts to, made safe to convert to in any thread."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TypeVar

import msgspec

T = TypeVar("T")
_looking = threading.Lock()
_known: set[object] = set()


def thread_safe(kind: type[T]) -> type[T]:
    """The same type. msgspec looks at a struct's fields when it first converts to one, and another thread
    that converts to the same meanwhile crashes the process (seen with 0.22): so the first look is taken here,
    in one thread at a time. Write `type=thread_safe(X)` wherever several threads may be the first."""
    if kind not in _known:
        with _looking, suppress(msgspec.ValidationError):
            msgspec.convert(None, kind)
        _known.add(kind)
    return kind
