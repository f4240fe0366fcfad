"""Honesty checks: whether an endpoint does what it accepts, and charges what it says."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping

from headrace.providers.probe.prompts import new_prompt
from headrace.providers.probe.sample import Answered, CanarySample
from headrace.providers.probe.session import Session

CACHED_PROMPT_TOKENS = 2500
"""Long enough for the caches of all providers; OpenAI's begin at 1,024 tokens, others' at 2,048."""
TOLERANCE = 0.02
_COUNT = "Count from 1 to 9. Write only the numbers, separated by single spaces."
_GREEDY = "Name three rivers and the countries they flow through, in two sentences."
_DRAWN = "Invent a name for a ship and describe its journey in two sentences."

Canary = Callable[[Session, random.Random], Awaitable[CanarySample]]


def _failed(name: str, *answers: Answered) -> CanarySample | None:
    """The sample where a request failed."""
    usd = sum(one.usd for one in answers)
    for one in answers:
        if one.failure is not None:
            verdict = "unsupported" if one.failure in ("unsupported", "invalid") else "unknown"
            return CanarySample(canary=name, verdict=verdict, detail=one.message, usd=usd)
    return None


def _judged(name: str, right: bool, detail: str, *answers: Answered) -> CanarySample:
    return CanarySample(
        canary=name,
        verdict="ok" if right else "broken",
        detail="" if right else detail,
        usd=sum(one.usd for one in answers),
    )


async def stop(session: Session, draws: random.Random) -> CanarySample:
    """A stop string ends the answer before it."""
    room = session.endpoint.plan.quality_tokens
    one = await session.ask(_COUNT, max_tokens=room, greedy=True, sampling={"stop": ("5",)})
    wrong = "5" in one.text
    return _failed("stop", one) or _judged("stop", not wrong, "the answer goes on after the stop string", one)


async def max_tokens(session: Session, draws: random.Random) -> CanarySample:
    """No answer is longer, or billed for more, than `max_tokens`."""
    one = await session.ask(_DRAWN, max_tokens=16)
    if (failed := _failed("max_tokens", one)) is not None:
        return failed
    if one.written is None:
        return CanarySample(canary="max_tokens", verdict="unknown", detail="no token counts", usd=one.usd)
    return _judged("max_tokens", one.written <= 16, f"{one.written:,} tokens are reported for 16", one)


async def seed(session: Session, draws: random.Random) -> CanarySample:
    """Equal seeds give equal answers where other seeds give others."""
    room = min(64, session.endpoint.plan.quality_tokens)
    first = draws.randrange(2**31)
    answers: list[Answered] = []
    for number in (first, first, first ^ 1):
        answers.append(await session.ask(_DRAWN, max_tokens=room, sampling={"seed": number}))
        if (failed := _failed("seed", *answers)) is not None:
            return failed
    same, other = answers[0].text == answers[1].text, answers[0].text == answers[2].text
    if same and other:
        usd = sum(one.usd for one in answers)
        return CanarySample(canary="seed", verdict="unknown", detail="every answer is the same", usd=usd)
    return _judged("seed", same, "two answers with one seed differ", *answers)


async def logprobs(session: Session, draws: random.Random) -> CanarySample:
    """Log probabilities come where they are asked for."""
    room = session.endpoint.plan.quality_tokens
    one = await session.ask(_COUNT, max_tokens=room, greedy=True, sampling={"logprobs": 0})
    return _failed("logprobs", one) or _judged("logprobs", one.logprobs > 0, "none came", one)


async def cache(session: Session, draws: random.Random) -> CanarySample:
    """A prompt that was just sent is reported as cached, and charged as such where the price is stated."""
    prompt = new_prompt(draws, CACHED_PROMPT_TOKENS, 1, 1.0)
    first = await session.ask(prompt.text, max_tokens=16)
    second = await session.ask(prompt.text, max_tokens=16)
    if (failed := _failed("cache", first, second)) is not None:
        return failed
    usd = first.usd + second.usd
    if second.tokens is None or second.read is None:
        return CanarySample(canary="cache", verdict="unknown", detail="no token counts", usd=usd)
    share = f"{second.cached:,} of {second.read:,} tokens are reported as cached"
    if not second.cached or second.stated_usd is None:
        verdict = "ok" if second.cached else "unknown"
        return CanarySample(canary="cache", verdict=verdict, detail=share, usd=usd)
    due_usd = session.price.usd_of(second.tokens)
    right = second.stated_usd <= due_usd * (1 + TOLERANCE)
    detail = f"{share}, but {second.stated_usd:.6f} dollars charged in place of {due_usd:.6f}"
    return _judged("cache", right, detail, first, second)


async def drift(session: Session, draws: random.Random) -> CanarySample:
    """A greedy answer as a digest, which is compared with that of the last probe."""
    one = await session.ask(_GREEDY, max_tokens=min(128, session.endpoint.plan.quality_tokens), greedy=True)
    digest = hashlib.sha256(one.text.encode("utf-8", "replace")).hexdigest()[:16]
    return _failed("drift", one) or CanarySample(canary="drift", verdict="ok", detail=digest, usd=one.usd)


CANARIES: Mapping[str, Canary] = {
    "stop": stop,
    "max_tokens": max_tokens,
    "seed": seed,
    "logprobs": logprobs,
    "cache": cache,
    "drift": drift,
}
