"""Before a request is sent anywhere: what its route's policy needs to know, and the order of its targets."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from headrace.errors import HeadraceError, InvalidRequest
from headrace.gateway.labels import Labeler
from headrace.gateway.policies.difficulty import POLICY as DIFFICULTY
from headrace.gateway.policies.difficulty import is_hard
from headrace.gateway.policies.policy import CandidateTarget, Facts, RankedTarget, RoutePolicy
from headrace.gateway.policies.registry import policy_named
from headrace.gateway.privacy import FAILED, UNREAD, PrivacyCheck, Private
from headrace.gateway.purse import Purse
from headrace.gateway.reservation import estimate
from headrace.gateway.routes import LocalTarget, Route
from headrace.gateway.target_state import TargetState
from headrace.inference.accounts import Account
from headrace.inference.attempts import TokenCounts
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.price_source import Payer, PriceSource, RequestBound
from headrace.inference.requests import (
    ChatRequest,
    EmbeddingRequest,
    GenerationRequest,
    InferenceRequest,
    RouteWishes,
)
from headrace.providers.bounds import DEFAULT_OUTPUT, choices_of, embedding_bound, output_bound
from headrace.providers.capabilities import only_generates
from headrace.providers.remote_attempt import prompt_tokens
from headrace.storage.keys import KeyLimits

USUAL_OUTPUT = 256
"""Tokens of an answer, before any was measured."""
MOST_KEPT = 32
"""Targets of a plan: more than attempts are ever made."""
NO_WISHES = RouteWishes()


class RoutePlan(Struct, frozen=True):
    """The targets of a request in the order in which they are tried, and why. `private` is what was found of
    personal data, None where nothing was looked for. `excluded` has what each other target lacks."""

    request: InferenceRequest
    ranked: tuple[RankedTarget, ...]
    facts: Facts
    candidates: tuple[CandidateTarget, ...]
    private: Private | None = None
    excluded: tuple[tuple[CandidateTarget, str], ...] = ()


class Planner:
    """Plans requests of routes."""

    def __init__(self, prices: PriceSource, runner: ModelRunner | None) -> None:
        self.prices = prices
        self._privacy, self._labels = PrivacyCheck(runner), Labeler(runner)

    async def plan(
        self, route: Route, states: Sequence[TargetState], request: InferenceRequest, call: CallContext
    ) -> RoutePlan:
        """The plan of a request, whose `states` are those of the route's targets. InvalidRequest where no
        target is left."""
        asked = only_generates(request, route.name)
        policy = policy_named(route.settings.route, "route")
        wishes = request.route or NO_WISHES
        if wishes.quality is not None and "gate" not in policy.needs:
            call.warn("route", f"quality has no effect: {route.name!r} is no cascade")
        asked = _bounded(asked, wishes, call)
        facts = await self._facts(route, states, asked, policy, call)
        candidates = await self._candidates(route, states, asked, facts, policy, call)
        private = await self._private(route, asked, wishes, call)
        ranked = policy.order(facts, candidates, route.settings)
        kept: list[RankedTarget] = []
        excluded: list[tuple[CandidateTarget, str]] = []
        for one in ranked:
            if len(kept) == MOST_KEPT:
                break
            state = states[one.candidate.index]
            if wishes.max_usd is not None:
                most = self._exact_most(state, asked, route)
                one = replace(one, candidate=replace(one.candidate, most_nano_usd=most))
            lacks = _lacks(one.candidate, wishes, private, state, facts)
            if lacks is None:
                kept.append(one)
            else:
                excluded.append((one.candidate, lacks))
        if not kept:
            raise _none_left(route, excluded, wishes)
        effort = route.settings.effort if policy is DIFFICULTY and is_hard(facts, route.settings) else None
        asked = _as_wished(asked, wishes, effort)
        if private is not None and private.redacted is not None:
            private = replace(private, redacted=_as_wished(private.redacted, wishes, effort))
        return RoutePlan(asked, tuple(kept), facts, tuple(candidates), private, tuple(excluded))

    async def _facts(
        self,
        route: Route,
        states: Sequence[TargetState],
        request: GenerationRequest,
        policy: RoutePolicy,
        call: CallContext,
    ) -> Facts:
        usual = [found for one in states[:64] if (found := one.speed.usual_output) is not None]
        most = request.sampling.get("max_tokens")
        output = int(median(usual)) if usual else USUAL_OUTPUT
        scores: Mapping[str, float] = {}
        if "label" in policy.needs:
            scores = await self._labels.scores(route.settings, request, call)
        return Facts(
            prompt_tokens=prompt_tokens(request),
            output_tokens=min(output, int(most) if most else output) * choices_of(request),
            scores=scores,
            draw=random.random(),
        )

    async def _candidates(
        self,
        route: Route,
        states: Sequence[TargetState],
        request: GenerationRequest,
        facts: Facts,
        policy: RoutePolicy,
        call: CallContext,
    ) -> list[CandidateTarget]:
        left: list[float | None] = [None] * len(states)
        if "left" in policy.needs:
            left = await self.prices.left([_payer(one, route, call) for one in states])
        tokens = TokenCounts(input=facts.prompt_tokens, output=facts.output_tokens)
        most = estimate(request)
        found: list[CandidateTarget] = []
        for index, state in enumerate(states):
            if index % 64 == 63:  # a price that was not asked for lately takes a third of a millisecond
                await asyncio.sleep(0)
            seconds = state.speed.seconds(facts.prompt_tokens, facts.output_tokens)
            found.append(
                CandidateTarget(
                    index=index,
                    name=state.name,
                    is_local=isinstance(state.target, LocalTarget),
                    nano_usd=self.prices.price(
                        state.provider, state.provider_model, tokens, seconds, state.tier
                    ),
                    most_nano_usd=self.prices.most(state.provider, state.provider_model, most, state.tier),
                    seconds=seconds,
                    samples=state.speed.samples,
                    in_flight=state.in_flight,
                    left=left[index],
                )
            )
        return found

    def bound(
        self, state: TargetState, request: GenerationRequest | EmbeddingRequest, route: Route
    ) -> RequestBound:
        """The most that the request can come to at a target, by the bytes that are sent. What a model of this
        machine costs, its time, is not counted here. Raises what refuses the request."""
        if isinstance(request, EmbeddingRequest):
            if state.remote is not None:
                state.remote.adapted(request, route.settings.drop, _own_call())
            read = TokenCounts(input=0 if state.remote is None else embedding_bound(request))
            return self._priced(state, read, prompt_tokens(request))
        estimated = estimate(request)
        if state.remote is None:
            return RequestBound(
                prompt_tokens=estimated.input,
                output_tokens=estimated.output,
                estimate=estimated.input,
                nano_usd=0,
            )
        sent = only_generates(state.remote.adapted(request, route.settings.drop, _own_call()), state.name)
        output = output_bound(sent, state.remote.target).most
        tokens = TokenCounts(input=state.remote.most_input(sent), output=output)
        return self._priced(state, tokens, estimated.input)

    def _priced(self, state: TargetState, tokens: TokenCounts, estimate: int) -> RequestBound:
        usd = self.prices.most(state.provider, state.provider_model, tokens, state.tier)
        name = f"{state.provider}/{state.provider_model}"
        return RequestBound(
            prompt_tokens=tokens.input,
            output_tokens=tokens.output,
            estimate=estimate,
            nano_usd=usd,
            missing="" if usd is not None else f'no price of {name} is known: set [prices."{name}"]',
        )

    def _exact_most(self, state: TargetState, request: GenerationRequest, route: Route) -> int | None:
        """The most that the request can cost at a target; None: not known."""
        try:
            return self.bound(state, request, route).nano_usd
        except HeadraceError:  # it is refused when its turn comes
            return None

    async def _private(
        self, route: Route, request: GenerationRequest, wishes: RouteWishes, call: CallContext
    ) -> Private | None:
        """What the strictest of settings and request wants to be looked for."""
        wanted = _strictness(route.settings.privacy)
        if route.settings.route == "privacy" and not wanted:
            wanted = 2
        if wishes.privacy == "local":  # whatever is in it
            return Private(("asked for",))
        wanted = max(wanted, _strictness(wishes.privacy or "off"))
        if not wanted:
            return None
        return await self._privacy.check(request, route.settings.detector, call, redacts=wanted == 1)


def _own_call() -> CallContext:
    """For what is only looked at: its warnings are for nobody."""
    return CallContext(request_id="most", account=Account("", KeyLimits()))


def is_plain(route: Route, request: InferenceRequest) -> bool:
    """Whether the targets of a route are tried in their order, whatever the request is. Policies are for what
    generates; personal data is for everything."""
    if looks_for_personal_data(route, request):
        return False
    is_ordered = route.settings.route in ("ordered", "fixed") and request.route is None
    return is_ordered or not isinstance(request, GenerationRequest)


def looks_for_personal_data(route: Route, request: InferenceRequest) -> bool:
    """Whether a request may be kept from leaving this machine."""
    asked = request.route is not None and request.route.privacy is not None
    return asked or route.settings.privacy != "off" or route.settings.route == "privacy"


def purse_of(plan: RoutePlan, states: Sequence[TargetState]) -> Purse | None:
    """What bounds the money of the request; None where it says nothing of it."""
    wishes = plan.request.route
    if wishes is None or wishes.max_usd is None:
        return None
    most = {states[one.candidate.index]: one.candidate.most_nano_usd for one in plan.ranked}
    known = {state: nano for state, nano in most.items() if nano is not None}
    return Purse(int(wishes.max_usd * 1e9), known)


def check_uncertified(plan: RoutePlan, call: CallContext) -> None:
    """The large model of a cascade may not be asked: the small one answers, with a warning; InvalidRequest
    where the request asks for a quality."""
    said = "; ".join(f"{one.name!r}: {why}" for one, why in plan.excluded)
    wishes = plan.request.route or NO_WISHES
    if wishes.quality is not None:
        raise InvalidRequest(
            f"no quality can be promised, the large model is left out ({said})", param="route"
        )
    call.warn("route", f"the small model answers without a certificate, the large one is left out ({said})")


def _strictness(privacy: str) -> int:
    return ("off", "redact", "local").index(privacy)


def _payer(state: TargetState, route: Route, call: CallContext) -> Payer:
    return Payer(
        account=call.account.name,
        route=route.name,
        target=state.name,
        provider=state.provider,
        model=state.provider_model,
    )


def _lacks(
    one: CandidateTarget, wishes: RouteWishes, private: Private | None, state: TargetState, facts: Facts
) -> str | None:
    """Why a target may not have a request; None where it may."""
    if private is not None and private.redacted is None and not one.is_local:
        if private.labels == ("asked for",):
            return "it is no model of this machine"
        words = {UNREAD: "content that cannot be searched", FAILED: "a search for personal data that failed"}
        found = ", ".join(words.get(label, label) for label in private.labels)
        return f"it is no model of this machine, and the request has {found}"
    context = None if isinstance(state.target, LocalTarget) else state.target.context
    if context is not None and facts.prompt_tokens > context:
        return f"its context has {context:,} tokens, the prompt some {facts.prompt_tokens:,}"
    if wishes.max_usd is not None:
        if one.most_nano_usd is None:
            return "its price is not known"
        if one.most_nano_usd > wishes.max_usd * 1e9:
            return f"it may cost ${one.most_nano_usd / 1e9:.9f}"
    if wishes.max_s is not None and one.seconds is not None and one.seconds > wishes.max_s:
        return f"it takes some {one.seconds:.2f} s"
    return None


def _none_left(
    route: Route, excluded: Sequence[tuple[CandidateTarget, str]], wishes: RouteWishes
) -> HeadraceError:
    shown = "; ".join(f"{one.name!r}: {why}" for one, why in excluded[:3])
    more = f"; and {len(excluded) - 3:,} more" if len(excluded) > 3 else ""
    remedy = "ask for fewer tokens (max_tokens), or allow more" if wishes.max_usd is not None else ""
    remedy = remedy or "add a target that may have it, or allow more"
    return InvalidRequest(
        f"no target of {route.name!r} may have this request ({shown}{more}): {remedy}",
        param="route",
        code="no_target",
    )


def _as_wished(request: GenerationRequest, wishes: RouteWishes, effort: str | None) -> GenerationRequest:
    if wishes.max_s is not None:
        request = replace(request, deadline_s=min(wishes.max_s, request.deadline_s or wishes.max_s))
    return _with_effort(request, effort)


def _bounded(request: GenerationRequest, wishes: RouteWishes, call: CallContext) -> GenerationRequest:
    """With a limit of the output, where money is limited: without one it could cost anything."""
    if wishes.max_usd is None or request.sampling.get("max_tokens") is not None:
        return request
    call.warn(
        "max_tokens", f"is {DEFAULT_OUTPUT:,} at most: route.max_usd bounds the output, and no limit was sent"
    )
    return replace(request, sampling={**request.sampling, "max_tokens": DEFAULT_OUTPUT}, fit_context=True)


def _with_effort(request: GenerationRequest, effort: str | None) -> GenerationRequest:
    """More reasoning, where the request says nothing of it."""
    if effort is None or not isinstance(request, ChatRequest):
        return request
    own = request.reasoning
    if own.effort is not None or own.enabled is not None or own.max_tokens is not None:
        return request
    return replace(request, reasoning=replace(own, effort=effort))
