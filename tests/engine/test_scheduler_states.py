"""Pages, prefix tree and scheduler against a naive model that knows what every slot of every page holds."""

from __future__ import annotations

import os
from collections.abc import Sequence as Sequence_

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from headrace.engine.scheduler import scheduler as schedule
from headrace.engine.scheduler.scheduled_chunk import ScheduledChunk
from headrace.engine.scheduler.scheduler import MAX_PREEMPTIONS, RESERVE_PAGES, Scheduler
from headrace.engine.scheduler.sequence import Sequence, State, agreeing

STEPS = int(os.environ.get("TEST_STATE_STEPS", "25000"))  # 100,000 by `make nightly`
SHARDS = 4  # tests that may run side by side
MAX_PARTS = 20
STEPS_PER_EXAMPLE = 100
PAGE_TOKENS = 4
AGEING_S = 5.0

# Prompts are cut from few texts, so that prefixes are shared, diverge and end inside pages.
TEXTS = [
    list(range(40)),
    [token if token < 9 else token + 50 for token in range(40)],
    [7] * 40,
]


def owner(cache: bool, cache_salt: object, request_id: object) -> object:
    """Who may share the pages: all with the same salt, or the choices of one request."""
    return ("salt", cache_salt) if cache else ("request", request_id)


def _token(sequence: Sequence, token: int) -> int:
    """Choices with equal numbers go the same way, or each its own."""
    return 100 + token * (1 + sequence.choice)


