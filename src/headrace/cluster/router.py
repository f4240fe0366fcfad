"""Which replica gets a request: a function of the request and of what the front knows of the replicas.

The server and the simulator use the same classes (docs/decisions/0082).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Literal

from msgspec import Struct

from headrace.cluster.cost_model import CostModel
from headrace.cluster.prefix_index import PrefixIndex
from headrace.config.cluster_settings import ROUTING_POLICIES, RoutingPolicy
from headrace.errors import Overloaded, ProgramError

Policy = RoutingPolicy
POLICIES = ROUTING_POLICIES
LOOK_AT_ALL = 64
"""Up to so many replicas are all compared; of more only HOLDERS and SAMPLES."""
HOLDERS = 4  # replicas with the longest prefixes
SAMPLES = 8  # others, drawn at random
SESSION_GROUPS = 2
"""Groups of tokens at a prompt's beginning that make a session where the request names none."""

ENDS_AFTER_STEPS = 128
"""A stream ends after so many steps, as long as nothing better is known."""
OTHERS = 2.0
"""Reading a prompt delays the requests that come after it and takes memory from what is cached. On the
Mooncake trace 1 to 4 give both more hits and a shorter time to the first token than 0 (decision 0082)."""


class Capacity(Struct, frozen=True, kw_only=True):
    """What a replica has room for."""

    max_batch_tokens: int
    max_num_seqs: int
    kv_tokens: int


class RoutedRequest(Struct, frozen=True):
    """What routing sees of a request: `keys` are digests of its groups of tokens from the start on."""

    id: int
    prompt_tokens: int
    keys: tuple[int, ...] = ()
    session: str = ""


class Replica(Struct, eq=False, kw_only=True):
    """What the front knows of one replica, from the requests that it sent and the events that came back.

    `unread_tokens` are those of prompts without a first token, `streams` and `stream_tokens` the requests
    that have one and the tokens they hold. While `draining` it gets no more requests. `costs` are those that
    it has published, None before it has measured them.
    """

    number: int
    capacity: Capacity
    costs: CostModel | None = None
    draining: bool = False
    unread_tokens: int = 0
    unread: int = 0
    unread_held: int = 0
    streams: int = 0
    stream_tokens: int = 0

    @property
    def requests(self) -> int:
        """Under way."""
        return self.unread + self.streams


class _Routed(Struct, eq=False):
    """Where a request is and what it was counted as."""

    replica: Replica
    request: RoutedRequest
    uncached: int
    is_stream: bool = False


class RoutingChoice(Struct, frozen=True):
    """The chosen replica, how many tokens of the prompt it probably holds, the predicted time to the first
    token, and that of reading the tokens that it does not hold."""

    replica: int
    cached_tokens: int
    ttft_s: float
    read_s: float = 0.0


def _wait_s(replica: Replica, prompt_tokens: int, costs: CostModel) -> float:
    """Until the prompts before it are read, and until memory and a place are free."""
    mean_start = replica.unread_held // replica.unread // 2 if replica.unread else 0
    before_s = _read_s(replica, replica.unread_tokens, mean_start, costs)
    return before_s + _full_s(replica, prompt_tokens, costs)


def _read_s(replica: Replica, tokens: int, start: int, costs: CostModel) -> float:
    """To read tokens of prompts beside the replica's streams."""
    return costs.prompt_s(
        tokens, start, replica.streams, replica.stream_tokens, replica.capacity.max_batch_tokens
    )


def _full_s(replica: Replica, prompt_tokens: int, costs: CostModel) -> float:
    """Until streams have ended that are in the way: none of them is known to end soon, so each step that all
    make counts once for each of them that has to go."""
    capacity = replica.capacity
    over = replica.stream_tokens + replica.unread_held + prompt_tokens - capacity.kv_tokens
    mean = replica.stream_tokens / replica.streams if replica.streams else 1
    ends = max(replica.requests + 1 - capacity.max_num_seqs, over / mean if over > 0 else 0)
    if ends <= 0:
        return 0.0
    streams_s = costs.step_s + costs.row_s * replica.streams + costs.pair_s * replica.stream_tokens
    return ends * streams_s * ENDS_AFTER_STEPS / max(replica.streams, 1)


CostsFrom = Literal["measured", "others", "assumed"]
"""Whose costs predictions for a replica use: its own, the mean of the others', those given at the start."""


