"""Which tokens of which sequences the next step computes: admission, chunked prefill, pages, preemption."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from headrace.engine.fair_queue import RANK, FairQueue, outranks, remove_ranked
from headrace.engine.scheduler.moved_pages import MovedPages
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.sequence import Sequence, State, agreeing
from headrace.engine.turns import BATCH_PRIORITY
from headrace.errors import ProgramError
from headrace.kv.pages import PAGE_TOKENS, Pages, pages_for
from headrace.kv.prefix_tree import Match, MissReason, PrefixTree

RESERVE_PAGES = 4
"""Pages beyond its present tokens that admission keeps back per sequence; doubled with each preemption."""

MAX_PREEMPTIONS = 4
"""So often at most is a sequence preempted."""


class Scheduler:
    """Continuous batching under a token budget over a fixed number of pages. One thread; never blocks.

    Each step: `schedule()`, compute the chunks, append at least one token to (or `finish`, or put off) every
    sequence whose chunk `samples`, `advance(chunks)`. Of a draft the tokens that agree with those appended
    are kept.

    Order. A sequence's rank is `arrival_s + priority * ageing_s`, ties by id; the lower is the more
    important. That is priority with ageing: per `ageing_s` waited a sequence gains one class on all that
    come later, and within a class the first come is the first served. The order of two sequences never
    changes, so no clock is read. No starvation: a sequence of class p is overtaken only by sequences of a
    class q < p that arrive within (p - q) * ageing_s after it.

    Admission is strictly in rank order within an account and fair among accounts (FairQueue). The sequence
    whose turn it is blocks the others while it does not fit. Running prefills go before newcomers of other
    accounts, unless these are more urgent. A sequence is admitted when the pages that it and all running ones
    still need for their present tokens, plus a reserve each, are available; it never preempts to be admitted.
    While a sequence that was preempted `MAX_PREEMPTIONS` times runs or is to be admitted, the reserve is all
    that each may ever need: then none has to be preempted, which makes that number a hard bound.

    Shortage. A running sequence that needs pages takes free ones, evicts idle ones, then preempts the least
    important running sequences that are less important than itself; where that is not enough it computes
    fewer tokens or none in this step. The most important running sequence can get every page, so it always
    progresses. A preempted one goes back to its place in the queue; its full pages stay in the prefix tree
    until evicted, and readmission goes on from what is left of them.

    Pausing. A sequence whose client does not keep up is paused: it releases its pages and slot, and goes back
    to its place in the queue when the client reads on.

    Choices. Of the sequences of one request the first computes the prompt's full pages while the others
    wait; then they find these in the prefix tree (with `cache` off, under a salt of the request's own).

    Rows. A step has at most `max_num_seqs` rows of logits. A sequence that `scores` takes nothing from the
    prefix tree, or only tokens before its first row, and gets half of the rows that are left when every
    running sequence has one; the other half stays for newcomers.

    Drafts get what is left of a step: tokens, rows, pages that are not in use. No sequence is
    preempted for them, and no sequence goes beyond its `max_length`.

    Class batch (`priority` from BATCH_PRIORITY on) leaves an eighth of `max_num_seqs` to others, which need
    not wait for the end of one then. In a step that `holds_batch` nothing of it is computed.

    Slots. Every running sequence has one of `max_num_seqs` slots for a model's recurrent states. With
    `recurrent` a text's pages are of no use without the state at their end, which is not saved: the prefix
    tree is not used, every choice computes its own prompt, and a preempted sequence
    starts again.
    """

    def __init__(
        self,
        *,
        page_count: int,
        max_batch_tokens: int,
        max_num_seqs: int,
        ageing_s: float,
        page_tokens: int = PAGE_TOKENS,
        recurrent: bool = False,
        max_rows: int | None = None,
    ) -> None:
        if max_batch_tokens < max_num_seqs:
            raise ProgramError(
                f"max_batch_tokens {max_batch_tokens} is below max_num_seqs {max_num_seqs}: "
                "every running sequence needs one token per step"
            )
        self._max_batch_tokens = max_batch_tokens
        self._max_num_seqs = max_num_seqs
        self._max_rows = max_rows or max_num_seqs
        self._ageing_s = ageing_s
        self.page_tokens = self._page_tokens = page_tokens
        self._pages = Pages(page_count)
        self._tree = PrefixTree(self._pages, page_tokens=page_tokens)
        self._recurrent = recurrent
        self._free_slots = list(range(max_num_seqs))
        self._waiting: FairQueue[Sequence] = FairQueue()
        self._running: list[Sequence] = []  # by rank
        self._leaders: dict[int | str, Sequence] = {}  # they compute the prompt; by request id
        self._extra_rows = 0  # of logits in this step, beyond one for each running sequence
        self._holds_batch = False  # in this step
        self._blocked: Sequence | None = None  # did not fit, and no page was given back since
        self.preemptions = 0
        """How often a sequence lost its pages to a more important one."""
        self.moved = MovedPages(
            self._pages, self._tree, page_tokens, lambda: len(self._running), self._given_back
        )

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self._running and not len(self._waiting)

    @property
    def free_pages(self) -> int:
        """Pages that are not in use and not cached."""
        return self._pages.free

    @property
    def available_pages(self) -> int:
        """Pages that are free, or cached and used by no sequence."""
        return self._pages.free + self._tree.evictable

    @property
    def running_count(self) -> int:
        """Number of sequences that have pages."""
        return len(self._running)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that have pages, most important first."""
        return tuple(self._running)

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences in the queue, by rank."""
        return tuple(self._waiting)

    @property
    def candidates(self) -> list[Sequence]:
        """What the next step may compute: what runs, and the first of each account that waits."""
        return [*self._running, *self._waiting.firsts()]

    @property
    def waiting_count(self) -> int:
        """How many sequences are in the queue. May be called from any thread."""
        return len(self._waiting)

    def can_ever_fit(self, tokens: int) -> bool:
        """Whether a sequence of so many tokens (prompt and all that may follow) fits when it is alone."""
        return pages_for(tokens, self._page_tokens) <= self._pages.count

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        if not 1 <= len(sequence.tokens) <= sequence.max_length or not self.can_ever_fit(sequence.max_length):
            raise ProgramError(
                f"sequence {sequence.id} has {len(sequence.tokens)} tokens and may grow to "
                f"{sequence.max_length}, in {self._pages.count} pages of {self._page_tokens} tokens: "
                "refuse before submission what is empty, exceeds its own limit or can never fit"
            )
        sequence.rank = (sequence.arrival_s + sequence.priority * self._ageing_s, sequence.id)
        self._waiting.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """The sequence has ended, wherever it stands: its pages are given back now."""
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._stop(sequence, keep=sequence.cache)
        sequence.state = State.FINISHED

    def distrust(self, sequence: Sequence) -> None:
        """Its keys and values are not all numbers: nobody finds its pages any more, also not those before the
        token that began it, which may have been computed together with it."""
        for page in sequence.pages[:1]:
            self._tree.forget(page)

    def restart(self, sequence: Sequence) -> bool:
        """Compute a running sequence again, without pages that others have computed; False where it had
        none."""
        if not sequence.cache or not sequence.has_shared:
            return False
        self._stop(sequence, keep=False)
        sequence.cache, sequence.has_shared = False, False
        sequence.state, sequence.computed = State.WAITING, 0
        self._waiting.add(sequence)
        return True

    def pause(self, sequence: Sequence) -> None:
        """Compute no more of it until `resume`. Its full pages stay in the prefix tree until evicted."""
        if sequence.state is State.WAITING:
            self._waiting.remove(sequence)
        elif sequence.state is State.RUNNING:
            self._stop(sequence, keep=True)
            sequence.computed = 0
        else:
            return
        sequence.state = State.PAUSED

    def resume(self, sequence: Sequence) -> None:
        """Back to its place in the queue, if it was paused."""
        if sequence.state is State.PAUSED:
            sequence.state = State.WAITING
            self._waiting.add(sequence)

    cancel = finish
    """Ended from outside; fine a second time, and between `schedule` and `advance` (which then skips it)."""

    def schedule(
        self, prefill_tokens: int | None = None, *, holds_batch: bool = False
    ) -> list[ScheduledChunk]:
        """The next step: first every sequence with one token to compute, then prefill in rank order, of so
        many tokens at most (one or more; None: all that the step has room for)."""
        self._holds_batch = holds_batch
        planned: dict[int, ScheduledChunk] = {}
        self._extra_rows = 0
        budget = self._max_batch_tokens
        prefills: list[Sequence] = []
        size = self._page_tokens
        for sequence in self._running[:]:
            if sequence.state is not State.RUNNING or (holds_batch and sequence.priority >= BATCH_PRIORITY):
                continue  # preempted by one before it, or held
            start = sequence.computed
            pending = len(sequence.tokens) - start
            if pending > 1:
                prefills.append(sequence)
            elif pending < 1:
                raise ProgramError(
                    f"sequence {sequence.id} has nothing to compute: append a token or finish it"
                )
            elif start < len(sequence.pages) * size or self._provide(sequence, 1, planned):
                planned[sequence.id] = ScheduledChunk(sequence, start, 1, True)
                budget -= 1
        if prefills or len(self._waiting):
            allowed = budget if prefill_tokens is None else min(budget, prefill_tokens)
            budget += self._prefill(prefills, allowed, planned) - allowed
        if budget > 0:
            self._lengthen(planned, budget)
        return list(planned.values())

    def repeatable(self, chunks: list[ScheduledChunk], times: int) -> int:
        """How many tokens more, at most `times`, each sequence may compute at once after the one of this
        step, before `advance`; their pages are allocated now. -1 where the step is not one token of each."""
        for chunk in chunks:
            if chunk.length != 1 or not chunk.samples:
                return -1
            # The last token that there may be needs no keys and values.
            times = min(times, chunk.sequence.max_length - chunk.start - 2)
        for chunk in chunks:
            if times > 0:
                end = chunk.start + 1
                times = min(times, self._room(chunk.sequence, end + times) - end)
        return max(times, 0)

    def advance(
        self, chunks: Iterable[ScheduledChunk], repeated: int = 0, put_off: AbstractSet[int] = frozenset()
    ) -> None:
        """The chunks are computed and what was sampled is appended: count their tokens, of drafts those that
        agree, and put newly full pages into the prefix tree.

        To the sequences `put_off`, by id, nothing was appended: their last token is computed again. Not with
        `recurrent`.
        """
        size = self._page_tokens
        for chunk in chunks:
            sequence, start = chunk.sequence, chunk.start
            if sequence.state is not State.RUNNING:
                continue
            computed = start + chunk.count
            if sequence.id in put_off:
                computed -= 1
            elif chunk.drafted:
                # Not the last token: its logits are still needed, or the sequence is about to end.
                computed += agreeing(sequence.draft[: chunk.drafted], sequence.tokens[computed:-1])
            elif repeated:  # or interrupted before
                computed = min(computed + repeated, len(sequence.tokens) - 1)
            sequence.computed = computed
            if sequence.scores and not sequence.continues:
                sequence.scores = computed < sequence.prompt_length - 1
            first, last = start // size, computed // size
            if last > first and not self._recurrent:
                own = sequence.pages[first:last]
                self._tree.insert(sequence.cache_root, sequence.tokens, sequence.pages, first, last)
                sequence.has_shared = sequence.has_shared or sequence.pages[first:last] != own
            leads = self._leaders.get(sequence.request_id) is sequence
            if leads and computed >= self._shareable(sequence):
                del self._leaders[sequence.request_id]
                self._blocked = None  # it may share these pages now

    def _lengthen(self, planned: dict[int, ScheduledChunk], budget: int) -> None:
        """Let sequences compute their drafts too, in rank order, as far as the step has room."""
        rows = self._max_rows - sum(chunk.rows for chunk in planned.values())
        for chunk in list(planned.values()):
            sequence = chunk.sequence
            if not sequence.draft or not chunk.samples or chunk.scores:
                continue
            end = chunk.start + chunk.count
            # The last token that there may be needs no keys and values.
            wanted = min(len(sequence.draft), budget, rows, sequence.max_length - end - 1)
            drafted = min(wanted, self._room(sequence, end + wanted) - end)
            if drafted > 0:
                planned[sequence.id] = replace(chunk, drafted=drafted)
                budget -= drafted
                rows -= drafted

    def _room(self, sequence: Sequence, length: int) -> int:
        """Allocate pages for `length` tokens while one is left for each sequence; how many have pages."""
        size = self._page_tokens
        lookahead_tokens = self.available_pages - len(self._running)
        needed = min(pages_for(length, size) - len(sequence.pages), lookahead_tokens)
        if needed > 0:
            self._take_pages(sequence, needed)
        return len(sequence.pages) * size

    def _prefill(self, prefills: list[Sequence], budget: int, planned: dict[int, ScheduledChunk]) -> int:
        """Give the rest of the budget to running prefills, by rank, and to newcomers; what is left of it."""
        prefills.reverse()
        self._waiting.begin()
        while budget > 0:
            newcomer = self._newcomer()
            if prefills and (newcomer is None or not outranks(newcomer, prefills[-1])):
                sequence = prefills.pop()
            elif newcomer is not None:
                sequence = newcomer
                if not self._admit(sequence):
                    continue
            else:
                return budget
            if sequence.state is State.RUNNING:  # not preempted by one before it
                wanted = min(sequence.pending, budget)
                if sequence.scores:
                    rows = self._max_num_seqs - len(self._running) - self._extra_rows
                    unread = max(0, sequence.scored_from - sequence.computed)
                    wanted = min(wanted, unread + 1 + rows // 2)
                count = self._provide(sequence, wanted, planned)
                if count:
                    samples = count == sequence.pending
                    chunk = ScheduledChunk(sequence, sequence.computed, count, samples, sequence.scores)
                    planned[sequence.id] = chunk
                    budget -= count
                    self._extra_rows += max(0, chunk.rows - 1)
        return budget

    def _newcomer(self) -> Sequence | None:
        """The next in the queue, if it could be admitted now. Others of a request wait for its first."""
        taken = len(self._running) + self._extra_rows
        if taken >= self._max_num_seqs:
            return None
        holds = self._holds_batch or taken >= self._max_num_seqs - self._max_num_seqs // 8

        def passes(sequence: Sequence) -> bool:
            return sequence.request_id in self._leaders or (holds and sequence.priority >= BATCH_PRIORITY)

        newcomer = self._waiting.next(passes)
        return None if newcomer is self._blocked else newcomer

    def _admit(self, sequence: Sequence) -> bool:
        """Let the sequence whose turn it is run if it fits."""
        match = self._match(sequence)
        sequence.pages = match.pages
        if not self._fits(sequence):
            self._tree.release(match.pages)
            sequence.pages = []
            self._blocked = sequence
            return False
        self._waiting.take(sequence)
        sequence.cost_tokens = 0
        insort(self._running, sequence, key=RANK)
        sequence.state = State.RUNNING
        sequence.state_slot = self._free_slots.pop()
        sequence.computed = match.tokens_matched
        sequence.has_shared = match.tokens_matched > 0
        if not sequence.admitted:
            sequence.admitted = True
            sequence.cached_tokens = match.tokens_matched
            sequence.cache_miss_reason = match.cache_miss_reason
            if not sequence.cache:
                sequence.cache_miss_reason = "disabled"
            elif match.cache_miss_reason is not None and self._in_flight(sequence):
                sequence.cache_miss_reason = "in_flight"
        if sequence.computed < self._shareable(sequence):
            self._leaders[sequence.request_id] = sequence
        return True

    def would_match(self, sequence: Sequence) -> tuple[int, MissReason | None]:
        """How many tokens of a sequence that is not queued are in the prefix tree, and why no more are."""
        match = self._match(sequence)
        self._tree.release(match.pages)
        return match.tokens_matched, match.cache_miss_reason if sequence.cache else "disabled"

    def _match(self, sequence: Sequence) -> Match:
        """Of its tokens, those in the prefix tree."""
        if self._recurrent:
            return Match([], 0, "recurrent_state")
        if sequence.scores and not sequence.continues:
            return Match([], 0, "scored")
        known = sequence.tokens[: sequence.scored_from + 1] if sequence.scores else sequence.tokens
        return self._tree.match(sequence.cache_root, known)

    def _fits(self, newcomer: Sequence) -> bool:
        """Whether what the newcomer and all running ones still need, with their reserves, is available."""
        together = [*self._running, newcomer]
        guaranteed = any(sequence.preemptions >= MAX_PREEMPTIONS for sequence in together)
        needed = 0
        for sequence in together:
            pages = pages_for(sequence.max_length, self._page_tokens)
            if not guaranteed:
                present = pages_for(len(sequence.tokens), self._page_tokens)
                pages = min(pages, present + (RESERVE_PAGES << sequence.preemptions))
            needed += pages - len(sequence.pages)
        return needed <= self.available_pages

    def _in_flight(self, sequence: Sequence) -> bool:
        """Whether a running sequence of the same salt is computing the first page that this one misses."""
        start, end = sequence.computed, sequence.computed + self._page_tokens
        return end < len(sequence.tokens) and any(
            leader.cache_root == sequence.cache_root
            and leader.tokens[start:end] == sequence.tokens[start:end]
            and leader.tokens[:start] == sequence.tokens[:start]
            for leader in self._leaders.values()
        )

    def _shareable(self, sequence: Sequence) -> int:
        """Tokens of the prompt that the others of its request wait for: those in full pages before its last
        token, where pages can be shared."""
        if sequence.scores and not sequence.continues:
            return sequence.prompt_length - 1  # the others' text must not come before its scores
        return 0 if self._recurrent else (sequence.prompt_length - 1) // self._page_tokens * self._page_tokens

    def _provide(self, sequence: Sequence, count: int, planned: dict[int, ScheduledChunk]) -> int:
        """Get pages for the next `count` tokens, preempting where needed; how many tokens have pages now."""
        size = self._page_tokens
        needed = pages_for(sequence.computed + count, size) - len(sequence.pages)
        if needed > 0:
            while self.available_pages < needed and self._running[-1] is not sequence:
                victim = self._running[-1]
                self._preempt(victim)
                planned.pop(victim.id, None)
            self._take_pages(sequence, min(needed, self.available_pages))
        return min(count, len(sequence.pages) * size - sequence.computed)

    def _take_pages(self, sequence: Sequence, count: int) -> None:
        """Give it pages that are available, evicting idle ones."""
        self._tree.evict(max(0, count - self._pages.free))
        taken = self._pages.allocate(count)
        assert taken is not None
        sequence.pages += taken

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; full pages stay in the tree, the rest is computed again."""
        self._stop(sequence, keep=True)
        sequence.state = State.WAITING
        sequence.computed = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.add(sequence)

    def _given_back(self) -> None:
        self._blocked = None

    def _stop(self, sequence: Sequence, *, keep: bool) -> None:
        """Out of the running ones, without pages and slot."""
        remove_ranked(self._running, sequence)
        self._free_slots.append(sequence.state_slot)
        sequence.state_slot = -1
        self._tree.release(sequence.pages, keep=keep)
        sequence.pages = []
        self._blocked = None
        if self._leaders.get(sequence.request_id) is sequence:
            del self._leaders[sequence.request_id]
