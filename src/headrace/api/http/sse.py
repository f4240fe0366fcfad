"""Server-sent events: how one is written."""

from __future__ import annotations

import msgspec

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def sse_event(body: msgspec.Struct, name: str | None = None) -> bytes:
    """One event: `event: name` where there is one, `data: {json}`, and an empty line."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encoder.encode(body) + b"\n\n"
