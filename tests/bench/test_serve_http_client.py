"""What is parsed from the bytes of a server's response."""

from __future__ import annotations

import pytest

from headrace.bench.serve.http_client import Exchange
from headrace.bench.serve.result import outcome_of

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
TEXT = b'data: {"choices":[{"index":0,"delta":{"content":"Hi"}}]}'
REASONING = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"Hm"}}]}'
CALL = b'data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0}]}}]}'
COMPLETION = b'data: {"choices":[{"index":0,"text":"Hi"}]}'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,'
    b'"prompt_tokens_details":{"cached_tokens":5}}}'
)
DONE = b"data: [DONE]"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def refusal(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d No\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


class Wire:
    """An exchange with hand-fed data and a fake clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 10.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)
        self.exchange = Exchange(b"")
        self.exchange.connection_made(Transport())

    def feed(self, now: float, data: bytes) -> None:
        self.now = now
        self.exchange.data_received(data)


class Transport:
    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    return Wire(monkeypatch)


@pytest.mark.parametrize("gap", [b"\n\n", b"\r\n\r\n"])
@pytest.mark.parametrize("event", [TEXT, REASONING, CALL, COMPLETION])
def test_only_output_counts_as_a_token_and_usage_counts_tokens(wire: Wire, event: bytes, gap: bytes) -> None:
    wire.feed(11.0, HEAD + chunk(ROLE + gap))
    wire.feed(12.0, chunk(event + gap))
    wire.feed(13.0, chunk(b": still here" + gap + event + gap + event + gap))
    wire.feed(14.0, chunk(END + gap + USAGE + gap + DONE + gap) + chunk(b""))
    found = outcome_of(wire.exchange, due_s=9.5, sent_s=10.0)
    assert found.fault is None
    assert found.output_s == (12.0, 13.0, 13.0)
    assert (found.ttft_s, found.e2e_s, found.ended_s) == (2.5, 3.5, 14.0)
    assert (found.prompt_tokens, found.output_tokens, found.cached_tokens) == (7, 9, 5)
    assert found.tpot_s == 1.0 / 8


def test_a_split_event_counts_when_it_is_complete(wire: Wire) -> None:
    reply = TEXT + b"\r\n\r\n" + TEXT + b"\n\n" + DONE + b"\n\n"
    wire.feed(11.0, HEAD)
    for index in range(len(reply)):
        wire.feed(20.0 + index, chunk(reply[index : index + 1]))
    wire.feed(999.0, chunk(b""))
    found = outcome_of(wire.exchange, 10.0, 10.0)
    first = 20.0 + len(TEXT) + 2  # the \r of the last \r\n does not end the event
    assert found.output_s == (first + 1, first + 1 + len(TEXT) + 2)
    assert (found.output_tokens, found.tokens_reported) == (2, False)


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (b"", "cut off", "before the answer"),
        (HEAD + chunk(TEXT + b"\n\n"), "cut off", "within the answer"),
        (HEAD + chunk(END + b"\n\n" + DONE + b"\n\n") + chunk(b""), "empty", "no output"),
        (HEAD + chunk(b"data: {oops}\n\n") + chunk(b""), "malformed", "oops"),
        (HEAD + chunk(b"hello") + chunk(b""), "malformed", "hello"),
        (
            HEAD + chunk(TEXT + b'\n\ndata: {"error":{"message":"out of pages"}}\n\n') + chunk(b""),
            "stream error",
            "out of pages",
        ),
        (refusal(429, b'{"error":{"message":"too many"}}'), "http 429", "too many"),
        (refusal(422, b'{"detail":"short"}'), "http 422", "short"),
        (refusal(502, b"<h1>Bad gateway</h1>"), "http 502", "Bad gateway"),
        (b"SSH-2.0-server\r\n", "cut off", "before the answer"),
    ],
)
def test_errors_have_a_kind_and_a_message(wire: Wire, reply: bytes, kind: str, message: str) -> None:
    if reply:
        wire.feed(11.0, reply)
    wire.exchange.connection_lost(None)
    found = outcome_of(wire.exchange, 10.0, 10.0)
    assert found.fault is not None
    assert found.fault.kind == kind
    assert message in found.fault.message
    assert found.fault.refused == (kind == "http 429")


def test_closing_the_connection_after_done_is_success(wire: Wire) -> None:
    wire.feed(11.0, HEAD + chunk(TEXT + b"\n\n" + DONE + b"\n\n"))
    wire.exchange.connection_lost(None)
    assert outcome_of(wire.exchange, 10.0, 10.0).fault is None
