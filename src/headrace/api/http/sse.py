"""Server-sent events: how one is written."""

from __future__ import annotations

import msgspec

from headrace.api.http.endpoint import Content

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


def sse_event(body: msgspec.Struct, name: str | None = None) -> bytes:
    """One event: `event: name` where there is one, `data: {json}`, and an empty line."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + _encoder.encode(body) + b"\n\n"


def sse_content(description: str, *bodies: type[msgspec.Struct], typed: bool = True) -> Content:
    """A stream of events (WHATWG HTML, "Server-sent events") in the OpenAPI document."""
    properties = {"event": {"type": "string"}, "data": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["data"], "description": description}
    return Content(MEDIA_TYPE, schema, bodies, typed)


def chunks(body: type[msgspec.Struct]) -> tuple[Content]:
    """The stream of an endpoint of OpenAI's."""
    text = f"With stream: true, `data:` lines of {body.__name__} (or an ErrorBody), then `data: [DONE]`."
    return (sse_content(text, body, typed=False),)
