"""A handler in front of the models of this machine: requests for models that are elsewhere go there."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from headrace.errors import InvalidRequest, ModelNotFound, NotResumable
from headrace.gateway.attempts import Attempts
from headrace.gateway.cascade import Asks, Cascade, Gates, Scored
from headrace.gateway.direct_names import MAX_KEPT, DirectNames
from headrace.gateway.gate import GateStore
from headrace.gateway.hedging import HedgeShare
from headrace.gateway.planning import (
    Planner,
    RoutePlan,
    check_uncertified,
    is_plain,
    looks_for_personal_data,
    purse_of,
)
from headrace.gateway.policies.registry import policy_named
from headrace.gateway.routes import LocalTarget, Route, Target
from headrace.gateway.target_state import TargetState
from headrace.inference.attempts import SpendRecorder
from headrace.inference.call_context import CallContext
from headrace.inference.handler import Batch, EventBatches, Handler
from headrace.inference.model_runner import ModelRunner
from headrace.inference.price_source import NoPrices, PriceSource, RequestBound
from headrace.inference.requests import ChatRequest, EmbeddingRequest, GenerationRequest, InferenceRequest
from headrace.providers.batches.api import BatchApi
from headrace.providers.failure import LoopDetected, TargetRefused
from headrace.providers.remote_handler import RemoteHandler
from headrace.providers.target import Provider
from headrace.providers.upstream import Upstream
from headrace.storage.database import Database

MAX_HOPS = 8

ProviderKey = Callable[[Provider], str | None]
Reroute = Callable[[Route, GenerationRequest, CallContext], Awaitable[Route]]
"""The route that a request takes in the place of the one that it names."""
Before = Callable[[InferenceRequest], Route | None]
"""Of a request that no route has: its model of this machine as a route, where a student may be before it."""


class RoutingHandler:
    """See `Handler`. Models without a route go to `local`. Lives on one event loop; `close` it there."""

    def __init__(
        self,
        local: Handler,
        key: ProviderKey,
        spend: SpendRecorder,
        *,
        prices: PriceSource | None = None,
        runner: ModelRunner | None = None,
        gates: GateStore | None = None,
    ) -> None:
        """`prices` knows prices and budgets, `runner` runs models that look at requests, `gates` keeps
        certificates."""
        self._local, self._key, self._spend = local, key, spend
        self.planner = Planner(prices or NoPrices(), runner)
        self.gates = Gates(gates or GateStore(Database(None)), runner)
        self._routes: dict[str, Route] = {}
        self._names: dict[str, str] = {}
        self._states: dict[tuple[str, ...], TargetState] = {}
        self._direct_states: dict[tuple[str, ...], TargetState] = {}
        self._upstreams: dict[str, Upstream] = {}
        self._retired: list[Upstream] = []
        self._direct = DirectNames({}, lambda name: True)
        self._share = HedgeShare()
        self.reroute: Reroute | None = None
        """Asked for every request to a route that tries its targets in their order."""
        self.before_local: Before | None = None
        self.running = 0
        """Requests that have not ended."""
        self.server_id = secrets.token_hex(8)
        """By which this server knows a request that comes back to it."""

    @property
    def routes(self) -> Sequence[Route]:
        """All routes, in the order of the settings."""
        return list(self._routes.values())

    @property
    def states(self) -> Sequence[TargetState]:
        """The targets of all routes."""
        return list(self._states.values())

    def update(
        self,
        routes: Sequence[Route],
        providers: Mapping[str, Provider],
        serves: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """Serve these routes from now on, and PROVIDER/MODEL of the providers unless `serves` knows a model
        of this machine by that name. Targets that stay the same keep their breakers and connections."""
        kept = {
            name: upstream
            for name, upstream in self._upstreams.items()
            if name in providers
            and (upstream.base_url, upstream.settings) == (providers[name].base_url, providers[name].settings)
        }
        self._retired += [one for name, one in self._upstreams.items() if name not in kept]
        self._upstreams = kept
        for name, provider in providers.items():
            if name not in kept:
                self._upstreams[name] = Upstream(provider.base_url, provider.settings)
        self._direct = DirectNames(providers, serves)
        self._routes = {route.name: route for route in routes}
        self._names = {name: route.name for route in routes for name in (route.name, *route.settings.aliases)}
        before, self._states = self._states, {}
        self._direct_states = {}
        for target in (target for route in routes for target in route.targets):
            state = before.get(target.key) or TargetState(target, None)
            state.target, state.remote = target, self._remote(target)  # its provider may have new settings
            self._states[target.key] = state

    def _remote(self, target: Target) -> RemoteHandler | None:
        if isinstance(target, LocalTarget):
            return None
        provider = target.provider
        return RemoteHandler(
            target, self._upstreams[provider.name], lambda: self._key(provider), self.server_id
        )

    def find(self, name: str | None) -> Route | None:
        """The route of that name or alias, or of PROVIDER/MODEL; InvalidRequest for such a name that can be
        no model's."""
        known = self._names.get(name or "")
        return self._direct.find(name or "") if known is None else self._routes[known]

    def handle(self, request: InferenceRequest, call: CallContext) -> EventBatches:
        """See `Handler.handle`. What no route has passes without a generator of its own."""
        route, has_slash = self.find(request.model), "/" in (request.model or "")
        if (route is not None or has_slash) and call.journal is not None and call.journal.is_resumed:
            raise NotResumable(
                f"the server was stopped while {request.model!r:.100} answered, which a provider may have "
                "billed: send the request again"
            )
        if route is None:
            plain = None if self.before_local is None else self.before_local(request)
            if plain is not None:
                return self._before(plain, request, call)
            return self._named(request, call) if has_slash else self._local.handle(request, call)
        return self._routed(route, request, call)

    async def _before(
        self, plain: Route, request: InferenceRequest, call: CallContext
    ) -> AsyncGenerator[Batch]:
        """A request for a model of this machine, which answers it as it would without students, unless the
        request is of a task that has one."""
        taken = plain
        if self.reroute is not None and isinstance(request, GenerationRequest) and is_plain(plain, request):
            taken = await self.reroute(plain, request, call)
        if taken is plain:
            batches = self._local.handle(request, call)
        elif call.journal is not None and call.journal.is_resumed:
            raise NotResumable(
                f"the server was stopped while {request.model or plain.name!r:.100} or a student before it "
                "answered: send the request again"
            )
        else:
            batches = await self._answer(taken, request, call)
        try:
            async with aclosing(batches):
                async for batch in batches:
                    yield batch
        finally:
            if taken is not plain:
                call.model = plain.name

    async def count_tokens(self, route: Route, request: ChatRequest, call: CallContext) -> int:
        """The tokens of a prompt, by the provider of the route's first target. Raises TargetRefused where it
        does not count."""
        call.model = route.name
        self._check_hops(route, call)
        if looks_for_personal_data(route, request):
            raise TargetRefused(
                f"{route.name!r} looks for personal data before a prompt leaves this machine, and a provider "
                "would count its tokens: name a model of this machine",
                param="model",
            )
        remote = self._state(route.targets[0]).remote
        if remote is None:
            raise TargetRefused(
                f"the first target of {route.name!r} is a model of this machine: name that one", param="model"
            )
        return await remote.count_tokens(request, call)

    def most(self, request: ChatRequest | EmbeddingRequest) -> RequestBound | None:
        """See `RemoteBounds.most`: of the dearest target, or of both where a cascade may ask two. Attempts
        that fail and are billed all the same come on top. Raises what refuses the request."""
        route = self.find(request.model)
        if route is None:
            return None
        found = [self.planner.bound(state, request, route) for state in self.states_of(route)]
        asks_both = "gate" in policy_named(route.settings.route, "route").needs
        asked: Callable[[list[int]], int] = sum if asks_both else max
        missing = next((one.missing for one in found if one.missing), "")
        return RequestBound(
            prompt_tokens=asked([one.prompt_tokens for one in found]),
            output_tokens=asked([one.output_tokens for one in found]),
            estimate=asked([one.estimate for one in found]),
            nano_usd=None if missing else asked([one.nano_usd or 0 for one in found]),
            missing=missing,
        )

    def _check_hops(self, route: Route, call: CallContext) -> None:
        if self.server_id in call.hops or len(call.hops) >= MAX_HOPS:
            raise LoopDetected(
                f"the request for {route.name!r} came back to this server after {len(call.hops)} others: a "
                "base_url leads back here"
            )

    async def _named(self, request: InferenceRequest, call: CallContext) -> AsyncGenerator[Batch]:
        """What this machine has of that name. Where it has none, the error names the providers, too."""
        try:
            async with aclosing(self._local.handle(request, call)) as batches:
                async for batch in batches:
                    yield batch
        except ModelNotFound as error:
            known = ", ".join(self._direct.providers)
            if not known:
                raise
            remedy = f"{error.message}; PROVIDER/MODEL names a model of a provider, which are: {known}"
            raise ModelNotFound(remedy, param="model") from error

    def _state(self, target: Target) -> TargetState:
        """The state of a target; of one that a request has named it is made now, and kept for a while."""
        state = self._states.get(target.key) or self._direct_states.get(target.key)
        if state is None:
            if len(self._direct_states) >= MAX_KEPT:
                self._direct_states.pop(next(iter(self._direct_states)))
            state = self._direct_states[target.key] = TargetState(target, self._remote(target))
        return state

    async def _routed(
        self, route: Route, request: InferenceRequest, call: CallContext
    ) -> AsyncGenerator[Batch]:
        call.model = route.name
        self._check_hops(route, call)
        self.running += 1
        try:
            taken = route
            if self.reroute is not None and isinstance(request, GenerationRequest):
                taken = await self.reroute(route, request, call) if is_plain(route, request) else route
            async with aclosing(await self._answer(taken, request, call)) as batches:
                async for batch in batches:
                    yield batch
        finally:
            self.running -= 1
            call.model = route.name  # a model of this machine that has answered wrote its own

    async def _answer(
        self, route: Route, request: InferenceRequest, call: CallContext
    ) -> AsyncGenerator[Batch]:
        """The events of the attempts that the route's policy makes."""
        states = self.states_of(route)
        parts: dict[str, Any] = {"local": self._local, "spend": self._spend, "share": self._share}
        if is_plain(route, request):
            states = answered_first(states, call)
            return Attempts(route, states, request=request, call=call, **parts).batches()
        plan = await self.planner.plan(route, states, request, call)
        call.routed = [(one.candidate.name, one.reason) for one in plan.ranked]
        ordered = [states[one.candidate.index] for one in plan.ranked]
        parts["purse"] = purse_of(plan, states)
        cascade = self._cascade(route, plan, ordered, states, call, parts)
        if cascade is not None:
            call.deferral = None  # which of two models answers is seen from an answer
            return cascade.batches()
        ordered = answered_first(ordered, call)
        more = {"request": plan.request, "call": call, "private": plan.private}
        return Attempts(route, ordered, **more, **parts).batches()

    def _cascade(
        self,
        route: Route,
        plan: RoutePlan,
        ordered: Sequence[TargetState],
        states: Sequence[TargetState],
        call: CallContext,
        parts: dict[str, Any],
    ) -> Cascade | None:
        """The cascade of a request; None where the route is none, or only one of its targets may be asked."""
        if "gate" not in policy_named(route.settings.route, "route").needs:
            return None
        small, large, *others = states
        if large not in ordered:
            check_uncertified(plan, call)
            return None
        if small not in ordered:
            return None
        asks = Asks(route, plan.private, parts)
        assert isinstance(plan.request, GenerationRequest)
        return Cascade(route, small, large, plan.request, call, self.gates, asks, others)

    async def scored(
        self, route: Route, request: InferenceRequest, call: CallContext, label: str | None
    ) -> Scored:
        """A pair for the calibration of a cascade. InvalidRequest where the route is none."""
        states = self.states_of(route)
        parts: dict[str, Any] = {"local": self._local, "spend": self._spend, "share": self._share}
        plan = await self.planner.plan(route, states, request, call)
        ordered = [states[one.candidate.index] for one in plan.ranked]
        cascade = self._cascade(route, plan, ordered, states, call, parts)
        if cascade is None:
            raise InvalidRequest(f"{route.name!r} is no cascade, or may not ask both models", param="model")
        return await cascade.scored(label)

    def states_of(self, route: Route) -> list[TargetState]:
        """The states of a route's targets, in the order of the settings."""
        return [self._state(target) for target in route.targets]

    def batch_api(self, target: str) -> BatchApi | None:
        """The batches of a target's provider; None where there is no such target any more."""
        remote = next((one.remote for one in self._states.values() if one.name == target), None)
        return None if remote is None else remote.batches()

    async def close(self) -> None:
        """Close all connections."""
        await self.gates.close()
        for upstream in (*self._upstreams.values(), *self._retired):
            await upstream.close()
        self._upstreams, self._retired = {}, []


def answered_first(states: Sequence[TargetState], call: CallContext) -> list[TargetState]:
    """The targets of a request; the one whose provider's batch has answered it goes first."""
    answer = None if call.deferral is None else call.deferral.answer
    return list(states) if answer is None else sorted(states, key=lambda one: one.name != answer.target)