class Machine(RuleBasedStateMachine):
    """The rules are what an engine may do; `contents` is the memory that its kernels would write."""

    steps_done = 0
    most_preemptions = 0
    drafted = 0
    rejected = 0
    repeated = 0
    overtaken = 0  # sequences of other accounts with lower ranks, by those that were admitted

    @initialize(
        pages=st.integers(8, 24),
        slots=st.integers(1, 8),
        budget=st.integers(0, 24),
        reserve=st.sampled_from([0, RESERVE_PAGES]),
        recurrent=st.sampled_from([False, False, True]),
        spare_rows=st.integers(0, 20),
        distrusts=st.sampled_from([False, False, True]),
    )
    def start(
        self,
        pages: int,
        slots: int,
        budget: int,
        reserve: int,
        recurrent: bool,
        spare_rows: int,
        distrusts: bool,
    ) -> None:
        self.distrusts = distrusts
        schedule.RESERVE_PAGES = reserve  # without one shortages are common
        self.page_count = pages
        self.slots = slots
        self.budget = slots + budget
        self.rows = slots + spare_rows
        self.ended: set[int] = set()
        self.scheduler = Scheduler(
            page_count=pages,
            max_batch_tokens=self.budget,
            max_num_seqs=slots,
            ageing_s=AGEING_S,
            page_tokens=PAGE_TOKENS,
            recurrent=recurrent,
            max_rows=self.rows,
        )
        self.recurrent = recurrent
        self.recurrent_states = [-1] * slots  # the prefix that each slot's state has come to
        self.contents = [[-1] * PAGE_TOKENS for _ in range(pages)]  # the prefix that ends in each slot
        self.prefixes: dict[tuple[object, int], int] = {}  # a number for (prefix or owner, token)
        self.prefixes_of: dict[int, list[int]] = {}  # by sequence, for each of its positions
        self.live: dict[int, Sequence] = {}
        self.now_s = 0.0
        self.made = 0

    # rules

    @rule(
        text=st.sampled_from(TEXTS),
        prompt=st.integers(1, 30),
        room=st.integers(1, 60),
        n=st.sampled_from([1, 1, 1, 2, 4]),
        cache_salt=st.sampled_from("aab"),
        cache=st.sampled_from([True, True, True, False]),
        priority=st.integers(0, 2),
        account=st.sampled_from("xxyz"),
        after_s=st.sampled_from([0.0, 0.1, 7.0]),
    )
    def add(
        self,
        text: list[int],
        prompt: int,
        room: int,
        n: int,
        cache_salt: str,
        cache: bool,
        priority: int,
        account: str,
        after_s: float,
    ) -> None:
        self.now_s += after_s
        length = min(prompt + room, self.page_count * PAGE_TOKENS)
        prompt = min(prompt, length)
        key = f"request {self.made}"
        for choice in range(n):
            sequence = Sequence(
                id=self.made,
                request_id=key,
                choice=choice,
                tokens=text[:prompt],
                prompt_length=prompt,
                max_length=length,
                cache_salt=cache_salt,
                cache=cache,
                account=account,
                cost_tokens=length,
                priority=priority,
                arrival_s=self.now_s,
            )
            self.made += 1
            self.live[sequence.id] = sequence
            self.scheduler.add(sequence)

    @rule(
        token=st.integers(0, 1),
        cancel=st.none() | st.integers(0, 100),
        draft=st.lists(st.integers(0, 1), max_size=6),
        kept=st.integers(0, 6),
    )
    def step(self, token: int, cancel: int | None, draft: Sequence_[int] = (), kept: int = 0) -> None:
        """Every sequence has a draft, of which up to `kept` tokens turn out right, then comes `token`."""
        for sequence in self.scheduler.running:
            sequence.draft = [] if self.recurrent else [_token(sequence, drafted) for drafted in draft]
        before = {s.id: (s.state, s.computed, s.preemptions, s.pending) for s in self.live.values()}
        charged = {s.id for s in self.live.values() if not s.cost_tokens}
        chunks = self.scheduler.schedule()
        self.check_plan(chunks, before)
        self.check_admitted(before, charged)
        for chunk in chunks:
            self.compute(chunk)
        if cancel is not None and self.live:
            self.end(cancel)
        sampling = [chunk for chunk in chunks if chunk.samples and chunk.sequence.state is State.RUNNING]
        for chunk in sampling:
            self.append(chunk, chunk.sequence.draft[: min(kept, chunk.drafted)], token)
        self.scheduler.advance(chunks)
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.state is State.RUNNING:
                assert sequence.computed >= chunk.start + chunk.count
                assert sequence.computed < len(sequence.tokens) or sequence.id in self.ended
        for id in self.ended:
            self.scheduler.finish(self.live.pop(id))
        self.ended.clear()

    @rule(times=st.integers(1, 9), token=st.integers(0, 1), drawn=st.integers(1, 9))
    def repeat(self, times: int, token: int, drawn: int) -> None:
        """One step, repeated where that may be, in which the first sequence ends after `drawn` tokens and
        the model goes on."""
        for sequence in self.scheduler.running:
            sequence.draft = []
        chunks = self.scheduler.schedule()
        for chunk in chunks:
            self.compute(chunk)
        repeats = max(self.scheduler.repeatable(chunks, times), 0)
        for chunk in chunks:
            if chunk.samples:
                self.append(chunk, [], token)
        for chunk in chunks if repeats else ():
            self.compute_repeats(chunk, repeats, token, drawn if chunk is chunks[0] else times + 1)
        Machine.repeated += repeats
        self.scheduler.advance(chunks, repeats)
        for id in self.ended:
            self.scheduler.finish(self.live.pop(id))
        self.ended.clear()

    @rule(times=st.integers(2, 12), token=st.integers(0, 1), draft=st.lists(st.integers(0, 1), max_size=3))
    def run(self, times: int, token: int, draft: Sequence_[int]) -> None:
        for kept in range(times):
            self.step(token, None, draft, kept % 3)

    @rule(which=st.integers(0, 100))
    def end(self, which: int) -> None:
        if self.live:
            sequence = self.live.pop(sorted(self.live)[which % len(self.live)])
            self.scheduler.cancel(sequence)
            assert sequence.state is State.FINISHED and not sequence.pages and sequence.state_slot == -1

    @rule(which=st.integers(0, 100), paused=st.booleans())
    def pause(self, which: int, paused: bool) -> None:
        if self.live:
            sequence = self.live[sorted(self.live)[which % len(self.live)]]
            self.scheduler.pause(sequence) if paused else self.scheduler.resume(sequence)
            assert (sequence.state is State.PAUSED) <= paused

    @rule(which=st.integers(0, 100))
    def distrust(self, which: int) -> None:
        """The numbers of one that runs are none: it is computed again where it has pages of others."""
        if self.distrusts and (running := self.scheduler.running):
            sequence = running[which % len(running)]
            before = sequence.pages[:]
            self.scheduler.distrust(sequence)
            assert not before or not set(before) & set(self.found(sequence))
            if self.scheduler.restart(sequence):
                assert sequence.state is State.WAITING and not sequence.pages and not sequence.cache
                self.prefixes_of.pop(sequence.id, None)  # it shares with nobody any more

    # the engine's part

    def found(self, sequence: Sequence) -> list[int]:
        """Pages that a text like the sequence's would get."""
        tree = self.scheduler._tree
        pages = tree.match(sequence.cache_root, sequence.tokens).pages
        tree.release(pages)
        return pages

    def append(self, chunk: ScheduledChunk, drafted: list[int], token: int) -> None:
        """Sampled tokens: what is right of a draft and one more."""
        sequence = chunk.sequence
        end = chunk.start + chunk.count
        for sampled in (*drafted, _token(sequence, token)):
            if len(sequence.tokens) == sequence.max_length:
                self.ended.add(sequence.id)
                break
            sequence.tokens.append(sampled)
        right = agreeing(sequence.draft[: chunk.drafted], sequence.tokens[end:])
        Machine.drafted += chunk.drafted
        Machine.rejected += chunk.drafted - right

    def extend_prefixes(self, sequence: Sequence) -> list[int]:
        """For each position, a number for (who may share it, all tokens up to it)."""
        found = self.prefixes_of.setdefault(sequence.id, [])
        for token in sequence.tokens[len(found) :]:
            before = found[-1] if found else owner(sequence.cache, sequence.cache_salt, sequence.request_id)
            found.append(self.prefixes.setdefault((before, token), len(self.prefixes)))
        return found

    def compute(self, chunk: ScheduledChunk) -> None:
        """Read every position before the chunk, write those in it."""
        sequence, end = chunk.sequence, chunk.start + chunk.length
        assert end <= len(sequence.pages) * PAGE_TOKENS, "no page for a token"
        prefixes = self.extend_prefixes(sequence).copy()
        for token in sequence.draft[: chunk.drafted]:
            prefixes.append(self.prefixes.setdefault((prefixes[-1], token), len(self.prefixes)))
        read = [prefix for page in sequence.pages for prefix in self.contents[page]]
        assert read[: chunk.start] == prefixes[: chunk.start], "a page holds another text"
        if chunk.start:
            state = self.recurrent_states[sequence.state_slot]
            assert not self.recurrent or state == prefixes[chunk.start - 1], "another text's state"
        self.recurrent_states[sequence.state_slot] = prefixes[end - 1]
        for position in range(chunk.start, end):
            page = sequence.pages[position // PAGE_TOKENS]
            assert self.scheduler._pages.references(page) == 1, "a shared page is written"
            self.contents[page][position % PAGE_TOKENS] = prefixes[position]

    def compute_repeats(self, chunk: ScheduledChunk, repeats: int, token: int, drawn: int) -> None:
        """Single tokens after a chunk, of which only those belong to the text that come before its end."""
        sequence = chunk.sequence
        for at in range(1, repeats + 1):
            position = chunk.start + at
            assert position + 1 < sequence.max_length
            page = sequence.pages[position // PAGE_TOKENS]
            assert self.scheduler._pages.references(page) == 1, "a shared page is written"
            prefix = self.extend_prefixes(sequence)[position] if at < drawn else -1
            self.contents[page][position % PAGE_TOKENS] = prefix
            self.recurrent_states[sequence.state_slot] = prefix
            if at < drawn:
                self.append(chunk, [], token)
        if drawn <= repeats:
            self.ended.add(sequence.id)

    # the model's part

    def check_plan(
        self, chunks: list[ScheduledChunk], before: dict[int, tuple[State, int, int, int]]
    ) -> None:
        planned = {chunk.sequence.id: chunk for chunk in chunks}
        assert len(planned) == len(chunks), "two chunks of one sequence"
        assert sum(chunk.length for chunk in chunks) <= self.budget
        assert sum(chunk.rows for chunk in chunks) <= self.rows
        for chunk in chunks:
            sequence = chunk.sequence
            assert sequence.state is State.RUNNING
            assert chunk.count >= 1 and chunk.start == sequence.computed
            assert chunk.samples == (chunk.start + chunk.count == len(sequence.tokens))
            assert not chunk.drafted or chunk.samples
            assert not chunk.drafted or chunk.start + chunk.length < sequence.max_length
        running = self.scheduler.running
        assert len(running) <= self.slots
        goes_on = any(s.state is not State.PAUSED for s in self.live.values())
        assert bool(chunks) == goes_on == (not self.scheduler.idle), "no progress"
        if running:
            assert min(running, key=self.rank).id in planned, "the most important one does not progress"
        preempted = {s.id for s in self.live.values() if s.preemptions > before[s.id][2]}
        if not preempted and self.scheduler.available_pages:
            decoding = [
                i for i, (state, _, _, pending) in before.items() if (state, pending) == (State.RUNNING, 1)
            ]
            assert planned.keys() >= set(decoding), "a decoding sequence sits out though there are pages"

    def check_admitted(self, before: dict[int, tuple[State, int, int, int]], charged: set[int]) -> None:
        """Who waits still, and was not behind another choice of its request: never before one of its account,
        nor before another that is more urgent and came with a lower rank."""
        running, waiting = self.scheduler.running, self.scheduler.waiting
        leading = {
            s.request_id
            for s in running
            if not self.recurrent and s.computed < (s.prompt_length - 1) // PAGE_TOKENS * PAGE_TOKENS
        }
        admitted = [s for s in running if before[s.id][0] is State.WAITING]
        eligible = [s for s in waiting if s.request_id not in leading]
        waited = [s for s in eligible if before[s.id][0] is State.WAITING]
        # Also one that was preempted in this step, which is then what its account waits for.
        first = {s.account: s for s in reversed(eligible)}
        for one in admitted:
            for other in waited:
                overtaken = self.rank(other) < self.rank(one)
                assert not overtaken or other.account != one.account, "overtaken within an account"
            for other in first.values():
                if other not in waited or any(s.account == other.account for s in admitted):
                    continue  # it was not the first of its account all the time
                overtaken = self.rank(other) < self.rank(one)
                urgent = overtaken and other.priority < one.priority
                assert not urgent, "overtaken by what is less urgent"
                yields = any(s.priority < other.priority for s in self.live.values())
                assert not overtaken or yields or other.id not in charged, "it was charged before"
                Machine.overtaken += overtaken

    def rank(self, sequence: Sequence) -> tuple[float, int]:
        return sequence.arrival_s + AGEING_S * sequence.priority, sequence.id

    @invariant()
    def references_add_up(self) -> None:
        pages, tree = self.scheduler._pages, self.scheduler._tree
        expected = [0] * self.page_count
        for sequence in self.live.values():
            for page in sequence.pages:
                expected[page] += 1
        idle = sum(1 for page in tree._nodes if not expected[page])
        for page in tree._nodes:
            expected[page] += 1
        assert [pages.references(page) for page in range(self.page_count)] == expected
        assert sorted(pages._free) == [page for page in range(self.page_count) if not expected[page]]
        assert self.scheduler.free_pages == expected.count(0)
        assert self.scheduler.available_pages == expected.count(0) + idle

    @invariant()
    def slots_add_up(self) -> None:
        taken = [s.state_slot for s in self.scheduler.running]
        assert sorted(taken + self.scheduler._free_slots) == list(range(self.slots))
        assert all(s.state_slot == -1 for s in self.scheduler.waiting)

    @invariant()
    def states_agree(self) -> None:
        running, waiting = self.scheduler.running, self.scheduler.waiting
        paused = [s for s in self.live.values() if s.state is State.PAUSED]
        assert {s.id for s in [*running, *waiting, *paused]} == self.live.keys()
        assert len(running) + len(waiting) + len(paused) == len(self.live)
        assert all(not s.pages and not s.computed and s.state_slot == -1 for s in paused)
        assert list(running) == sorted(running, key=self.rank)
        assert list(waiting) == sorted(waiting, key=self.rank)
        assert all(s.state is State.RUNNING for s in running)
        assert all(s.state is State.WAITING and not s.pages and not s.computed for s in waiting)
        assert all(s.preemptions <= MAX_PREEMPTIONS for s in self.live.values())

    @invariant()
    def tree_holds_what_its_tokens_say(self) -> None:
        tree = self.scheduler._tree
        reached = 0
        for cache_salt, root in tree._roots.items():
            assert root.children, "an empty root is kept"
            stack = [
                (child, owner(cache_salt[0], cache_salt[1], cache_salt[1]))
                for child in root.children.values()
            ]
            while stack:
                node, prefix = stack.pop()
                reached += 1
                assert tree._nodes[node.page] is node
                for slot, token in enumerate(node.tokens):
                    prefix = self.prefixes[(prefix, token)]
                    assert self.contents[node.page][slot] == prefix
                stack += [(child, prefix) for child in node.children.values()]
        assert reached == tree.cached or (self.distrusts and reached < tree.cached)
        assert not (self.recurrent and reached), "pages without the state at their end are shared"
        assert len(tree._ghosts) <= 4 * self.page_count

    @invariant()
    def count(self) -> None:
        Machine.steps_done += 1
        for one in self.live.values():
            Machine.most_preemptions = max(Machine.most_preemptions, one.preemptions)

    def teardown(self) -> None:
        """Whatever happened: everything runs to its end in bounded time, and no page is lost."""
        steps = 0
        for sequence in self.live.values():
            self.scheduler.resume(sequence)
        while self.live:
            self.step(steps % 2, None)
            steps += 1
            assert steps < 20_000, "livelock"
        self.references_add_up()
        self.slots_add_up()
        assert self.scheduler.available_pages == self.page_count
        self.scheduler._tree.evict(self.page_count)
        assert self.scheduler.free_pages == self.page_count
        assert not self.scheduler._tree._roots and not self.scheduler._leaders
        schedule.RESERVE_PAGES = RESERVE_PAGES


@pytest.mark.parametrize("shard", range(SHARDS))
def test_states(record_property, shard: int) -> None:
    steps = STEPS // SHARDS
    Machine.steps_done = Machine.repeated = Machine.drafted = Machine.rejected = Machine.overtaken = 0

    def seen() -> bool:
        """Whether what is rare has been seen often enough: examples resemble each other."""
        common = steps // 50 < Machine.rejected < Machine.drafted and Machine.repeated > steps // 50
        return common and Machine.overtaken > steps // 500

    for part in range(MAX_PARTS):
        if Machine.steps_done >= steps and seen():
            break
        run_state_machine_as_test(
            type(f"Machine{shard}_{part}", (Machine,), {}),  # by its name, hypothesis draws other examples
            settings=settings(
                max_examples=2 + max(steps - Machine.steps_done, steps // 5) // STEPS_PER_EXAMPLE,
                stateful_step_count=STEPS_PER_EXAMPLE,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    record_property(
        "figures",
        f"{Machine.steps_done:,} steps over pages, prefix tree and scheduler, "
        f"up to {Machine.most_preemptions} preemptions, {Machine.drafted:,} drafted tokens of which "
        f"{Machine.rejected:,} were rejected, {Machine.repeated:,} steps at once with others, "
        f"{Machine.overtaken:,} sequences overtaken by another account",
    )
    assert Machine.steps_done >= steps
    assert seen()
