"""Whether two replies to a request say the same: as bytes of text, however their events were cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec
from msgspec import Struct

_PIECES = frozenset(
    {"content", "text", "reasoning_content", "arguments", "delta", "partial_json", "response", "thinking"}
)
"""Names of texts that come in pieces, one in each event."""
_VOLATILE = frozenset(
    {
        *("timings", "created_at", "completed_at", "sequence_number", "logprobs", "warnings", "obfuscation"),
        *("total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_count"),
        *("prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens", "input_tokens"),
        *("cache_creation_input_tokens", "system_fingerprint", "completion_tokens_details", "tokens"),
    }
)
"""Names of what says when and how a reply was computed, not what it says."""
SHOWN = 60  # bytes around a difference


class ReplyDifference(Struct, frozen=True):
    """Where two replies part: in which part of them, at which byte, and what is there."""

    where: str
    byte: int
    recorded: str
    replayed: str


def difference(recorded: Iterable[bytes], replayed: Iterable[bytes]) -> ReplyDifference | None:
    """The first difference of what two replies say; None where there is none."""
    old, new = _said(recorded), _said(replayed)
    for where in (*old, *(one for one in new if one not in old)):
        before, after = old.get(where, b""), new.get(where, b"")
        if before != after:
            at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), -1)
            at = min(len(before), len(after)) if at < 0 else at
            first = max(0, at - SHOWN)
            shown = (one[first : at + SHOWN].decode("utf-8", "replace") for one in (before, after))
            return ReplyDifference(where, at, *shown)
    return None


def text_of(parts: Iterable[bytes]) -> str:
    """The texts of a reply, one after the other."""
    said = _said(parts)
    texts = [data for where, data in said.items() if where.rpartition("/")[2] in _PIECES]
    return "\n".join(data.decode("utf-8", "replace") for data in texts)


def error_of(parts: Iterable[bytes]) -> str:
    """What a refusal says."""
    said = _said(parts)
    found = next(
        (data for where, data in said.items() if where.endswith("/message")), b"".join(said.values())
    )
    return found.decode("utf-8", "replace")


def _said(parts: Iterable[bytes]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for event in _events(b"".join(parts)):
        kind = str(event.get("type", ""))
        for where, value in _values(event, kind):
            name = where.rpartition("/")[2]
            data = value.encode() if isinstance(value, str) else msgspec.json.encode(value)
            found[where] = found.get(where, b"") + data if name in _PIECES else data
    return found


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    """The JSON of a body, of each line or of each event."""
    try:
        yield {"body": msgspec.json.decode(data)}
        return
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    for line in data.split(b"\n"):
        text = line.removeprefix(b"data: ")
        if text.startswith(b"{"):
            try:
                yield msgspec.json.decode(text, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError):
                yield {"text": text.decode("utf-8", "replace")}


def _values(value: object, where: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in cast("dict[str, object]", value).items():
            if name not in _VOLATILE:
                yield from _values(inner, f"{where}/{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(cast("list[object]", value)):
            own = _index(inner, place)
            yield from _values(inner, f"{where}/{own}")
    elif value is not None and value != "":
        yield where, value


def _index(value: object, place: int) -> object:
    """Under which number an event has a member of a list."""
    return cast("dict[str, object]", value).get("index", place) if isinstance(value, dict) else place
