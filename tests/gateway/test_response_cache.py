"""Kept answers: what is given again, what never is, and who shares what."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from cached import Cached, Clock, Echo, call_of, chat, text

from headrace.chat.messages import Message
from headrace.errors import Overloaded, StoreError
from headrace.inference.events import PromptFinished


def run(work: Any) -> Any:
    return asyncio.run(work)


async def _twice(cached: Cached, *requests: Any, names: tuple[str, str] = ("", "")) -> list[str]:
    return [
        (await cached.ask(request, call_of(name)))[2] for request, name in zip(requests, names, strict=True)
    ]


def test_a_hit_is_the_original_stream_with_its_usage() -> None:
    async def check() -> None:
        echo = Echo()
        cached = Cached(echo)
        first_text, first, header = await cached.ask(chat("a b c"))
        assert header == "none"
        call = call_of()
        again_text, again, header = await cached.ask(chat("a b c"), call)
        assert (header, again_text, len(echo.requests)) == ("exact", first_text, 1)
        assert [list(batch) for batch in again] == [list(batch) for batch in first]
        assert [one.completion_tokens for one in call.usages] == [5] and call.first_token_s is not None
        assert cached.cache.saved_tokens["m"] == 8

    run(check())


def test_what_is_not_deterministic_is_computed_each_time() -> None:
    async def check() -> None:
        cached = Cached(Echo())
        assert await _twice(cached, *[chat(sampling={"temperature": 0.7})] * 2) == ["none", "none"]
        assert await _twice(cached, *[chat(sampling={"temperature": 0.7, "seed": 3})] * 2) == [
            "none",
            "exact",
        ]
        cached.is_local = False
        assert await _twice(cached, *[chat(sampling={"temperature": 1, "seed": 3})] * 2) == ["none", "none"]
        assert await _twice(cached, *[chat(sampling={"temperature": 0})] * 2) == ["none", "exact"]

    run(check())


def test_what_asks_not_to_be_kept_is_not() -> None:
    async def check() -> None:
        cached = Cached(Echo())
        assert await _twice(cached, *[chat(cache="off")] * 2) == ["none", "none"]
        for _ in range(2):
            assert (await cached.ask(chat(), call_of(no_store=True)))[2] == "none"
        tool_run = (Message("user", "x"), Message("tool", "42", tool_call_id="1"), Message("user", "y"))
        assert await _twice(cached, *[chat(messages=tool_run)] * 2) == ["none", "none"]
        assert not len(cached.cache)

    run(check())


def test_errors_and_cut_answers_are_not_kept() -> None:
    async def check() -> None:
        echo = Echo()
        cached = Cached(echo)
        echo.reason = "cancelled"
        assert await _twice(cached, *[chat("cut")] * 2) == ["none", "none"]

        def fail(request: Any, number: int) -> str:
            raise Overloaded("full", reason="test")

        failing = Cached(Echo(fail))
        for _ in range(2):
            with pytest.raises(Overloaded):
                await failing.ask(chat())
        assert not len(failing.cache) and not len(cached.cache)

    run(check())


def test_tenants_share_nothing_and_teams_what_they_are_told() -> None:
    async def check() -> None:
        cached = Cached(Echo())
        assert await _twice(cached, *[chat("who")] * 2, names=("eve", "ann")) == ["none", "none"]
        red = Cached(Echo(), scope="team", teams={"red": ["ann", "bob"]})
        assert await _twice(red, *[chat("who")] * 2, names=("ann", "bob")) == ["none", "exact"]
        assert await _twice(red, *[chat("who")] * 2, names=("eve", "red")) == ["none", "none"]

    run(check())


def test_other_weights_have_other_answers() -> None:
    async def check() -> None:
        cached = Cached(Echo())
        await cached.ask(chat())
        cached.digest = b"others"
        assert (await cached.ask(chat()))[2] == "none"

    run(check())


def test_a_key_that_fills_the_cache_drives_out_its_own() -> None:
    async def check() -> None:
        cached = Cached(Echo(), bytes=64 * 1024)
        await cached.ask(chat("precious"), call_of("ann"))
        for number in range(100):
            await cached.ask(chat(f"{number} {'x' * 800}"), call_of("eve"))
        assert cached.cache.bytes <= 64 * 1024 and cached.cache.counts["m", "evicted"] > 0
        assert (await cached.ask(chat("precious"), call_of("ann")))[2] == "exact"
        assert len(cached.cache._answers.all()) == len(cached.cache)

    run(check())


def test_a_reply_that_is_too_large_is_not_kept() -> None:
    async def check() -> None:
        cached = Cached(Echo(), bytes=64 * 1024)
        assert await _twice(cached, *[chat("y" * 5000)] * 2) == ["none", "none"]

    run(check())


def test_answers_survive_a_restart_and_age_by_a_clock_that_never_goes_back(tmp_path: Path) -> None:
    async def start(wall_s: float, **settings: Any) -> Cached:
        return Cached(Echo(), tmp_path / "c.sqlite3", wall=Clock(wall_s), ttl=1000.0, **settings)

    async def check() -> None:
        cached = await start(1_000_000)
        await cached.ask(chat())
        for jump_s in (-9e8, 9e8):  # the wall clock is set while the server runs
            cached.wall.now_s += jump_s
            assert (await cached.ask(chat()))[2] == "exact"
        cached.monotonic.now_s += 600
        assert (await cached.ask(chat()))[2] == "exact"
        cached.cache.close()
        behind = await start(0)  # the clock is behind at the start: nothing becomes younger
        assert (await behind.ask(chat()))[2] == "exact"
        behind.monotonic.now_s += 401
        assert (await behind.ask(chat()))[2] == "none"
        behind.cache.close()
        ahead = await start(1e10)
        assert (await ahead.ask(chat()))[2] == "none"
        ahead.cache.close()

    run(check())


def test_a_full_disk_is_a_miss_and_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check() -> None:
        cached = Cached(Echo())

        def full(*_: Any) -> None:
            raise StoreError("the store failed: database or disk is full")

        monkeypatch.setattr(cached.cache._answers, "add", full)
        for number in range(5):
            cached.monotonic.now_s += 60
            assert (await cached.ask(chat(str(number))))[2] == "none"
            assert (await cached.ask(chat(str(number))))[2] == "none"
        assert cached.cache.counts["", "failed"] > 1 and not len(cached.cache)

    with caplog.at_level(logging.WARNING):
        run(check())
    assert caplog.text.count("answers are not kept for now") == 1


def test_a_damaged_answer_is_a_miss(tmp_path: Path) -> None:
    async def check() -> None:
        cached = Cached(Echo(), tmp_path / "c.sqlite3")
        await cached.ask(chat())
        body = cached.cache._answers.database.query("SELECT body FROM cached_bodies")[0][0]
        assert isinstance(body, bytes)
        for place in range(0, len(body), 17):
            changed = bytes([*body[:place], body[place] ^ 1, *body[place + 1 :]])
            cached.cache._answers.database.execute("UPDATE cached_bodies SET body = ?", (changed,))
            [answer] = cached.cache.entries
            assert cached.cache.body(answer) is None
        assert (await cached.ask(chat()))[2] == "none"
        assert (await cached.ask(chat()))[2] == "exact"

    run(check())


def test_equal_requests_are_computed_once_until_the_last_has_left() -> None:
    async def check() -> None:
        echo = Echo()
        echo.hold.clear()
        cached = Cached(echo)
        asking = [asyncio.ensure_future(cached.ask(chat("a b"))) for _ in range(20)]
        await asyncio.sleep(0.01)
        asking[0].cancel()  # the one for which it was begun
        await asyncio.sleep(0.01)
        assert len(echo.requests) == 1 and not echo.cancelled
        echo.hold.set()
        texts = {(await one)[0] for one in asking[1:]}
        assert texts == {"1 says a b"} and cached.cache.counts["m", "shared"] == 19
        echo.hold.clear()
        leaving = [asyncio.ensure_future(cached.ask(chat("c"))) for _ in range(3)]
        await asyncio.sleep(0.01)
        for one in leaving:
            one.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        assert echo.cancelled == 1 and len(echo.requests) == 2 and len(cached.cache) == 1

    run(check())


def test_a_reader_that_leaves_early_leaves_the_others_all_of_it() -> None:
    async def check() -> None:
        echo = Echo()
        cached = Cached(echo)
        words = " ".join(map(str, range(200)))
        source: Any = cached.handler.handle(chat(words), call_of())
        async with aclosing(source):
            first = [await anext(source) for _ in range(3)]
            other = asyncio.ensure_future(cached.ask(chat(words)))
            await asyncio.sleep(0.01)
        assert text(first) == "1"
        assert (await other)[0] == f"1 says {words}" and len(echo.requests) == 1

    run(check())


def test_an_audit_that_finds_another_answer_purges_the_model(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        echo = Echo(lambda request, number: "same" if request.messages[-1].content == "a" else f"{number}")
        cached = Cached(echo)
        audits = cached.handler.audits
        audits._draw = lambda: 0.0
        for word, counted in (("a", 0), ("b", 1)):
            await cached.ask(chat(word))
            source: Any = cached.handler.handle(chat(word), call_of())
            async with aclosing(source):
                assert [batch async for batch in source]
            while audits._waiting:
                await asyncio.sleep(0.01)
            assert cached.cache.counts["m", "mismatch"] == counted
        assert cached.cache.counts["m", "audited"] == 2 and not len(cached.cache)

    with caplog.at_level(logging.ERROR):
        run(check())
    assert "is not what is computed now" in caplog.text


def test_a_near_answer_is_the_prediction_and_changes_nothing_else() -> None:
    async def check() -> None:
        echo = Echo()
        cached = Cached(echo, near="draft")
        await cached.ask(chat("how do I change the PIN of my card"))
        found, _, header = await cached.ask(chat("how do I change the PIN of my old card"))
        assert header == "draft" and found == "2 says how do I change the PIN of my old card"
        assert echo.requests[1].prediction == "1 says how do I change the PIN of my card"
        other = await cached.ask(chat("how do I change the PIN of my own card"), call_of("eve"))
        assert other[2] == "none" and echo.requests[2].prediction is None  # another tenant's
        system = (Message("system", "be brief"), Message("user", "how do I change the PIN of my card"))
        assert (await cached.ask(chat(messages=system)))[2] == "none"
        assert isinstance(other[1][-1][-1], PromptFinished)

    run(check())


def test_an_explained_request_has_a_trace_of_its_own() -> None:
    async def check() -> None:
        echo = Echo()
        echo.hold.clear()
        cached = Cached(echo)
        calls = [call_of(), call_of(explain=True), call_of(explain=True)]
        asking = [asyncio.ensure_future(cached.ask(chat("a"), call)) for call in calls]
        await asyncio.sleep(0.01)
        assert len(echo.requests) == 3 and [call.explain for call in echo.calls] == [False, True, True]
        assert echo.calls[1].stages is calls[1].stages and echo.calls[1].traces is calls[1].traces
        echo.hold.set()
        await asyncio.gather(*asking)
        assert [one.name for one in calls[1].stages] == ["response cache"]
        assert (await cached.ask(chat("a"), call_of(explain=True)))[2] == "exact"

    run(check())


def test_what_a_handler_says_is_not_to_be_kept_is_not() -> None:
    async def check() -> None:
        echo = Echo()
        echo.keeps = False
        cached = Cached(echo)
        assert await _twice(cached, *[chat("a")] * 2) == ["none", "none"]
        assert not len(cached.cache)

    run(check())
