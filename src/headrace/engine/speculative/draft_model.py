"""A small model that drafts for a large one, with pages of its own."""

from __future__ import annotations

import time
from collections.abc import Sequence as Sequence_

from headrace.engine.request_state import ChoiceState
from headrace.engine.scheduler.batch_builder import BatchBuilder
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence, agreeing
from headrace.engine.speculative.step_cost_model import followed
from headrace.executors.native import NativeExecutor
from headrace.kv.pages import Pages, pages_for
from headrace.sampling.sampler import Sampler

AT_ONCE = 4  # tokens of a text that are computed with its draft; more before it
PRIOR_SHARE = 0.2  # of a step of the large model: one of the draft model, before any was measured


class DraftModel:
    """Drafts by running a model with the same tokenizer (Leviathan et al. 2023, Chen et al. 2023).

    It draws with the random numbers that the large model's tokens are drawn with, so that the two agree
    wherever their distributions are close, at any temperature. Its sequences are those of the engine with
    pages of their own; where these run out a sequence goes without drafts.
    """

    def __init__(self, executor: NativeExecutor, sampler: Sampler, *, context: int, vocabulary: int) -> None:
        """`vocabulary` is that of the large model: either may have ids beyond the tokenizer's."""
        capacity = executor.capacity
        self._executor, self._sampler, self._context = executor, sampler, context
        self._drawn, self._given = vocabulary, sampler.vocabulary
        self._max_tokens, self._page_tokens = capacity.max_tokens, capacity.page_tokens
        self._pages = Pages(capacity.page_count)
        self._builder = BatchBuilder(
            context=capacity.page_count * capacity.page_tokens, page_tokens=capacity.page_tokens
        )
        self._shadows: dict[int, Sequence] = {}  # by the id of the sequence, whose list of tokens they share
        self._seconds: dict[int, float] = {}  # of a drafted token, by number of sequences
        self.caught_up_s = 0.0
        """Seconds spent on prompts and texts that this model had not computed yet."""

    def seconds(self, count: int, step_s: float) -> float:
        """Expected time of drafting a token for each of `count` sequences; `step_s` is that of a step of the
        large model with a token of each."""
        if not self._seconds:
            return PRIOR_SHARE * step_s
        nearest = min(self._seconds, key=lambda known: abs(known - count))
        return self._seconds[nearest]

    def draft(self, choices: Sequence_[ChoiceState], depth: int) -> list[list[int]]:
        """Up to `depth` tokens for each choice; none where the text is not computed yet or has no pages."""
        shadows = [self._shadow(choice.sequence, depth) for choice in choices]
        self._catch_up([shadow for shadow in shadows if shadow is not None])
        drafts: list[list[int]] = [[] for _ in choices]
        ready: list[int] = []
        chunks: list[ScheduledChunk] = []
        budget = self._max_tokens
        for i, shadow in enumerate(shadows):
            if shadow is not None and shadow.pending <= min(AT_ONCE, budget):
                ready.append(i)
                chunks.append(ScheduledChunk(shadow, shadow.computed, shadow.pending, True))
                budget -= shadow.pending
        if not ready:
            return drafts
        start_s = time.monotonic()
        step = self._builder.build(chunks, lookahead_tokens=depth - 1)
        rows = [choices[i].row.for_drafts() for i in ready]
        ran = self._executor.run_multi_step(step, self._sampler, rows, depth)
        for drawn, i, chunk in zip(ran.tokens, ready, chunks, strict=True):
            wrong = next((at for at, token in enumerate(drawn) if not 0 <= token < self._drawn), len(drawn))
            chunk.sequence.draft = drafts[i] = drawn[:wrong]
        self._count(chunks)
        self._note(len(ready), (time.monotonic() - start_s) / ran.steps)
        return drafts

    def _catch_up(self, shadows: list[Sequence]) -> None:
        """Compute what is missing of the texts but for their last token, as much as one step takes."""
        start_s, budget = time.monotonic(), self._max_tokens
        chunks: list[ScheduledChunk] = []
        for shadow in shadows:
            count = min(shadow.pending - 1, budget)
            if shadow.pending > AT_ONCE and count > 0:
                chunks.append(ScheduledChunk(shadow, shadow.computed, count, False))
                budget -= count
        if chunks:
            self._executor.run(self._builder.build(chunks))
            self._count(chunks)
            self.caught_up_s += time.monotonic() - start_s

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended."""
        shadow = self._shadows.pop(sequence_id, None)
        if shadow is not None:
            self._pages.release(shadow.pages)
            self._builder.forget(shadow)

    def _shadow(self, sequence: Sequence, depth: int) -> Sequence | None:
        """Its sequence here, with pages for what is to be computed; None where it cannot be."""
        shadow = self._shadows.get(sequence.id)
        if shadow is None:
            shadow = self._shadows[sequence.id] = Sequence(
                id=sequence.id,
                request_id=sequence.request_id,
                tokens=sequence.tokens,
                prompt_length=sequence.prompt_length,
                max_length=sequence.max_length,
            )
        if shadow.draft:
            # The last token of a draft was drawn, not computed; that of the text gives the next logits.
            agreed = shadow.computed + agreeing(shadow.draft[:-1], shadow.tokens[shadow.computed :])
            shadow.computed, shadow.draft = min(agreed, len(shadow.tokens) - 1), []
        if len(shadow.tokens) + depth > self._context:
            return None
        if max(shadow.tokens[shadow.computed :]) >= self._given:
            return None
        missing = pages_for(len(shadow.tokens) + depth, self._page_tokens) - len(shadow.pages)
        if missing > 0:
            pages = self._pages.allocate(missing)
            if pages is None:
                return None
            shadow.pages += pages
        return shadow

    def _count(self, chunks: Sequence_[ScheduledChunk]) -> None:
        for chunk in chunks:
            chunk.sequence.computed += chunk.count

    def _note(self, count: int, seconds: float) -> None:
        self._seconds[count] = followed(self._seconds.get(count, seconds), seconds)
