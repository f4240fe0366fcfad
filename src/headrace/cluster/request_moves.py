"""When KV pages move between replicas: prompts that another replica computes, drains, warm starts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from threading import RLock
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from headrace.cluster.disaggregation import MIN_MOVED_TOKENS, MoveCosts, plan_prefill
from headrace.cluster.prefix_index import group_keys
from headrace.cluster.replica_link import ReplicaLink
from headrace.cluster.router import RoutedRequest, Router, RoutingChoice
from headrace.cluster.transfer import Texts, Transfer, Transfers
from headrace.engine.request import EngineEvent, EngineRequest, PageMove
from headrace.kv.pages import PAGE_TOKENS
from headrace.sampling.params import SamplingParams
from headrace.workers.in_flight import InFlightRequest, send
from headrace.workers.protocol import Cancel, PageReport, PrefixRoot, Submit

ASSUMED_BYTES_S = 1e9
"""Of pages on their way, per second."""


class Placed(Struct, eq=False):
    """A request in flight and the replica that computes it, None while it waits for one. While it is
    `prefilling`, that replica computes the prompt alone, for another one. `transfer` are its pages under
    way. `generation`: the weights that gave what its reader has. `outbox` has the events that its reader gets
    next: they are added with the caller's lock held, and delivered without it, in that order, whichever
    threads do it."""

    item: InFlightRequest
    routed: RoutedRequest
    link: ReplicaLink | None = None
    prefilling: bool = False
    transfer: Transfer | None = None
    moves: list[PageMove] = field(default_factory=list[PageMove])
    generation: int | None = None
    outbox: deque[list[EngineEvent]] = field(default_factory=deque[list[EngineEvent]])
    _delivering: RLock = field(default_factory=RLock)  # a sink may cancel its request

    def deliver(self) -> None:
        """Send what is in the outbox. Without the caller's lock: a sink may wait for it."""
        with self._delivering:
            while self.outbox:
                send(self.item, self.outbox.popleft())


class Places(Protocol):
    """Who sends requests to replicas."""

    def place(self, placed: Placed, run: EngineRequest, target: RoutingChoice | None = None) -> None: ...
    def link(self, number: int) -> ReplicaLink | None: ...
    @property
    def router(self) -> Router: ...
    @property
    def open(self) -> Mapping[int, Placed]: ...


