"""Requests to decoders for operators: conversations whose texts are plain, generated or scored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from headrace.chat.messages import Message
from headrace.data.model_work import StatementWork, in_order_of_arrival, model_identity
from headrace.data.operator import Arguments, CheckedCall, RowCost, RowValue
from headrace.data.questions import Value
from headrace.errors import ContextLengthExceeded, EngineStopped, HeadraceError, InvalidRequest, ModelNotFound
from headrace.grammar.constraint import Constraint
from headrace.inference.call_context import CallContext
from headrace.inference.handler import open_stream
from headrace.inference.keywords import new_id
from headrace.inference.preparation import chat_prompt, literal_tokens
from headrace.inference.requests import ChatRequest, ScoringRequest
from headrace.inference.result import PromptResult, collect

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

AT_A_TIME = 64
"""Requests, where the model does not say how many sequences it computes."""
SCORED_AT_A_TIME = 64
PREPARED_AT_A_TIME = 16
COUNTED_AT_A_TIME = 64
MIN_BOUNDED = 64
"""Fewer rows are counted as quickly."""
SPARE_TOKENS = 4
Read = Callable[[str], Value]
Ids = tuple[int, ...]


class Decoding(Struct, frozen=True, kw_only=True):
    """How rows become conversations. `prompt` makes the text of one, `read` a value of the answer."""

    prompt: Callable[[Arguments], str]
    sampling: Mapping[str, Any]
    constraint: Constraint | None = None
    read: Read = str.strip
    system: str | None = None

    def request(self, row: Arguments, model: str | None) -> ChatRequest:
        """The request of a row."""
        before = () if self.system is None else (Message("system", self.system),)
        return ChatRequest(
            id=new_id(),
            model=model,
            messages=(*before, Message("user", self.prompt(row))),
            sampling=self.sampling,
            constraint=self.constraint,
            literal=True,
            cache="off",
        )


class Decoder:
    """The decoder of an operator, once it is open."""

    def __init__(self, site: CheckedCall, name: str | None) -> None:
        self._site, self.name = site, name
        self._at_a_time, self._context = AT_A_TIME, 0
        self.is_local = True

    async def open(self, work: StatementWork) -> str:
        """What names the model's weights; "" of a remote one."""
        call = work.call()
        try:
            async with work.runner.lease(self.name, call, "generate") as model:
                self.name, self._context = model.name, model.context_length
                self._at_a_time = 2 * model.engine.limits.max_num_seqs
                return model_identity(model)
        except ModelNotFound:
            if self.name is None:
                raise
            self.is_local = False  # the handler knows remote models, or says that there is none
            return ""

    async def cost(self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding) -> list[RowCost]:
        """Tokens of each row."""
        most = int(decoding.sampling.get("max_tokens", 0))
        if not self.is_local:
            return await self._remote_cost(work, rows, decoding)
        requests = [decoding.request(row, self.name) for row in rows]
        counts = [len(ids) for ids in await self._ids(work, requests)]
        longest = max(counts, default=0)
        if longest + most > self._context:
            raise ContextLengthExceeded(
                f"a prompt has {longest:,} tokens and max_tokens is {most:,}, the limit of {self.name} is"
                f" {self._context:,}: shorten it, or lower max_tokens",
                param="sql",
            )
        return [RowCost(count, most) for count in counts]

    async def bounds(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding
    ) -> list[RowCost] | None:
        """The most tokens of each row, by its bytes: a template that repeats the text of one row once does so
        with all. None where one could be too long, or a tokenizer may make more of a text than it is."""
        if not self.is_local or len(rows) < MIN_BOUNDED:
            return None
        prompts = [decoding.prompt(row) for row in rows]
        first, call = decoding.request(rows[0], self.name), work.call()
        async with work.runner.lease(self.name, call, "generate") as model:
            if model.tokenizer.normalizes:
                return None
            shown = chat_prompt(first, model, call, None).text
        if shown.count(prompts[0]) != 1:
            return None
        around = _bytes(shown) - _bytes(prompts[0]) + SPARE_TOKENS
        most = int(decoding.sampling.get("max_tokens", 0))
        bounds = [around + _bytes(prompt) for prompt in prompts]
        if max(bounds) + most > self._context:
            return None
        return [RowCost(bound, most, exact=False) for bound in bounds]

    async def _remote_cost(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding
    ) -> list[RowCost]:
        """The most of each row at a remote model, by the bytes that would be sent."""
        found: list[RowCost] = []
        for number, row in enumerate(rows):
            if number % PREPARED_AT_A_TIME == PREPARED_AT_A_TIME - 1:
                await asyncio.sleep(0)
            most = None if work.remote is None else work.remote.most(decoding.request(row, self.name))
            if most is None:  # the handler says that there is no such model
                found.append(RowCost(0, unpriced="there is no such model"))
                continue
            found.append(
                RowCost(
                    most.prompt_tokens,
                    most.output_tokens,
                    exact=False,
                    estimate=most.estimate,
                    nano_usd=most.nano_usd,
                    unpriced=most.missing,
                )
            )
        return found

    @property
    def context(self) -> int:
        """Tokens that the model reads and writes at most, 0 where that is not known."""
        return self._context

    async def prompt_tokens(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding
    ) -> list[int]:
        """Of the prompt of each row, whether or not the model can read it."""
        return [len(ids) for ids in await self._ids(work, [decoding.request(row, self.name) for row in rows])]

    async def text_tokens(self, work: StatementWork, texts: Sequence[str]) -> list[int]:
        """Of texts alone."""
        found: list[int] = []
        async with work.runner.lease(self.name, work.call(), "generate") as model:
            for start in range(0, len(texts), COUNTED_AT_A_TIME):
                part = texts[start : start + COUNTED_AT_A_TIME]
                found += await work.runner.in_thread(model, partial(_lengths, part, model))
        return found

    async def _ids(self, work: StatementWork, requests: Sequence[ChatRequest]) -> list[Ids]:
        call = work.call()
        found: list[Ids] = []
        async with work.runner.lease(self.name, call, "generate") as model:
            for start in range(0, len(requests), PREPARED_AT_A_TIME):  # chats get their turn in between
                part = requests[start : start + PREPARED_AT_A_TIME]
                found += await work.runner.in_thread(model, partial(_all_ids, part, model, call))
        return found

    async def generate(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding
    ) -> AsyncGenerator[Sequence[RowValue]]:
        """The answer of each row."""

        async def one(place: int) -> RowValue:
            request = decoding.request(rows[place], self.name)
            try:
                found = await work.asked(lambda call: _answered(work, request, call))
                choice = found.choices[0]
                cut = choice.ended.text_reason == "length"
                return RowValue(place, decoding.read(choice.output.content), cut)
            except InvalidRequest as error:
                return self.failed(work, place, error)

        async with aclosing(in_order_of_arrival(one, range(len(rows)), self._at_a_time)) as found:
            async for value in found:
                yield [value]

    async def score(
        self,
        work: StatementWork,
        rows: Sequence[Arguments],
        decoding: Decoding,
        answers: Sequence[str],
    ) -> AsyncGenerator[tuple[range, NDArray[np.float64]]]:
        """Of portions of the rows the natural-log probabilities of each of some answers, [rows, answers]."""
        written = await self._written(work, answers)
        portions = [
            range(start, min(start + SCORED_AT_A_TIME, len(rows)))
            for start in range(0, len(rows), SCORED_AT_A_TIME)
        ]

        async def portion(places: range) -> tuple[range, NDArray[np.float64]]:
            ids = await self._ids(work, [decoding.request(rows[place], self.name) for place in places])
            scored = partial(_scored, work, self.name, ids, written)
            return places, await work.asked(scored)

        async with aclosing(in_order_of_arrival(portion, portions, 4)) as found:
            async for one in found:
                yield one

    async def scored_cost(
        self, work: StatementWork, rows: Sequence[Arguments], decoding: Decoding, answers: Sequence[str]
    ) -> list[RowCost]:
        """Tokens of each row with those of the answers, which are read behind it: what begins alike once."""
        written = await self._written(work, answers)
        more = len({ids[: end + 1] for ids in written for end in range(len(ids))})
        costs = await self.cost(work, rows, decoding)
        return [RowCost(one.prompt_tokens + more, one.max_output) for one in costs]

    async def _written(self, work: StatementWork, answers: Sequence[str]) -> list[Ids]:
        call = work.call()
        async with work.runner.lease(self.name, call, "generate") as model:
            written = [
                tuple(model.tokenizer.encode(one, add_special=False, parse_special=False)) for one in answers
            ]
        if len(set(written)) < len(written) or not all(written):
            raise self._site.refused(f"{self.name} does not tell the labels apart: write them otherwise")
        return written

    def failed(self, work: StatementWork, place: int, error: HeadraceError) -> RowValue:
        """NULL where the call says so; raises otherwise."""
        if not self._site.failed_is_null:
            raise error
        work.usage.failed[error.message[:200]] += 1
        return RowValue(place, None)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _lengths(texts: Sequence[str], model: LoadedModel) -> list[int]:
    return [len(model.tokenizer.encode(text, add_special=False, parse_special=False)) for text in texts]


def _all_ids(requests: Sequence[ChatRequest], model: LoadedModel, call: CallContext) -> list[Ids]:
    return [_ids(one, model, call) for one in requests]


def _ids(request: ChatRequest, model: LoadedModel, call: CallContext) -> Ids:
    return literal_tokens(request, chat_prompt(request, model, call, None), model, call)


async def _answered(work: StatementWork, request: ChatRequest, call: CallContext) -> PromptResult:
    result = await collect(await open_stream(work.runner.handler, request, call))
    return result.prompts[0]


async def _scored(
    work: StatementWork,
    name: str | None,
    prompts: Sequence[Ids],
    continuations: Sequence[Ids],
    call: CallContext,
) -> NDArray[np.float64]:
    request = ScoringRequest(
        id=new_id(), model=name, prompts=tuple(prompts), continuations=tuple(continuations)
    )
    result = await collect(await open_stream(work.runner.handler, request, call))
    if not all(one.continuations for one in result.prompts):
        raise EngineStopped("the request was cancelled before its prompt was scored")
    return np.array([one.continuations for one in result.prompts], np.float64)
