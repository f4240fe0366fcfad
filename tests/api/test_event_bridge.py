"""The way from the engine's thread to the event loop."""

from __future__ import annotations

import asyncio
import threading

from headrace.engine.request import Delta, EngineEvent
from headrace.inference.event_bridge import EventBridge


def test_one_wake_up_for_the_events_of_many_requests(monkeypatch) -> None:
    async def scene() -> tuple[int, list[str]]:
        loop = asyncio.get_running_loop()
        wake_ups: list[object] = []
        original = loop.call_soon_threadsafe

        def counted(callback, *arguments):
            wake_ups.append(callback)
            return original(callback, *arguments)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        mailbox = EventBridge(loop)
        seen: list[str] = []
        sinks = [
            mailbox.sink(lambda events, n=n: seen.extend(f"{n}{event.text}" for event in events))
            for n in range(32)
        ]

        def step(text: str) -> None:
            for sink in sinks:
                sink([Delta(0, text, ())])

        # The loop stands still while the engine hands out a step, as when it holds the interpreter lock.
        for text in "ab":
            engine = threading.Thread(target=step, args=(text,))
            engine.start()
            engine.join()
            await asyncio.sleep(0)
        return len(wake_ups), seen

    wake_ups, seen = asyncio.run(scene())
    assert wake_ups == 2
    assert seen == [f"{n}{text}" for text in "ab" for n in range(32)]


def test_an_engine_waits_for_those_who_read() -> None:
    async def scene() -> None:
        mailbox = EventBridge(asyncio.get_running_loop())
        seen: list[list[EngineEvent]] = []
        sink = mailbox.sink(seen.append)
        engine = threading.Thread(target=lambda: [sink([Delta(0, str(step), (step,))]) for step in range(5)])
        engine.start()
        engine.join(0.05)
        assert engine.is_alive(), "more than two steps wait"
        while engine.is_alive():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen[:2] == [[Delta(0, "0", (0,))], [Delta(0, "1", (1,))]]
        assert "".join(event.text for events in seen for event in events) == "01234"
        for step in range(5):  # on the loop nothing may wait for the loop
            sink([Delta(step % 2, str(step), (step,))])
        await asyncio.sleep(0)
        assert len(seen) == 10

    asyncio.run(scene())


def test_events_after_the_loop_has_closed_are_dropped() -> None:
    loop = asyncio.new_event_loop()
    sink = EventBridge(loop).sink(lambda events: None)
    loop.close()
    events: list[EngineEvent] = [Delta(0, "x", ())]
    sink(events)
    sink(events)
