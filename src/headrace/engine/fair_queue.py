"""Which of the waiting goes next: by rank within an account, by deficit round robin among accounts."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, field

from headrace.errors import ProgramError

RANK = attrgetter("rank")
QUANTUM_TOKENS = 64
"""Tokens that each turn adds to what an account may have admitted."""

Rank = tuple[float, int]


class Ranked(Protocol):
    """What can wait: the lower `rank` (unique) is the more important one within its account.

    `cost_tokens` are charged to the account when it is taken; 0 for what was charged before.
    """

    @property
    def account(self) -> str: ...
    @property
    def rank(self) -> Rank: ...
    @property
    def priority(self) -> int: ...
    @property
    def cost_tokens(self) -> int: ...


Item = TypeVar("Item", bound=Ranked)


class _Account(Struct, Generic[Item], eq=False):
    """What waits of one account, by rank; those before `passed` are passed over in this step."""

    items: list[Item] = field(default_factory=list[Item])
    deficit_tokens: int = 0  # what may be taken before the next turn
    passed: int = 0


class FairQueue(Generic[Item]):
    """A queue of several accounts. Integers only: the same history gives the same order.

    Within an account the lowest rank comes first. Among accounts it is deficit round robin (Shreedhar and
    Varghese 1995): each turn of an account adds `quantum_tokens` to its deficit, and what it waits for is
    taken while the deficit covers the cost. Of two accounts that wait all the time, equally urgent, neither
    gets more than a quantum and the two largest costs beyond the other, however much either has queued.

    Urgency comes before fairness, with ageing: an account yields to another whose first has a lower
    `priority` and a lower rank. What costs nothing was charged before, and comes before what is charged.
    """

    def __init__(self, quantum_tokens: int = QUANTUM_TOKENS) -> None:
        self._quantum_tokens = quantum_tokens
        self._accounts: dict[str, _Account[Item]] = {}  # in the order of their turns
        self._turn: _Account[Item] | None = None  # has had its quantum; the first of all where it waits
        self._count = 0

    def __len__(self) -> int:
        """How many wait. May be called from any thread."""
        return self._count

    def __iter__(self) -> Iterator[Item]:
        """Everything that waits, by rank alone."""
        return iter(sorted(chain.from_iterable(one.items for one in self._accounts.values()), key=RANK))

    def firsts(self) -> list[Item]:
        """The first of each account."""
        return [one.items[0] for one in self._accounts.values()]

    def add(self, item: Item) -> None:
        """Let it wait."""
        account = self._accounts.setdefault(item.account, _Account())
        account.passed = min(account.passed, bisect_left(account.items, item.rank, key=RANK))
        insort(account.items, item, key=RANK)
        self._count += 1

    def remove(self, item: Item) -> None:
        """It waits no more. ProgramError where it did not wait. An account without any loses its deficit."""
        account = self._accounts.get(item.account)
        if account is None:
            raise ProgramError(f"what was never added to this queue is removed: {item.rank}")
        account.passed -= remove_ranked(account.items, item) < account.passed
        self._count -= 1
        if not account.items:
            del self._accounts[item.account]
            if self._turn is account:
                self._turn = None

    def take(self, item: Item) -> None:
        """Remove what `next` gave, and charge its account."""
        self._accounts[item.account].deficit_tokens -= item.cost_tokens
        self.remove(item)

    def begin(self) -> None:
        """A step begins: look again at what was passed over."""
        for account in self._accounts.values():
            account.passed = 0

    def next(self, passes: Callable[[Item], bool] = lambda item: False) -> Item | None:
        """What should be taken next, None where nothing can be. It stays until `take`.

        An item that `passes` accepts cannot be taken in this step; those behind it can.
        """
        heads: list[tuple[_Account[Item], Item]] = []
        for account in self._accounts.values():
            items = account.items
            while account.passed < len(items) and passes(items[account.passed]):
                account.passed += 1
            if account.passed < len(items):
                heads.append((account, items[account.passed]))
        heads = _most_urgent(heads)
        charged = [head for _, head in heads if not head.cost_tokens]
        if charged:
            return min(charged, key=RANK)
        return self._deal(heads) if heads else None

    def _deal(self, heads: list[tuple[_Account[Item], Item]]) -> Item:
        """The head whose account's deficit is the first to cover its cost, in rounds of turns; all quanta of
        these turns are added at once."""
        quantum, turn = self._quantum_tokens, self._turn
        wanted = [-(-max(head.cost_tokens - one.deficit_tokens, 0) // quantum) for one, head in heads]
        # The round (from 0) in which each is taken: the account that has the turn gets its next quantum in 1.
        rounds = [
            quanta if one is turn else max(quanta, 1) - 1
            for quanta, (one, _) in zip(wanted, heads, strict=True)
        ]
        last = min(rounds)
        winner = rounds.index(last)
        for place, (account, _) in enumerate(heads):
            turns = last + (place < winner and account is not turn)
            account.deficit_tokens += quantum * (wanted[winner] if place == winner else turns)
        self._turn, head = heads[winner]
        self._rotate(head.account)
        return head

    def _rotate(self, first: str) -> None:
        """Make this account's turn the first."""
        names = list(self._accounts)
        place = names.index(first)
        if place:
            self._accounts = {name: self._accounts[name] for name in names[place:] + names[:place]}


def outranks(item: Ranked, other: Ranked) -> bool:
    """Whether `item` goes before `other`, whatever each of their accounts has got."""
    return item.rank < other.rank and (item.account == other.account or item.priority < other.priority)


def remove_ranked(ranked: list[Item], item: Item) -> int:
    """Remove it from a list by rank; the place where it was. ProgramError for one that is not in it."""
    place = bisect_left(ranked, item.rank, key=RANK)
    if place == len(ranked) or ranked[place] is not item:
        raise ProgramError(f"what was never added to this list is removed: {item.rank}")
    del ranked[place]
    return place


def _most_urgent(heads: list[tuple[_Account[Item], Item]]) -> list[tuple[_Account[Item], Item]]:
    """Those that need not yield to another: no other is more urgent and has a lower rank."""
    first: dict[int, Rank] = {}  # by priority
    for _, head in heads:
        first[head.priority] = min(first.get(head.priority, head.rank), head.rank)
    if len(first) < 2:
        return heads
    limits: dict[int, Rank] = {}
    limit: Rank = (float("inf"), 0)
    for priority in sorted(first):
        limits[priority] = limit
        limit = min(limit, first[priority])
    return [(account, head) for account, head in heads if head.rank < limits[head.priority]]
