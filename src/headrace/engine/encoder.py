"""The loop of a model that encodes: as many whole inputs in a step as fit, most important first."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.engine.adapters import AdapterInfo
from headrace.engine.client import EngineLimits, EngineStatus
from headrace.engine.fair_queue import FairQueue
from headrace.engine.pacing import DEFAULT_TTFT_S, SHORT_STEP_S
from headrace.engine.ranked_request import RankedRequest
from headrace.engine.request import (
    ChoiceFinished,
    Embedding,
    EmbedParams,
    EngineEvent,
    EngineRequest,
    EventCallback,
    RequestFailed,
    RequestFinished,
    RequestHandle,
    Timing,
    Usage,
)
from headrace.engine.request_queue import CancelRequest, LoopCall, PauseRequest, RequestQueue, send
from headrace.engine.step_share import StepShare
from headrace.engine.step_times import StepWork, WidthTimes, attended
from headrace.engine.submissions import submitted
from headrace.engine.turns import NoTurns, Tier, TurnAsk, Turns, joined, tier_of
from headrace.engine.unit_rows import unit_rows
from headrace.engine.validation import validate_request
from headrace.errors import HeadraceError, UnsupportedModel
from headrace.executors.executor import Executor
from headrace.kv.pages import pages_for
from headrace.ops.value import Array, Ints
from headrace.program.step import Step
from headrace.weights.pooling import Pooling, PoolingKind


class _InputState(RankedRequest, eq=False):
    """The state of a request; times are seconds of the monotonic clock."""

    request_id: str
    sink: EventCallback
    submitted_s: float
    rank: tuple[float, int] = (0.0, 0)
    waits: bool = False


class Encoder:
    """Makes vectors of texts on one thread of its own.

    `submit` and `RequestHandle.cancel` may be called from any thread.

    A text is computed whole, in one step, because its tokens see those after them: the executor's largest
    step has room for the longest text. The order is that of the Scheduler: by `submitted_s + priority *
    ageing_s` within an account, fair among accounts, and the first that does not fit into a step blocks those
    behind it. The bits of a
    vector depend on its text alone.
    """

    def __init__(
        self,
        executor: Executor,
        limits: EngineLimits,
        pooling: Pooling,
        *,
        vocabulary: int,
        clock: Callable[[], float] = time.monotonic,
        turns: Turns | None = None,
    ) -> None:
        self.limits = limits
        self._pooling, self._vocabulary, self._clock = pooling, vocabulary, clock
        self._turns, self._widths = turns or NoTurns(), WidthTimes()
        self._capacity = executor.capacity
        self._queue: RequestQueue[_InputState] = RequestQueue(limits)
        self._waiting: FairQueue[_InputState] = FairQueue()  # for the loop alone
        self._arrivals = itertools.count()
        self._running, self.steps, self._last_step_s = 0, 0, clock()
        self._longest_step_s = 0.0
        self._thread = threading.Thread(
            target=self._run, args=(executor,), name="headrace-encoder", daemon=True
        )
        self._thread.start()

    # -- from any thread ------------------------------------------------------------------------------

    def submit(self, request: EngineRequest, sink: EventCallback) -> RequestHandle:
        """Queue a text; `sink` gets its events. Raises a typed error before anything is computed."""
        validate_request(
            request,
            vocabulary=self._vocabulary,
            longest=self.limits.context_length,
            model_longest=self.limits.model_context_length,
            embedding_size=self.limits.embedding_size,
        )
        request_id = self._queue.request_id(request)
        self._queue.accept(_InputState(request, request_id, sink, self._clock()))
        return RequestHandle(request_id, self.cancel, self.pause)

    def submit_later(self, request: EngineRequest, sink: EventCallback) -> Future[RequestHandle]:
        """As `submit`: nothing is compiled here."""
        return submitted(lambda: self.submit(request, sink))

    def load_adapter(self, path: Path, expected: str | None = None) -> AdapterInfo:
        """UnsupportedModel: encoders have none."""
        raise UnsupportedModel("this model is an encoder: only models that generate text can have adapters")

    def unload_adapter(self, digest: str) -> None:
        """Nothing: there are none."""

    def status(self) -> EngineStatus:
        """The engine's present state. Its pages are free between steps."""
        pages = self._capacity.page_count
        return EngineStatus(
            running=self._running,
            waiting=self._queue.pending_choices - self._running,
            free_pages=pages,
            available_pages=pages,
            page_count=pages,
            steps=self.steps,
            last_step_s=self._last_step_s,
            alive=self._thread.is_alive(),
            longest_step_s=self._longest_step_s,
            waits_for_turn=self._turns.waiting,
        )

    def close(self) -> None:
        """Stop the loop; texts that have not ended fail with EngineStopped."""
        self._queue.close()
        self._thread.join()

    def cancel(self, request_id: str) -> None:
        """End a request before the next step; nothing where it has ended."""
        self._queue.put(CancelRequest(request_id))

    def pause(self, request_id: str, paused: bool) -> None:
        """Without effect: all events of an input are sent together."""

    # -- on the engine's thread -----------------------------------------------------------------------

    def _run(self, executor: Executor) -> None:
        with self._queue.serving(), joined(self._turns):
            while self._receive():
                first = self._waiting.next()
                if first is not None:
                    self._turns.begin(self._ask(first))
                    self._widths.use(self._turns.width)
                    self._step(executor, self._schedule())

    def _receive(self) -> bool:
        """Apply what has arrived, waiting while there is nothing to compute; False to stop."""
        arrived = self._queue.receive(idle=not len(self._waiting))
        if arrived is None:
            return False
        for item in arrived:
            if isinstance(item, CancelRequest):
                text = self._queue.active.get(item.request_id)
                if text is not None:
                    self._end(text, [ChoiceFinished(0, "cancelled"), self._done(text, self._clock())])
            elif isinstance(item, PauseRequest):
                continue
            elif isinstance(item, LoopCall):
                item.function()
            elif item.request.predicts:
                self._end(item, [self._predicted(item)])
            else:
                rank = item.submitted_s + item.request.priority * self.limits.ageing_s
                item.rank = rank, next(self._arrivals)
                self._waiting.add(item)
                item.waits = True
        for text, error in self._queue.overdue(self._clock()):
            self._end(text, [RequestFailed(error)])
        return True

    def _predicted(self, text: _InputState) -> RequestFinished:
        """Of a text that is not computed, what its last event would be if it were computed alone now."""
        tokens = len(text.request.prompt)
        work = StepWork(tokens, 0, attended(0, tokens))
        times = self._widths.now
        seconds = times.seconds(work) if times.knows(work) else self.limits.bound.seconds(work)
        share = StepShare("encode", 0.0, seconds, 1, 0.0, 0.0, 0.0, seconds, tokens, 1, tokens)
        return RequestFinished(Usage(tokens, 0, 0), Timing(0.0, seconds, seconds), 0, (share,))

    def _ask(self, first: _InputState) -> TurnAsk:
        """For a step that begins with this text."""
        pace = self.limits.pace
        tier = tier_of(first.priority, standard=pace.standard)
        due_s = first.submitted_s + (pace.ttft_s or DEFAULT_TTFT_S)
        tokens = len(first.request.prompt)
        expected_s = self._widths.shortest_s(StepWork(tokens, 0, attended(0, tokens)))
        whole = tier is Tier.INTERACTIVE and expected_s > SHORT_STEP_S
        return TurnAsk(tier, math.inf if tier is Tier.BATCH else due_s, whole=whole)

    def _schedule(self) -> list[_InputState]:
        """Remove from the queue, in its order, what fits into one step."""
        texts: list[_InputState] = []
        left = self._capacity.max_tokens
        tokens, pairs, times = 0, 0.0, self._widths.now
        limit_s = self.limits.pace.max_turn_s if self._turns.contended else math.inf
        while len(texts) < self.limits.max_num_seqs and (text := self._waiting.next()) is not None:
            left -= text.cost_tokens
            tokens, pairs = tokens + text.cost_tokens, pairs + attended(0, text.cost_tokens)
            if left < 0 or (texts and times.seconds(StepWork(tokens, 0, pairs)) > limit_s):
                break
            self._waiting.take(text)
            text.waits = False
            texts.append(text)
        return texts

    def _step(self, executor: Executor, texts: Sequence[_InputState]) -> None:
        self._running, begun_s = len(texts), self._clock()
        prompts = [text.request.prompt for text in texts]
        params = [text.request.embed or EmbedParams() for text in texts]
        starts, unseen = [one.pair_start for one in params], [one.unseen for one in params]
        step = encoder_step(prompts, self._pooling, self._capacity.page_tokens, starts, unseen)
        work = StepWork(len(step.tokens), 0, sum(attended(0, len(prompt)) for prompt in prompts))
        times = self._widths.now
        predicted_s = times.seconds(work) if times.knows(work) else self.limits.bound.seconds(work)
        output, run_s = self._in_turn(executor, step, work)
        self.steps += 1
        self._running, self._last_step_s = 0, self._clock()
        self._longest_step_s = max(self._longest_step_s, self._last_step_s - begun_s)
        share = StepShare(
            kind="encode",
            start_s=begun_s,
            end_s=self._last_step_s,
            steps=1,
            seconds=self._last_step_s - begun_s,
            run_s=run_s,
            propose_s=0.0,
            predicted_s=predicted_s,
            tokens=0,
            rows=len(texts),
            batch_tokens=len(step.tokens),
        )
        counts = [len(prompt) if self._pooling.kind == "none" else 1 for prompt in prompts]
        ends = np.cumsum(counts).tolist()
        for text, count, end in zip(texts, counts, ends, strict=True):
            event = self._embedded(text.request, output[end - count : end])
            ending: list[EngineEvent] = [event]
            if isinstance(event, Embedding):
                ending += [ChoiceFinished(0, "stop"), self._done(text, begun_s, (_own(text, share),))]
            self._end(text, ending)

    def _in_turn(self, executor: Executor, step: Step, work: StepWork) -> tuple[Array, float]:
        """Run the step, and hand on the turn that `_run` has begun: its output and seconds."""
        begun_s = self._clock()
        output = executor.run(step)
        run_s = self._clock() - begun_s
        self._widths.now.note(work, run_s)
        self._turns.end(again=len(self._waiting) > 0)
        return output, run_s

    def _embedded(self, request: EngineRequest, rows: Array) -> Embedding | RequestFailed:
        assert request.embed is not None
        vectors = rows[:, : request.embed.dimensions]
        if not np.isfinite(vectors).all():
            return RequestFailed(
                HeadraceError("the model computed numbers that are not finite: its weights may be damaged")
            )
        if self._pooling.normalize:
            vectors = unit_rows(vectors)
        return Embedding(len(vectors), np.ascontiguousarray(vectors, "<f4").tobytes())

    def _done(self, text: _InputState, begun_s: float, shares: tuple[StepShare, ...] = ()) -> RequestFinished:
        now_s = self._clock()
        timing = Timing(
            queue_s=begun_s - text.submitted_s,
            first_token_s=now_s - text.submitted_s,
            total_s=now_s - text.submitted_s,
        )
        return RequestFinished(Usage(len(text.request.prompt), 0, 0), timing, 0, shares)

    def _end(self, text: _InputState, events: list[EngineEvent]) -> None:
        if text.waits:
            self._waiting.remove(text)
            text.waits = False
        self._queue.end(text)
        send(text, events)


