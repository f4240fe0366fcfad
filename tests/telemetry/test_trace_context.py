"""W3C Trace Context: what is valid goes on, what is not begins anew, and nothing else is passed on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.telemetry.trace_context import child_of, new_trace, trace_headers

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HEADER = f"00-{TRACE}-{PARENT}-01"


def test_a_valid_header_is_gone_on_with() -> None:
    trace = new_trace(HEADER, "vendor=1,other=2")
    assert (trace.trace_id, trace.parent_id, trace.flags) == (TRACE, PARENT, 1)
    assert trace.span_id not in (PARENT, "") and trace.state == "vendor=1,other=2"
    child = child_of(trace)
    assert (child.trace_id, child.parent_id) == (TRACE, trace.span_id) and child.span_id != trace.span_id


@pytest.mark.parametrize(
    "header",
    [
        *("", "x", HEADER.upper(), HEADER[:-1], HEADER + "-more", "ff" + HEADER[2:]),
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        HEADER.replace("-", "_"),
        HEADER + "\n" + HEADER,
    ],
)
def test_what_is_not_valid_begins_a_trace(header: str) -> None:
    trace = new_trace(header, "vendor=1")
    assert trace.trace_id != TRACE and len(trace.trace_id) == 32
    assert trace.parent_id == trace.state == "" and trace.flags == 0


def test_a_later_version_may_have_more() -> None:
    assert new_trace(f"01-{TRACE}-{PARENT}-01-more").trace_id == TRACE


def test_states_that_are_too_long_or_no_text_of_headers_are_dropped() -> None:
    assert new_trace(HEADER, "a=" + "b" * 1000).state == ""
    assert new_trace(HEADER, "a=\xe9").state == new_trace(HEADER, "a=b\x7f").state == ""


def test_headers_for_others() -> None:
    assert trace_headers(new_trace(), "a" * 16) == {}
    passed_on = new_trace(HEADER, "vendor=1")
    assert trace_headers(passed_on, "a" * 16) == {"traceparent": HEADER, "tracestate": "vendor=1"}
    recorded = replace(passed_on, is_recorded=True, state="")
    assert trace_headers(recorded, "a" * 16) == {"traceparent": f"00-{TRACE}-{'a' * 16}-01"}
