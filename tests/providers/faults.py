"""A provider that fails in every way that a seed can think of, and what a client may see of it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from fake_provider import Exchange, delta, events, usage

TOOL = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    },
}
Fault = Callable[["Script"], Awaitable[None]]


class Script:
    """What one attempt gets. `words` are the answer's, and tell the attempt by their number."""

    def __init__(self, exchange: Exchange, number: int, dice: random.Random) -> None:
        self.exchange, self.dice = exchange, dice
        self.words = [f"<{number}.{at}>" for at in range(dice.randint(1, 12))]
        self.calls = "tools" in exchange.body and dice.random() < 0.7
        self.was_whole = False
        self.billed: tuple[int, int] | None = None
        """Tokens of the usage of a whole answer."""

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """A right answer, without usage."""
        found = [delta(role="assistant", content="")]
        if self.dice.random() < 0.3:
            found.append(delta(reasoning_content="hm"))
        if self.calls:
            found.append(
                delta(
                    tool_calls=[{"index": 0, "id": "call_a", "function": {"name": "note", "arguments": ""}}]
                )
            )
            text = json.dumps({"text": "".join(self.words)})
            cut = self.dice.randint(0, len(text))
            for part in (text[:cut], text[cut:]):
                found.append(delta(tool_calls=[{"index": 0, "function": {"arguments": part}}]))
            return [*found, delta(finish="tool_calls")]
        return [*found, *(delta(content=word) for word in self.words), delta(finish="stop")]

    async def pieces(self, data: bytes) -> None:
        """Send bytes in random pieces."""
        at = 0
        while at < len(data):
            size = self.dice.choice((1, 7, 64, 1000, 10_000))
            await self.exchange.send(data[at : at + size])
            at += size
            if self.dice.random() < 0.1:
                await asyncio.sleep(0)

    async def whole(self, **head: str) -> None:
        """A right answer, in one of the ways in which servers may write it."""
        billed = self.dice.randint(1, 9), len(self.words)
        counts = usage(*billed)
        data = events(*self.chunks, counts, done=self.dice.random() < 0.8)
        if self.dice.random() < 0.2:
            data = data.replace(b"\n", self.dice.choice((b"\r\n", b"\r")))
        if self.dice.random() < 0.1:
            data = b"\xef\xbb\xbf: hello\n\n" + data
        await self.exchange.begin(**head)
        await self.pieces(data)
        self.was_whole, self.billed = True, billed

    async def broken(self, data: bytes, status: int = 200, **head: str) -> None:
        await self.exchange.begin(status, **head)
        await self.pieces(data)


async def cut(script: Script) -> None:
    """The stream ends, or is reset, after any byte before the usage is complete: after it the answer is
    whole, also without the last line ends."""
    data = events(*script.chunks, usage())
    end = script.dice.randint(0, data.rindex(b"}"))
    await script.broken(data[:end])
    if script.dice.random() < 0.5:
        script.exchange.abort()


async def nothing(script: Script) -> None:
    script.exchange.abort()


async def refused(script: Script) -> None:
    status = script.dice.choice((400, 401, 402, 403, 404, 408, 409, 413, 429, 500, 502, 503, 504, 529))
    bodies = (
        b"",
        b"<html>no</html>",
        b'{"error":{"message":"no","type":"x","code":null}}',
        b'{"error":"no"}',
        b'[{"error":{"message":"no"}}]',
        b'{"detail":[{"loc":["body"],"msg":"no"}]}',
        b"\xff\xfe",
    )
    waits = ("", "0", "0.01", "-5", "1e308", "nan", "soon", "Wed, 21 Oct 2065 07:28:00 GMT", "9" * 400)
    head = {"content_type": "application/json", "retry_after": script.dice.choice(waits)}
    await script.broken(script.dice.choice(bodies), status, **head)