def _own(text: _InputState, share: StepShare) -> StepShare:
    """A text's share of a step whose times are the clock's."""
    begun_s, tokens = text.submitted_s, len(text.request.prompt)
    return replace(share, start_s=share.start_s - begun_s, end_s=share.end_s - begun_s, tokens=tokens)


def encoder_step(
    texts: Sequence[Sequence[int]],
    pooling: Pooling,
    page_tokens: int,
    pair_starts: Sequence[int | None] = (),
    unseen: Sequence[int] = (),
) -> Step:
    """The step that encodes texts from their first to their last token, each from the start of a page on.

    `pair_starts` has for each text the index of the first token of the second text of a pair, or None;
    `unseen` how many of its last tokens no token sees.
    """
    counts = [len(text) for text in texts]
    starts = np.cumsum([0, *counts])
    pages = [pages_for(count, page_tokens) for count in counts]
    first_pages = np.cumsum([0, *pages])
    tables = np.zeros((len(texts), max(pages)), np.int32)
    for table, first, count in zip(tables, first_pages, pages, strict=False):
        table[:count] = np.arange(first, first + count)
    positions = np.concatenate([np.arange(count) for count in counts])
    return Step(
        tokens=_ints([token for text in texts for token in text]),
        positions=_ints(positions),
        slots=_ints(np.repeat(first_pages[:-1] * page_tokens, counts) + positions),
        query_starts=_ints(starts),
        lengths=_ints(counts) - _ints(unseen or [0] * len(counts)),
        block_tables=tables,
        rows=_ints(_output_rows(pooling.kind, starts)),
        state_slots=np.zeros(len(texts), np.int32),
        types=_token_types(counts, pair_starts),
    )


def _token_types(counts: Sequence[int], pair_starts: Sequence[int | None]) -> Ints | None:
    """Which text of a pair each token belongs to, 0 or 1; None where there are no pairs."""
    if all(start is None for start in pair_starts):
        return None
    return np.concatenate(
        [
            _ints(np.arange(count) >= (count if start is None else start))
            for count, start in zip(counts, pair_starts, strict=True)
        ]
    )


def _output_rows(kind: PoolingKind, starts: NDArray[np.int_]) -> NDArray[np.int_]:
    """Which rows are pooled or picked, of texts that begin at `starts`; the last start is the end."""
    if kind == "none":
        return np.arange(int(starts[-1]))
    return starts[:-1] if kind == "cls" else starts[1:] - 1


def _ints(values: Sequence[int] | NDArray[np.int_] | NDArray[np.bool_]) -> Ints:
    return np.array(values, np.int32)
