"""One probe of an endpoint: speed by length and load, the suite, the honesty checks; each result is kept as
soon as it is there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence

from msgspec import Struct

from headrace.providers.probe.canaries import CANARIES
from headrace.providers.probe.prompts import FIRST_TOKENS_PER_WORD, FIXED_TOKENS, ProbePrompt, new_prompt
from headrace.providers.probe.sample import Answered, CanarySample, QualitySample, SpeedSample
from headrace.providers.probe.session import BudgetSpent, Session
from headrace.providers.probe.suite import Item, suite

Sample = SpeedSample | QualitySample | CanarySample
Keep = Callable[[Sample], Awaitable[None]]
Progress = Callable[[str, int, int], None]
AT_ONCE = 4
"""Items of the suite that are asked at the same time."""
_SPREAD = (0.3, 3.0)
"""Tokens per word that are believed."""


class ProbeOutcome(Struct, frozen=True):
    """What a probe came to; `skipped` names what the budget did not allow."""

    samples: int
    spent_usd: float
    skipped: tuple[str, ...]


class Probe:
    """A probe of the session's endpoint. What it measures goes to `keep`."""

    def __init__(self, session: Session, keep: Keep, progress: Progress, seed: int | None = None) -> None:
        self._session, self._keep, self._progress = session, keep, progress
        self._draws = random.Random(seed)
        self._tokens_per_word = FIRST_TOKENS_PER_WORD
        self._done = self._total = 0
        self._skipped: list[str] = []

    async def run(self) -> ProbeOutcome:
        """Measure. An interruption loses only the requests under way."""
        plan = self._session.endpoint.plan
        speeds = [(length, load) for length in sorted(plan.prompt_tokens) for load in plan.parallel]
        items = list(suite()) if plan.quality else []
        canaries = list(CANARIES) if plan.honesty else []
        self._total = sum(load for _, load in speeds) + len(items) + len(canaries)
        self._show()
        for name in canaries:
            await self._canary(name)
        await self._suite(items)
        for length, load in speeds:
            await self._speed(length, load)
        return ProbeOutcome(self._done, self._session.spent_usd, tuple(dict.fromkeys(self._skipped)))

    def _show(self) -> None:
        self._progress(self._session.endpoint.name, self._done + len(self._skipped), self._total)

    async def _kept(self, sample: Sample) -> None:
        await self._keep(sample)
        self._done += 1
        self._show()

    def _skip(self, what: str) -> None:
        self._skipped.append(what)
        self._show()

    async def _canary(self, name: str) -> None:
        try:
            await self._kept(await CANARIES[name](self._session, self._draws))
        except BudgetSpent:
            self._skip(name)

    async def _suite(self, items: Sequence[Item]) -> None:
        turn = asyncio.Semaphore(AT_ONCE)

        async def ask(item: Item) -> None:
            async with turn:
                try:
                    one = await self._session.ask(
                        item.prompt, max_tokens=self._session.endpoint.plan.quality_tokens, greedy=True
                    )
                except BudgetSpent:
                    self._skip("quality")
                    return
                await self._kept(_quality(item, one))

        await _all([ask(item) for item in items])

    async def _speed(self, length: int, load: int) -> None:
        await _all([self._one(length, load) for _ in range(load)])

    async def _one(self, length: int, load: int) -> None:
        session, room = self._session, self._session.endpoint.plan.written(length)
        prompt = new_prompt(self._draws, length, room, self._tokens_per_word)
        try:
            one = await session.ask(prompt.text, max_tokens=room)
        except BudgetSpent:
            self._skip(f"{length:,} tokens x {load}")
            return
        if one.read is not None and prompt.words >= 40:
            low, high = _SPREAD
            self._tokens_per_word = min(high, max(low, (one.read - FIXED_TOKENS) / prompt.words))
        await self._kept(_speed(length, load, prompt, one, session.count))


def _speed(
    length: int, load: int, prompt: ProbePrompt, one: Answered, count: Callable[[str], int] | None
) -> SpeedSample:
    return SpeedSample(
        prompt_tokens=length,
        parallel=load,
        failure=one.failure,
        message=one.message,
        first_s=one.first_s,
        first_answer_s=one.first_answer_s,
        last_s=one.last_s,
        total_s=one.total_s,
        read=one.read,
        cached=one.cached,
        written=one.written,
        reasoning=0 if one.tokens is None else one.tokens.reasoning,
        own_read=None if count is None else count(prompt.text),
        own_written=None if count is None or one.failure else count(one.text),
        head_seen=prompt.code in one.text.lower(),
        usd=one.usd,
    )


def _quality(item: Item, one: Answered) -> QualitySample:
    return QualitySample(
        item=item.prompt[:60],
        group=item.group,
        right=one.failure is None and item.is_right(one.text),
        failure=one.failure,
        answer=one.text[-200:],
        usd=one.usd,
    )


async def _all(running: Sequence[Coroutine[None, None, None]]) -> None:
    """Wait for all; where one raises, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in running]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