async def late_error(script: Script) -> None:
    """An error in a stream whose status was 200, before or after content."""
    chunks = script.chunks[: script.dice.randint(0, 3)]
    error = script.dice.choice(
        (
            {"error": {"message": "overloaded", "type": "overloaded_error"}},
            {"error": {"message": "no", "code": 502}},
            {"error": {"message": "no", "code": "rate_limit_exceeded"}},
            {"error": "no"},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]},
        )
    )
    await script.broken(events(*chunks, error, *script.chunks))


async def malformed(script: Script) -> None:
    bad = script.dice.choice(
        (
            b"data: {\n\n",
            b"data: []\n\n",
            b'data: {"choices":[{"index":"x"}]}\n\n',
            b'data: {"choices":[{"index":7,"delta":{"content":"x"}}]}\n\n',
            b'data: {"choices":[{"index":-1,"delta":{"content":"x"}}]}\n\n',
            b'data: {"choices":[{"index":0,"delta":{"content":5}}]}\n\n',
            b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe"}}]}\n\n',
            b'data: {"choices":[{"index":0,"delta":{"content":"\\ud800"}}]}\n\n',
            events(delta(tool_calls=[{"index": 0, "function": {"name": "rm"}}]), done=False),
            b"data: " + b"[" * 5000 + b"\n\n",
        )
    )
    at = script.dice.randint(0, 4)
    await script.broken(events(*script.chunks[:at], done=False) + bad + events(*script.chunks))


async def after_finish(script: Script) -> None:
    await script.broken(events(*script.chunks, delta(content="more"), usage()))


async def unclosed(script: Script) -> None:
    """Arguments that are no JSON when the call ends."""
    call = {"index": 0, "id": "call_a", "function": {"name": "note", "arguments": '{"text": "x'}}
    await script.broken(events(delta(tool_calls=[call]), delta(finish="tool_calls"), usage()))


async def odd_usage(script: Script) -> None:
    """Counts that cannot be right: the answer is right all the same."""
    counts = script.dice.choice(
        (
            usage(-5, 3),
            usage(5, -3),
            usage(2**70, 3),
            usage(5, 3, prompt_tokens_details={"cached_tokens": 99}),
            {"choices": [], "usage": "many"},
            {"choices": [], "usage": {"prompt_tokens": "5"}},
            {"choices": [], "usage": None},
        )
    )
    await script.exchange.begin()
    await script.pieces(events(*script.chunks, counts))
    script.was_whole = True


async def no_stream(script: Script) -> None:
    head = script.dice.choice(("text/html", "application/json", "image/png"))
    await script.broken(b'{"choices": []}', content_type=head)


async def redirect(script: Script) -> None:
    await script.broken(b"", script.dice.choice((301, 302, 307, 308)), location="http://127.0.0.1:1/")


async def zipped(script: Script) -> None:
    await script.broken(
        b"\x1f\x8b" + bytes(100), content_encoding=script.dice.choice(("gzip", "br", "deflate"))
    )


async def stall(script: Script) -> None:
    data = events(*script.chunks)
    await script.broken(data[: script.dice.randint(0, len(data) // 2)])
    await asyncio.sleep(1.5)


async def no_http(script: Script) -> None:
    await script.exchange.send(
        script.dice.choice((b"hello\r\n\r\n", b"HTTP/1.1 200\r\nx" + b"y" * 9000 + b"\r\n\r\n", b""))
    )


FAULTS: tuple[Fault, ...] = (
    *(cut, cut, cut, nothing, refused, refused, late_error, late_error, malformed, malformed),
    *(after_finish, unclosed, odd_usage, no_stream, redirect, zipped, no_http),
)
RARE: tuple[Fault, ...] = (stall,)


async def play(script: Script) -> None:
    """A right answer, or a fault."""
    luck = script.dice.random()
    if luck < 0.25:
        await script.whole()
    elif luck < 0.255:
        await script.dice.choice(RARE)(script)
    else:
        await script.dice.choice(FAULTS)(script)
