"""A small model that drafts for a large one: its own pages, its keys and values kept in step."""

from __future__ import annotations

import time
from collections.abc import Sequence as Sequence_

from headrace.engine.generation import Choice
from headrace.engine.schedule import Chunk
from headrace.engine.sequence import Sequence, agreeing
from headrace.engine.step_builder import StepBuilder
from headrace.kv.pages import Pages, pages_for
from headrace.run.native import NativeExecutor
from headrace.sample.sampler import Sampler

PRIOR_SHARE = 0.2  # of a step of the large model with one token: a draft token, before one was measured
FORGETTING = 0.15


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
        self._builder = StepBuilder(
            context=capacity.page_count * capacity.page_tokens, page_tokens=capacity.page_tokens
        )
        self._shadows: dict[int, Sequence] = {}  # by the id of the sequence, whose list of tokens they share
        self._seconds: dict[int, float] = {}  # of a drafted token, by number of sequences

    def seconds(self, count: int, depth: int, step_s: float) -> float:
        """What drafting `depth` tokens for `count` sequences is expected to take; `step_s` is what a step of
        the large model with one token takes."""
        return depth * self._seconds.get(count, PRIOR_SHARE * step_s)

    def draft(self, choices: Sequence_[Choice], depth: int) -> list[list[int]]:
        """Up to `depth` tokens for each choice; none where the text is not computed yet or has no pages."""
        start_s = time.monotonic()
        chunks: list[Chunk | None] = []
        budget = self._max_tokens
        for index, choice in enumerate(choices):
            chunk = self._chunk(choice.sequence, depth, budget - (len(choices) - 1 - index))
            chunks.append(chunk)
            budget -= 0 if chunk is None else chunk.count
        behind = [chunk for chunk in chunks if chunk is not None and not chunk.samples]
        if behind:
            self._executor.run(self._builder.build(behind))
            self._count(behind)
        drafts: list[list[int]] = [[] for _ in choices]
        ready = [(i, chunk) for i, chunk in enumerate(chunks) if chunk is not None and chunk.samples]
        if not ready:
            return drafts
        step = self._builder.build([chunk for _, chunk in ready], spare=depth - 1)
        rows = [choices[i].row for i, _ in ready]
        tokens = self._executor.draft(step, self._sampler, rows, depth)
        for place, (i, chunk) in enumerate(ready):
            drawn = tokens[place * depth : (place + 1) * depth]
            wrong = next((at for at, token in enumerate(drawn) if not 0 <= token < self._drawn), depth)
            drafts[i] = drawn[:wrong]
            chunk.sequence.draft = drafts[i]
        self._count([chunk for _, chunk in ready])
        self._note(len(ready), (time.monotonic() - start_s) / depth)
        return drafts

    def forget(self, sequence_id: int) -> None:
        """The sequence has ended."""
        shadow = self._shadows.pop(sequence_id, None)
        if shadow is not None:
            self._pages.release(shadow.pages)
            self._builder.forget(shadow)

    def _chunk(self, sequence: Sequence, depth: int, budget: int) -> Chunk | None:
        """What is to be computed of the text, as far as `budget` tokens go; None where it has no pages."""
        shadow = self._shadows.get(sequence.id)
        if shadow is None:
            shadow = self._shadows[sequence.id] = Sequence(
                id=sequence.id,
                request_key=sequence.request_key,
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
        count = min(shadow.pending, budget)
        return Chunk(shadow, shadow.computed, count, count == shadow.pending) if count > 0 else None

    def _count(self, chunks: Sequence_[Chunk]) -> None:
        for chunk in chunks:
            chunk.sequence.computed += chunk.count

    def _note(self, count: int, seconds: float) -> None:
        before = self._seconds.get(count, seconds)
        self._seconds[count] = before + FORGETTING * (min(seconds, 2 * before) - before)
