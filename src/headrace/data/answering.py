"""Answers what the process of a statement asks of models: from the memo, or computed, within limits."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from typing import Any, TypeVar, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from headrace.data.job import CallCost
from headrace.data.limits import AiBudget, Speeds, SqlLimit
from headrace.data.memo import CallMemo, Keeper
from headrace.data.model_work import Models, ModelUsage, StatementWork
from headrace.data.operator import Arguments, RowCost, RowValue, SqlOperator, operator_of
from headrace.data.questions import (
    MAX_SEARCHES,
    CallType,
    Compute,
    Declare,
    FindHits,
    Row,
    Value,
    decode_question,
    encode_answer,
    too_many_rows,
)
from headrace.economy.money import NANO
from headrace.errors import DeadlineExceeded, InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.isolation.child import WorkFailed, WorkStop
from headrace.search.index import Mode
from headrace.search.indexes import Indexes
from headrace.search.searching import NamedHit, SearchRequest, search
from headrace.search.where import read_where
from headrace.storage.sql_memo import SqlMemo

T = TypeVar("T")
FIRST_WAVE = 16
_MODES: Mapping[str, Mode] = {"search": "hybrid", "vector_search": "vector", "text_search": "text"}


class _Call(Struct):
    """A call of the statement: its operator, opened, and the values that there are. `cost` is what is known
    of it before it is computed, `reason` why it has no plan."""

    operator: SqlOperator
    memo: CallMemo
    values: dict[Arguments, Value]
    model: str
    cost: CallCost | None = None
    reason: str = ""

    @property
    def weights(self) -> str:
        """What names the model: its weights, or of a remote one the name."""
        return self.model or f"remote {self.operator.model}"


class Answering:
    """Of one statement. All but the models' work runs in the thread that waits for the statement."""

    def __init__(
        self,
        models: Models,
        memo: SqlMemo | None,
        budget: AiBudget,
        stop: WorkStop,
        speeds: Speeds,
        indexes: Indexes | None = None,
        *,
        explain: bool = False,
        call: CallContext | None = None,
    ) -> None:
        """With `call`, whose statement it is, batches of requests are its stages."""
        self._models, self._memo, self._budget, self._stop = models, memo, budget, stop
        self._speeds, self.explains, self._call, self._indexes = speeds, explain, call, indexes
        self.usage = ModelUsage()
        self.work: StatementWork | None = None
        self._calls: list[_Call] = []
        self._searches = 0

    def answer(self, question: bytes) -> bytes:
        """Of a question, as bytes. Raises what ends the statement."""
        try:
            asked = decode_question(question)
        except (msgspec.DecodeError, RecursionError):
            raise WorkFailed("its question is none") from None
        if isinstance(asked, Declare):
            if self._calls:
                raise WorkFailed("it declares its calls twice")
            return encode_answer(self._run(self._declared(asked)))
        if isinstance(asked, FindHits):
            return self._run(self._found(asked))
        if not 0 <= asked.call < len(self._calls):
            raise WorkFailed("it asks for a call that it has not declared")
        if isinstance(asked, Compute):
            return encode_answer(self._run(self._computed(self._calls[asked.call], asked)))
        self.usage.dropped[asked.reason] += 1
        self._calls[asked.call].reason = asked.reason
        return encode_answer([])

    @property
    def costs(self) -> list[CallCost]:
        """What each call will take, once a plan has run."""
        return [
            call.cost
            or CallCost(
                function=call.operator.site.function,
                model=call.operator.model,
                exact=False,
                reason=call.reason or "it is computed as the statement comes to it",
            )
            for call in self._calls
        ]

    @property
    def warnings(self) -> list[str]:
        """What is to be said of the answer."""
        usage = self.usage
        found = list(self.work.warnings if self.work is not None else ())
        if usage.failed:
            cause, _ = usage.failed.most_common(1)[0]
            found.append(
                f"{usage.failed.total():,} values are NULL because they could not be computed: {cause}"
            )
        if usage.cut:
            texts = f"{usage.cut:,} text{'' if usage.cut == 1 else 's'}"
            found.append(f"{texts} ended at max_tokens: raise it to have all of them")
        return found

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work of the models, as long as the statement may."""
        with ExitStack() as waiting:
            try:
                waiting.enter_context(self._models.waiting())
            except BaseException:
                work.close()
                raise
            return self._waited(work)

    def _waited(self, work: Coroutine[Any, Any, T]) -> T:
        future = self._models.submit(work)
        began_s = time.monotonic()
        try:
            with self._stop.calling(future.cancel):
                return future.result(self._budget.seconds_left)
        except concurrent.futures.CancelledError:
            raise WorkFailed("it was stopped") from None
        except TimeoutError:
            if future.done():  # the work's own
                raise DeadlineExceeded("a model did not answer in time: send the statement again") from None
            future.cancel()
            raise self._budget.out_of_time() from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._budget.spend_seconds(time.monotonic() - began_s)

    async def _declared(self, asked: Declare) -> list[CallType]:
        self.work = self.work or StatementWork(self._models, self.usage)
        types: list[CallType] = []
        for site in asked.calls:
            operator = operator_of(site)
            model = await operator.open(self.work)
            scope = [self._models.account.cache_salt, model, *operator.identity]
            store = self._memo if operator.keeps and model else None
            operator.parts = CallMemo(store, [*scope, "parts"])
            self._calls.append(_Call(operator, CallMemo(store, scope), {}, model))
            wave = FIRST_WAVE if operator.is_condition else 0
            most = operator.max_rows or 0
            types.append(CallType(operator.type, operator.site.varying, wave, most))
        return types

    async def _found(self, asked: FindHits) -> bytes:
        """The hits of a search, as JSON."""
        mode = _MODES.get(asked.function)
        self._searches += 1
        if self._indexes is None or mode is None or self._searches > MAX_SEARCHES:
            raise WorkFailed("it may not search so")
        request = SearchRequest(
            text=asked.text,
            limit=asked.top,
            mode=mode,
            where=None if asked.filter is None else read_where(asked.filter),
            rerank=asked.rerank,
        )
        indexes = await asyncio.to_thread(self._indexes.find_all, [asked.index])
        self.work = work = self.work or StatementWork(self._models, self.usage)
        hits = await work.asked(lambda call: search(indexes, request, work.runner, call))
        return msgspec.json.encode([_hit_row(one) for one in hits])

    async def _computed(self, call: _Call, asked: Compute) -> list[Value]:
        width = len(call.operator.site.varying)
        if any(len(row) != width for row in asked.rows):
            raise WorkFailed("its rows do not fit the call")
        rows = _without_null(asked.rows)
        self.usage.rows += len(rows)
        missing = [row for row in rows if row not in call.values]
        for row, (value, cut) in call.memo.find(missing).items():
            call.values[row] = value
            self.usage.cut += cut
        most = call.operator.max_rows
        if most is not None and len(call.values.keys() | set(missing)) > most:
            raise SqlLimit(too_many_rows(call.operator.site.function, most), param="sql")
        missing = sorted(dict.fromkeys(row for row in missing if row not in call.values))
        if self.explains:
            await self._estimate(call, asked, len(rows), missing)
        elif missing:
            await self._compute(call, missing)
        found = cast("Mapping[Row, Value]", call.values)
        return [found.get(row) for row in asked.rows]

    async def _compute(self, call: _Call, rows: Sequence[Arguments]) -> None:
        """Compute rows in their order, which lets those that begin alike meet."""
        assert self.work is not None
        bounds = await call.operator.bounds(self.work, rows)
        if bounds is not None and self._budget.holds(bounds):
            costs = dict(zip(rows, bounds, strict=True))
        else:
            costs = await self._costs(call, rows)
        speed = self._speeds.of(call.weights, call.operator.site.operator)
        self._budget.take(call.operator.site.function, list(costs.values()), speed)
        self.usage.computed += len(costs)
        before, began_s = self.usage.prompt_tokens + self.usage.output_tokens, time.monotonic()
        prompt_tokens = self.usage.prompt_tokens
        rows = list(costs)
        with self._stage(call, len(rows)):
            is_remote = any(one.is_remote for one in costs.values())
            await self._portions(call, rows, None if is_remote else began_s)
        tokens = self.usage.prompt_tokens + self.usage.output_tokens - before
        self._budget.give_back(list(costs.values()), self.usage.prompt_tokens - prompt_tokens)
        speed.add(tokens, time.monotonic() - began_s)
        await asyncio.to_thread(self._speeds.keep, call.weights, call.operator.site.operator)

    async def _portions(self, call: _Call, rows: Sequence[Arguments], began_s: float | None) -> None:
        """Compute rows. `began_s` is since when this machine does; None: others do."""
        assert self.work is not None
        keeper = Keeper(call.memo)
        try:
            async with aclosing(call.operator.compute(self.work, rows)) as portions:
                async for portion in portions:
                    self._take(call, rows, portion, keeper)
                    self._budget.check_spent(0.0 if began_s is None else time.monotonic() - began_s)
        finally:
            if began_s is not None:
                self._budget.spend_machine(time.monotonic() - began_s)
            await keeper.close()

    @contextmanager
    def _stage(self, call: _Call, rows: int) -> Generator[None]:
        """Note a batch with its requests and tokens as a part of the statement's call."""
        assert self.work is not None
        if self._call is None:
            yield
            return
        prompt, output = self.usage.prompt_tokens, self.usage.output_tokens
        name = f"{call.operator.site.function}()"
        with self._call.part(name, model=call.operator.model or "", rows=rows) as (own, note):
            self.work.batch, self.work.requests = own, 0
            try:
                yield
            finally:
                self.work.batch = None
                note.detail |= {
                    "requests": self.work.requests,
                    "prompt_tokens": self.usage.prompt_tokens - prompt,
                    "output_tokens": self.usage.output_tokens - output,
                }

    async def _estimate(self, call: _Call, asked: Compute, rows: int, missing: Sequence[Arguments]) -> None:
        """Count what rows would take."""
        costs = list((await self._costs(call, missing)).values())
        before = call.cost or CallCost(
            function=call.operator.site.function, model=call.operator.model, rows=0
        )
        prompt, output = sum(one.prompt_tokens for one in costs), sum(one.max_output for one in costs)
        estimates = [one.estimate for one in costs if one.estimate is not None]
        seconds = self._speeds.of(call.weights, call.operator.site.operator).seconds(prompt + output)
        usd = self._budget.usd(seconds, before.usd)
        unpriced = before.unpriced or next((one.unpriced for one in costs if one.unpriced), "")
        if any(one.is_remote for one in costs):
            nano = sum(one.nano_usd or 0 for one in costs)
            usd = None if unpriced else (before.usd or 0.0) + nano / NANO
        call.cost = replace(
            before,
            rows=(before.rows or 0) + rows,
            known=before.known + rows - len(missing),
            requests=before.requests + sum(one.requests for one in costs),
            prompt_tokens=before.prompt_tokens + prompt,
            max_output_tokens=before.max_output_tokens + output,
            exact=before.exact and asked.exact,
            prompt_exact=before.prompt_exact and all(one.exact for one in costs),
            reason="" if asked.exact else "values of other calls decide which rows there are",
            seconds=None if seconds is None else (before.seconds or 0.0) + seconds,
            estimated_prompt_tokens=(before.estimated_prompt_tokens or 0) + sum(estimates)
            if estimates
            else before.estimated_prompt_tokens,
            usd=usd,
            unpriced=unpriced,
        )

    async def _costs(self, call: _Call, rows: Sequence[Arguments]) -> dict[Arguments, RowCost]:
        """Of each row that the model can read. Others raise, or have no value where the call says so."""
        assert self.work is not None
        try:
            return dict(zip(rows, await call.operator.cost(self.work, rows), strict=True))
        except InvalidRequest as error:
            if not call.operator.site.failed_is_null:
                raise
            if len(rows) == 1:
                self.usage.failed[error.message] += 1
                call.values[rows[0]] = None
                return {}
        middle = len(rows) // 2
        return await self._costs(call, rows[:middle]) | await self._costs(call, rows[middle:])

    def _take(
        self, call: _Call, rows: Sequence[Arguments], portion: Sequence[RowValue], keeper: Keeper
    ) -> None:
        for one in portion:
            call.values[rows[one.index]] = one.value
            self.usage.cut += one.cut
        keeper.add([(rows[one.index], one) for one in portion])


def _hit_row(found: NamedHit) -> dict[str, object]:
    """A row of a search, by the names of its columns."""
    hit = found.hit
    return {
        "dataset": found.index,
        "key": hit.key,
        "title": hit.title,
        "text": hit.text,
        "_score": hit.score,
        "start_char": hit.span.start,
        "end_char": hit.span.end,
        "bm25_rank": hit.bm25_rank,
        "vector_rank": hit.vector_rank,
        "rerank_score": hit.rerank_score,
        "attributes": {name: _attribute(value) for name, value in hit.attributes.items()},
    }


def _attribute(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _without_null(rows: Sequence[Row]) -> list[Arguments]:
    """The rows whose value is not NULL anyway."""
    return [tuple(text for text in row if text is not None) for row in rows if None not in row]
