"""Near answers are served under a certificate, and no longer than it holds."""

from __future__ import annotations

import asyncio
import random

from cached import Cached, Echo, chat

from headrace.gateway.near_gate import AUDITED, NearGate


def test_nothing_is_served_before_a_certificate_and_nothing_that_is_wrong_too_often() -> None:
    for wrong_share, is_certified in ((0.0, True), (0.3, False)):
        draw = random.Random(1).random
        gate = NearGate(0.05, draw=lambda: 1.0)
        assert not gate.serves(1.0)
        for _ in range(1000):
            gate.learn(0.5 + draw() / 2, draw() < wrong_share)
        assert (gate.certificate is not None) == is_certified == gate.serves(1.0)
        assert not gate.serves(0.1)


def test_the_gate_closes_where_answers_begin_to_be_wrong() -> None:
    gate = NearGate(0.05, draw=lambda: 1.0)
    for _ in range(400):
        gate.learn(0.9, False)
    assert gate.serves(0.95)
    for _ in range(40):
        gate.learn(0.95, True)
    assert gate.is_closed and not gate.serves(1.0)
    audited = NearGate(0.05, draw=lambda: AUDITED / 2)
    audited.certificate = gate.certificate
    assert not audited.serves(1.0)


def test_near_answers_need_the_server_and_the_request() -> None:
    async def check() -> None:
        echo = Echo(lambda request, number: "card" if "card" in request.messages[-1].content else "other")
        cached = Cached(echo, near="answer", risk=0.1)
        words = [f"where is my card {word}" for word in ("now", "please", "today", "then", "again", "really")]
        drawn = random.Random(3)

        async def ask(cache: str) -> tuple[str, str]:
            text = " ".join(
                [drawn.choice(words), *(drawn.choice(("ok", "hm", "so", "well")) for _ in range(6))]
            )
            found, _, header = await cached.ask(chat(text, cache=cache))
            return found, header

        headers = [await ask("near") for _ in range(450)]
        assert {found for found, _ in headers} == {"card"}
        assert "near" in {header for _, header in headers[-60:]}
        assert "near" not in {header for _, header in headers[:300]}
        for _ in range(30):
            assert (await ask("auto"))[1] != "near"

    asyncio.run(check())
