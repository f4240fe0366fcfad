"""W3C Trace Context: the trace that a call belongs to, read from its headers and passed on."""

from __future__ import annotations

import os
import re

from msgspec import Struct
from msgspec.structs import replace

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
SAMPLED = 1
MAX_STATE = 512  # characters; the specification lets longer ones be dropped
_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(Struct, frozen=True):
    """A span of a trace: `span_id` stands for the call, `parent_id` for the caller's span, "" where the trace
    begins here. `state` is the tracestate. Ids are lower-case hex, as in the header. With `is_recorded` spans
    of this call are made."""

    trace_id: str
    span_id: str
    parent_id: str = ""
    flags: int = 0
    state: str = ""
    is_recorded: bool = False


def new_trace(traceparent: str = "", tracestate: str = "") -> TraceContext:
    """The trace that the headers name, with a span of our own, or a new one where they name none. What is not
    valid counts as none, as the specification wants it."""
    found = _HEADER.fullmatch(traceparent.strip()) if traceparent else None
    if found is not None:
        version, trace_id, parent_id, flags, rest = found.groups()
        is_known = version != "ff" and not (version == "00" and rest)
        if is_known and trace_id.strip("0") and parent_id.strip("0"):
            is_state = len(tracestate) <= MAX_STATE and tracestate.isascii() and tracestate.isprintable()
            state = tracestate if is_state else ""
            return TraceContext(trace_id, new_span_id(), parent_id, int(flags, 16) & SAMPLED, state)
    return TraceContext(os.urandom(16).hex(), new_span_id())


def new_span_id() -> str:
    """An id that no other span has."""
    return os.urandom(8).hex()


def child_of(trace: TraceContext) -> TraceContext:
    """The trace for a part of a call that is a call of its own."""
    return replace(trace, span_id=new_span_id(), parent_id=trace.span_id)


def trace_headers(trace: TraceContext, span_id: str) -> dict[str, str]:
    """What another service is sent that the span `span_id` calls. Where no spans are made here, the caller's
    header is passed on as it came; nothing where there was none."""
    parent_id = span_id if trace.is_recorded else trace.parent_id
    if not parent_id:
        return {}
    found = {TRACEPARENT: f"00-{trace.trace_id}-{parent_id}-{trace.flags:02x}"}
    return found | ({TRACESTATE: trace.state} if trace.state else {})