class Router:
    """Counts what each replica has, and chooses. For one thread at a time.

    `costs` are assumed until a replica has measured its own.
    """

    def __init__(
        self, policy: Policy, costs: CostModel, *, group_tokens: int, index: PrefixIndex | None = None
    ) -> None:
        self.policy = policy
        self._assumed = self._usual = costs
        self._group_tokens = group_tokens
        self._index = index or PrefixIndex()
        self._replicas: dict[int, Replica] = {}
        self._free: list[Replica] = []
        self._routed: dict[int, _Routed] = {}
        self._turn = 0
        self._random = random.Random(0)

    @property
    def replicas(self) -> Mapping[int, Replica]:
        """By number."""
        return self._replicas

    def add(self, number: int, capacity: Capacity) -> None:
        """A replica that is ready. Numbers are small: each is a bit of the index."""
        if number in self._replicas:
            raise ProgramError(f"replica {number} is added twice")
        self._replicas[number] = Replica(number=number, capacity=capacity)
        self._index.add(number, max(1, capacity.kv_tokens // self._group_tokens))
        self._changed()

    def remove(self, number: int) -> None:
        """A replica that has ended; requests that it had are forgotten."""
        self._index.remove(number)
        del self._replicas[number]
        for key in [key for key, routed in self._routed.items() if routed.replica.number == number]:
            del self._routed[key]
        self._changed()

    def drain(self, number: int, draining: bool = True) -> None:
        """It gets no more requests."""
        self._replicas[number].draining = draining
        self._changed()

    def measured(self, number: int, costs: CostModel | None) -> None:
        """What a replica has published of its steps; None where that is too old to count."""
        self._replicas[number].costs = costs
        self._changed()

    def costs(self, number: int) -> tuple[CostModel, CostsFrom]:
        """What predictions for a replica use."""
        own = self._replicas[number].costs
        if own is not None:
            return own, "measured"
        return self._usual, "assumed" if self._usual is self._assumed else "others"

    def choose(self, request: RoutedRequest, excluded: frozenset[int] = frozenset()) -> RoutingChoice:
        """Where the request should go; nothing is counted. Overloaded where no replica takes requests."""
        free = self._free
        if excluded:
            free = [replica for replica in free if replica.number not in excluded]
        if not free:
            raise Overloaded("no replica of this model takes requests now: try again later")
        matches = self._index.matches(request.keys) if self.policy == "kv" else {}
        if self.policy == "round-robin":
            best = free[self._turn % len(free)]
        elif self.policy == "session":
            name = request.session or repr(request.keys[:SESSION_GROUPS] or request.id)
            best = max(free, key=lambda replica: _weight(name, replica.number))
        elif self.policy == "least-load":
            best = min(self._sampled(free, {}, excluded), key=_load)
        else:
            compared = self._sampled(free, matches, excluded)
            return min((self._choice(one, request, matches) for one in compared), key=self._cost)
        return self._choice(best, request, self._index.matches(request.keys))

    def sent(self, request: RoutedRequest, choice: RoutingChoice) -> None:
        """The request went there."""
        self._turn += 1
        replica = self._replicas[choice.replica]
        uncached = request.prompt_tokens - choice.cached_tokens
        replica.unread += 1
        replica.unread_tokens += uncached
        replica.unread_held += request.prompt_tokens
        self._routed[request.id] = _Routed(replica, request, uncached)
        self._index.note(replica.number, request.keys)

    def holds(self, number: int, keys: Sequence[int]) -> None:
        """A replica has got pages with these keys."""
        if number in self._replicas:
            self._index.note(number, keys)

    def first_token(self, request_id: int) -> None:
        """The request's prompt is read."""
        routed = self._routed.get(request_id)
        if routed is not None and not routed.is_stream:
            routed.is_stream = True
            self._read(routed)
            routed.replica.streams += 1
            routed.replica.stream_tokens += routed.request.prompt_tokens

    def ended(self, request_id: int) -> None:
        """The request has ended, or goes elsewhere."""
        routed = self._routed.pop(request_id, None)
        if routed is None:
            return
        if routed.is_stream:
            routed.replica.streams -= 1
            routed.replica.stream_tokens -= routed.request.prompt_tokens
        else:
            self._read(routed)

    def _read(self, routed: _Routed) -> None:
        routed.replica.unread -= 1
        routed.replica.unread_tokens -= routed.uncached
        routed.replica.unread_held -= routed.request.prompt_tokens

    def _cost(self, choice: RoutingChoice) -> tuple[float, tuple[int, int]]:
        """The time to the first token, and what the others pay for tokens that are read again."""
        return choice.ttft_s + OTHERS * choice.read_s, _load(self._replicas[choice.replica])

    def _choice(self, replica: Replica, request: RoutedRequest, matches: Mapping[int, int]) -> RoutingChoice:
        matched = matches.get(replica.number, 0) * self._group_tokens
        cached = min(matched, request.prompt_tokens - 1)
        costs = replica.costs or self._usual
        read_s = _read_s(replica, request.prompt_tokens - cached, cached, costs)
        ttft_s = _wait_s(replica, request.prompt_tokens, costs) + read_s
        return RoutingChoice(replica.number, cached, ttft_s, read_s)

    def _sampled(
        self, free: Sequence[Replica], matches: Mapping[int, int], excluded: AbstractSet[int]
    ) -> Iterable[Replica]:
        """What to compare."""
        if len(free) <= LOOK_AT_ALL:
            return free
        usable = (one for one in matches if one not in excluded and not self._replicas[one].draining)
        holders = sorted(usable, key=lambda number: (-matches[number], number))[:HOLDERS]
        return [*(self._replicas[number] for number in holders), *self._random.sample(free, SAMPLES)]

    def _changed(self) -> None:
        """There are others now that take requests, or other costs."""
        self._free = [replica for replica in self._replicas.values() if not replica.draining]
        known = [replica.costs for replica in self._replicas.values() if replica.costs is not None]
        self._usual = CostModel.mean(known) if known else self._assumed


def _load(replica: Replica) -> tuple[int, int]:
    """Requests, then tokens of prompts that wait."""
    return replica.requests, replica.unread_tokens


def _weight(name: str, number: int) -> bytes:
    """Rendezvous hashing: of a session each replica has a weight, and the largest is chosen."""
    return blake2b(f"{number} {name}".encode(), digest_size=8).digest()
