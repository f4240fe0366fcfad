"""A judge compares answers of students with those of the incumbent: blind, in both orders, after all clients.

The judge is a model of this machine or of a provider. What it costs is booked as that of any request; time of
this machine under the route `adapt/judge`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from headrace.adapt.decisions.comparisons import AnswerPair, JudgedPair, Verdict, compared_since
from headrace.adapt.students.registry import StudentRow
from headrace.chat.messages import Message
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import EngineStopped, InvalidRequest
from headrace.evals.judging import PREFERS, Verdicts
from headrace.evals.suite import Judge
from headrace.gateway.replay import nano_usd_of
from headrace.grammar.constraint import Constraint
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext, new_request_id
from headrace.inference.handler import Handler, open_stream
from headrace.inference.requests import ChatRequest
from headrace.inference.result import collect
from headrace.storage.database import Database
from headrace.storage.keys import KeyLimits

AT_ONCE = 4
"""Pairs."""
DAY_S = 86_400.0
ROUTE = "adapt/judge"
WORDS = Constraint("choice", json.dumps(list(PREFERS)))


class JudgeReply(Struct, frozen=True):
    """What a judge said; "" where it would not. And what that cost."""

    text: str
    nano_usd: int = 0


AskJudge = Callable[[str, str, int], JudgeReply]
"""As `evals.judging.Ask`. Raises what keeps the judge from answering anything."""


def compared(
    model: str, ask: AskJudge, pairs: Sequence[AnswerPair], at_once: int = AT_ONCE
) -> list[JudgedPair]:
    """What the judge says of pairs."""
    with ThreadPoolExecutor(at_once, thread_name_prefix="headrace-judge") as pool:
        return list(pool.map(partial(_compared, model, ask), pairs))


def _compared(model: str, ask: AskJudge, pair: AnswerPair) -> JudgedPair:
    spent = 0

    def asked(system: str, prompt: str, tokens: int) -> str:
        nonlocal spent
        said = ask(system, prompt, tokens)
        spent += said.nano_usd
        return said.text

    verdicts = Verdicts(Judge(model=model), asked)
    found = verdicts.score(pair.prompt, pair.answer, pair.other)
    verdict: Verdict = "tie"
    if found is None:
        verdict = "refused"
    elif verdicts.swayed:
        verdict = "swayed"
    elif found != 0.5:
        verdict = "better" if found > 0.5 else "worse"
    return JudgedPair(verdict, spent)


def left_today(database: Database, pairs_per_day: int) -> int:
    """How many pairs may still be compared today."""
    return max(0, pairs_per_day - compared_since(database, time.time() - DAY_S))


class ServedJudge:
    """Asks judges within a server. Lives on the event loop; `compare` is called from threads."""

    def __init__(self, database: Database, pairs_per_day: int) -> None:
        self._database, self._pairs_per_day = database, pairs_per_day
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._talks: set[str] = set()
        """Judges that cannot be held to three words."""
        self.answering: Callable[[], Handler] | None = None
        """What answers requests for models of this machine and of providers, and collects nothing."""

    def begin(self) -> None:
        """On the loop, before anything is compared."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Ask nothing more: what is not compared yet is so the next time."""
        self._closed = True

    def compare(self, student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        """See `comparisons.Compare`: within a day, so many pairs as the settings allow."""
        if self._closed:
            return []
        return self.verdicts(student, pairs[: left_today(self._database, self._pairs_per_day)])

    def verdicts(self, student: StudentRow, pairs: Sequence[AnswerPair]) -> list[JudgedPair]:
        """What the judge of a student says of all pairs."""
        return compared(student.judge, partial(self._ask, student.judge), pairs) if pairs else []

    def _ask(self, model: str, system: str, prompt: str, tokens: int) -> JudgeReply:
        assert self._loop is not None
        if self._closed:
            raise EngineStopped("the server stops")
        work = self._asked(model, system, prompt, tokens)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _asked(self, model: str, system: str, prompt: str, tokens: int) -> JudgeReply:
        name = new_request_id()
        request = ChatRequest(
            id=f"judge-{name}",
            model=model,
            messages=(Message("system", system), Message("user", prompt)),
            sampling={"temperature": 0.0, "max_tokens": tokens},
            constraint=WORDS,
            priority=BATCH_PRIORITY,
            cache="off",
        )
        if model not in self._talks:
            try:
                return await self._said(request, name)
            except InvalidRequest:  # such as of a provider that knows no choices
                pass
        try:
            said = await self._said(replace(request, constraint=None), f"{name}-free")
        except InvalidRequest:  # such as a conversation that is too long for it
            return JudgeReply("")
        self._talks.add(model)
        return said

    async def _said(self, request: ChatRequest, name: str) -> JudgeReply:
        assert self.answering is not None
        account = Account("", KeyLimits())
        call = CallContext(request_id=f"judge-{name}", account=account, background=True, route=ROUTE)
        result = await collect(await open_stream(self.answering(), request, call))
        [choice] = result.prompts[0].choices
        spent = nano_usd_of(call)
        return JudgeReply(choice.output.content or "", call.machine_nano_usd if spent is None else spent)