class RequestMoves:
    """The caller has its lock."""

    def __init__(
        self,
        places: Places,
        *,
        shares: bool,
        page_bytes: int,
        warm_bytes: int,
        has_roles: bool,
        always: bool,
    ) -> None:
        self.transfers = Transfers(shares=shares)
        self._has_roles, self._always = has_roles, always
        self._costs = MoveCosts(token_s=page_bytes / PAGE_TOKENS / ASSUMED_BYTES_S)
        self._places, self._page_bytes, self._warm_bytes = places, page_bytes, warm_bytes

    # -- roles ----------------------------------------------------------------------------------------

    def others(self, role: str) -> frozenset[int]:
        """The replicas that a request is not sent to because they have another role, none where there is no
        replica of this one."""
        if not self._has_roles:
            return frozenset()
        ready = [
            link
            for number, known in self._places.router.replicas.items()
            if not known.draining and (link := self._places.link(number)) is not None
        ]
        others = frozenset(link.number for link in ready if link.role not in (role, "any"))
        return others if len(others) < len(ready) else frozenset()

    def of_other_weights(self, placed: Placed) -> frozenset[int]:
        """The replicas that might give other tokens than its reader has; none where it has none."""
        if placed.generation is None or not placed.item.output.tokens:
            return frozenset()
        links = map(self._places.link, self._places.router.replicas)
        return frozenset(one.number for one in links if one and one.generation != placed.generation)

    def prefill(self, placed: Placed, run: EngineRequest) -> bool:
        """Let a replica for prompts compute this one's, whose pages come to a replica that decodes; False
        where that one reads the prompt itself: there is no other, or it costs less (`plan_prefill`)."""
        router, number, routed = self._places.router, placed.routed.id, placed.routed
        if not (self._has_roles and run.cache and _is_plain(run)) or len(run.prompt) <= MIN_MOVED_TOKENS:
            return False
        decode, prefill = self.others("decode"), self.others("prefill")
        found = plan_prefill(
            *(router, routed), decode=decode, prefill=prefill, moves=self._costs, always=self._always
        )
        target, source = found.target, found.source
        reads, decodes = self._places.link(source.replica), self._places.link(target.replica)
        if reads is None or decodes is None or reads.role != "prefill" or decodes.role != "decode":
            return False
        if not found.is_apart:
            if found.why:
                here = target.replica
                placed.moves.append(PageMove(found.why, 0.0, 0.0, 0.0, 0, 0, here, here))
            return False
        first = target.cached_tokens // PAGE_TOKENS
        transfer = self.transfers.begin(
            *(reads, decodes, _root(run, number), run.prompt),
            lambda done: self._prefilled(placed, done, found.why),
            first=first,
            follows=str(number),
        )
        if transfer is None:
            return False
        router.sent(routed, source)
        there = replace(target, cached_tokens=len(run.prompt) - 1)
        router.sent(replace(routed, id=~number), there)
        placed.link, placed.prefilling, placed.transfer = reads, True, transfer
        reads.put(Submit(number, _prompt_only(run), False))
        return True

    def prompt_ended(self, placed: Placed) -> None:
        """The replica for prompts has read it, or failed."""
        if placed.transfer is not None:
            self.transfers.finish(placed.transfer)

    def _prefilled(self, placed: Placed, transfer: Transfer, why: str) -> None:
        number, link = placed.routed.id, placed.link
        if not self._ends(placed, transfer, why):
            return
        if not transfer.problem:
            self._costs = self._costs.learned(placed.moves[-1].after_s)
        placed.prefilling, placed.link = False, None
        if link is not None:
            link.put(Cancel(number))
        self._go_on(placed, transfer)

    # -- drains ---------------------------------------------------------------------------------------

    def leave(self, link: ReplicaLink) -> None:
        """A replica is about to end: its requests go elsewhere, with the pages of their prompts."""
        for placed in list(self._places.open.values()):
            if placed.link is link and not placed.prefilling and placed.transfer is None:
                self._leave(placed, link)

    def _leave(self, placed: Placed, link: ReplicaLink) -> None:
        request, router = placed.item.request, self._places.router
        excluded = self.others("decode") | self.of_other_weights(placed) | {link.number}
        if all(known.draining or number in excluded for number, known in router.replicas.items()):
            return  # it stays here until another one is ready, or the replica ends
        target = self._places.link(router.choose(placed.routed, excluded).replica)
        if target is None or not _is_plain(request):
            return
        number = placed.routed.id
        placed.transfer = self.transfers.begin(
            *(link, target, _root(request, number), request.prompt),
            lambda done: self._left(placed, done),
            request=str(number),
        )

    def _left(self, placed: Placed, transfer: Transfer) -> None:
        link, ends = placed.link, self._ends(placed, transfer, f"replica {transfer.source.number} ends")
        if (
            link is None
            or not ends
            or link is not transfer.source
            or self._places.link(transfer.target.number) is None
        ):
            return
        placed.link = None
        link.put(Cancel(placed.routed.id))
        self._go_on(placed, transfer)

    # -- warm starts ----------------------------------------------------------------------------------

    def warm(self, link: ReplicaLink) -> None:
        """A new replica gets what another one has used most recently."""
        same = [
            one
            for number in self._places.router.replicas
            if (one := self._places.link(number)) is not None
            and one is not link
            and one.ready.page_class == link.ready.page_class
        ]
        if same and link.ready.page_class and self._warm_bytes:
            replicas = self._places.router.replicas
            source = max(same, key=lambda one: (one.role == link.role, replicas[one.number].requests))
            self.transfers.list_hot(
                source, self._warm_bytes, lambda texts: self._next_warm(source, link, texts[::-1])
            )

    def _next_warm(self, source: ReplicaLink, link: ReplicaLink, left: Texts) -> None:
        """One after another, so that what runs does not wait for them."""

        def done(transfer: Transfer) -> None:
            if self._places.link(link.number) is not link or transfer.problem:
                return
            there = tokens[: transfer.tokens_there + 1]
            self._places.router.holds(link.number, group_keys(there, root[1]))
            self._next_warm(source, link, left)

        if left and self._places.link(link.number) is link:
            root, shared, tokens = left.pop()
            self.transfers.begin(source, link, root, tokens, done, first=shared)

    # -- what replicas tell ---------------------------------------------------------------------------

    def took(self, link: ReplicaLink, report: PageReport) -> None:
        """A message about pages."""
        self.transfers.took(link, report)

    def forget(self, placed: Placed) -> None:
        """The request has ended, or goes elsewhere without pages."""
        transfer, placed.transfer, placed.prefilling = placed.transfer, None, False
        if transfer is not None:
            self.transfers.drop(transfer)
        self._places.router.ended(~placed.routed.id)

    def _ends(self, placed: Placed, transfer: Transfer, reason: str) -> bool:
        """Note a transfer of a request's pages; False where it is of an earlier run."""
        if placed.transfer is not transfer:
            return False
        placed.transfer = None
        self._places.router.ended(~placed.routed.id)
        now_s = time.monotonic()
        placed.moves.append(
            PageMove(
                reason=reason,
                start_s=transfer.began_s - placed.item.began_s,
                seconds=now_s - transfer.began_s,
                after_s=now_s - (transfer.exported_s or now_s),
                tokens=transfer.tokens_there,
                nbytes=transfer.pages * self._page_bytes,
                source=transfer.source.number,
                target=transfer.target.number,
                problem=transfer.problem,
            )
        )
        return True

    def _go_on(self, placed: Placed, transfer: Transfer) -> None:
        router, target = self._places.router, transfer.target
        router.ended(placed.routed.id)
        known = router.replicas.get(target.number)
        choice = None
        if known is not None and not known.draining and self._places.link(target.number) is target:
            choice = RoutingChoice(
                target.number, min(transfer.tokens_there, len(placed.item.request.prompt)), 0.0
            )
        self._places.place(placed, placed.item.next_run(), choice)


def _is_plain(request: EngineRequest) -> bool:
    """Whether it begins after what the prefix cache has of its prompt."""
    scores = request.params.prompt_logprobs is not None or request.continuations
    return not (scores or request.embed is not None or request.predicts)


def _root(request: EngineRequest, number: int) -> PrefixRoot:
    """Its salt in a worker's prefix tree, where the request's id is its number."""
    if request.cache:
        return True, request.cache_salt, request.adapter
    return False, str(number), request.adapter


def _prompt_only(request: EngineRequest) -> EngineRequest:
    """The request as a replica for prompts computes it: one token comes, and nobody reads it."""
    return EngineRequest(
        prompt=request.prompt,
        params=SamplingParams(temperature=0.0, max_tokens=1, seed=0),
        cache_salt=request.cache_salt,
        account=request.account,
        priority=request.priority,
        deadline_s=request.deadline_s,
        adapter=request.adapter,
    )
