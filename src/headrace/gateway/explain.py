"""What a route would do with a request, and why, without asking any model that answers."""

from __future__ import annotations

from msgspec import Struct

from headrace.errors import HeadraceError
from headrace.gateway.gate import Gate, problem_of
from headrace.gateway.planning import RoutePlan
from headrace.gateway.policies.registry import policy_named
from headrace.gateway.routes import Route
from headrace.gateway.routing_handler import RoutingHandler
from headrace.gateway.target_state import TargetState
from headrace.inference.accounts import Account
from headrace.inference.call_context import CallContext
from headrace.inference.requests import GenerationRequest
from headrace.storage.keys import KeyLimits

_NOBODY = Account("", KeyLimits())


class ExplainedTarget(Struct, frozen=True, kw_only=True):
    """A target: its `place` in the order from 1, None where it is not asked. `verdict` is "ok", or what of
    the request it cannot have. `seconds` and `usd` are expected, `most_usd` is the worst case; None: not
    known."""

    target: str
    provider: str
    place: int | None
    reason: str
    verdict: str
    breaker: str
    in_flight: int
    seconds: float | None
    usd: float | None
    most_usd: float | None


class ExplainedGate(Struct, frozen=True, kw_only=True):
    """The gate of a cascade; `closed` says why no small answer is accepted, "" where it is open."""

    closed: str
    task: str = ""
    created: str = ""
    risk: float | None = None
    confidence: float | None = None
    threshold: float | None = None
    certified_share: float | None = None
    pairs: int = 0
    audited: int = 0
    audited_wrong: int = 0


class ExplainedRoute(Struct, frozen=True, kw_only=True):
    """A route and a request. `personal` are the kinds of personal data that were found, None where nothing
    was looked for."""

    route: str
    policy: str
    prompt_tokens: int
    output_tokens: int
    targets: list[ExplainedTarget]
    labels: dict[str, float] = {}
    personal: list[str] | None = None
    gate: ExplainedGate | None = None


async def explain(
    routing: RoutingHandler, route: Route, request: GenerationRequest, call: CallContext
) -> ExplainedRoute:
    """What the route would do. InvalidRequest where no target may have the request."""
    states = routing.states_of(route)
    plan = await routing.planner.plan(route, states, request, call)
    places = {one.candidate.index: (place, one.reason) for place, one in enumerate(plan.ranked, 1)}
    lacks = {one.index: why for one, why in plan.excluded}
    targets: list[ExplainedTarget] = []
    for one in plan.candidates:
        state = states[one.index]
        place, reason = places.get(one.index, (None, lacks.get(one.index, "the policy leaves it out")))
        targets.append(
            ExplainedTarget(
                target=one.name,
                provider=state.provider or "headrace",
                place=place,
                reason=reason,
                verdict=lacks.get(one.index) or _verdict(state, route, plan),
                breaker=state.breaker.state,
                in_flight=one.in_flight,
                seconds=one.seconds,
                usd=None if one.nano_usd is None else one.nano_usd / 1e9,
                most_usd=None if one.most_nano_usd is None else one.most_nano_usd / 1e9,
            )
        )
    targets.sort(key=lambda one: (one.place is None, one.place))
    return ExplainedRoute(
        route=route.name,
        policy=route.settings.route,
        prompt_tokens=plan.facts.prompt_tokens,
        output_tokens=plan.facts.output_tokens,
        targets=targets,
        labels=dict(plan.facts.scores),
        personal=None if plan.private is None else list(plan.private.labels),
        gate=await explained_gate(routing, route),
    )


def _verdict(state: TargetState, route: Route, plan: RoutePlan) -> str:
    """Whether a target can honor the parameters of a request."""
    if state.remote is None:
        return "ok"
    private = plan.private
    sent = plan.request if private is None or private.redacted is None else private.redacted
    own = CallContext(request_id="explain", account=_NOBODY)
    try:
        state.remote.adapted(sent, route.settings.drop, own)
    except HeadraceError as error:
        return error.message
    return "ok"


async def explained_gate(routing: RoutingHandler, route: Route) -> ExplainedGate | None:
    """The gate of a cascade; None for other routes."""
    if "gate" not in policy_named(route.settings.route, "route").needs:
        return None
    gate: Gate = await routing.gates.gate(route.name)
    small, large = route.targets
    closed, found = problem_of(gate, route.settings, small, large), gate.calibration
    if found is None:
        return ExplainedGate(closed=closed)
    return ExplainedGate(
        closed=closed,
        task=found.task,
        created=found.created,
        risk=found.certificate.risk,
        confidence=found.certificate.confidence,
        threshold=found.certificate.threshold,
        certified_share=found.certificate.share,
        pairs=len(found.pairs),
        audited=gate.audited,
        audited_wrong=gate.wrong,
    )
