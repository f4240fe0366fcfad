"""GET /v1/routes, POST /v1/routes/explain and /v1/routes/score: how requests are routed, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.chat_completions import ChatBody
from headrace.api.service import Service, get_service, new_id
from headrace.config.extras import extra_module
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning

if TYPE_CHECKING:
    from headrace.gateway.routes import Route
    from headrace.gateway.routing_handler import RoutingHandler

EXTRA = "gateway"


class RouteTarget(Struct, frozen=True, kw_only=True):
    """A target of a route as it is now."""

    target: str
    provider: str
    breaker: Literal["closed", "open", "half_open"]
    in_flight: int
    measured: int


class RouteState(Struct, frozen=True, kw_only=True):
    """A route: its policy, its targets, and of a cascade its gate, as /v1/routes/explain describes it."""

    id: str
    policy: str
    privacy: str
    aliases: tuple[str, ...]
    targets: list[RouteTarget]
    gate: Raw | None = None
    object: Literal["route"] = "route"


class RouteList(Struct, frozen=True):
    """All routes, in the order of the settings."""

    data: list[RouteState]
    object: Literal["list"] = "list"


class RouteExplanation(Struct, frozen=True, kw_only=True):
    """What a route would do with a request; see `gateway/explain.py`."""

    route: str
    policy: str
    prompt_tokens: int
    output_tokens: int
    targets: Raw
    labels: dict[str, float]
    personal: list[str] | None
    gate: Raw
    warnings: list[ParameterWarning] | UnsetType = UNSET


class ScoreBody(ChatBody, kw_only=True):
    """A request to a cascade, and the right answer; without it the large model is asked for one."""

    label: Annotated[str, Meta(max_length=1_000_000)] | None = None


class RouteScore(Struct, frozen=True, kw_only=True):
    """A pair for the calibration of a cascade: both answers, the small one's score, whether it is wrong, and
    the models that answered."""

    small: str
    large: str
    score: float | None
    is_wrong: bool
    small_model: str
    large_model: str


@Endpoint("GET", "/v1/routes", reply=RouteList)
async def list_routes(http: HttpRequest) -> Response:
    """The routes and the state of their targets."""
    remote = get_service(http).remote
    return json_response(RouteList([await _state(remote.routing, one) for one in remote.routes]))


async def _state(routing: RoutingHandler | None, route: Route) -> RouteState:
    assert routing is not None
    module = extra_module(EXTRA, "headrace.gateway.explain")
    gate = await module.explained_gate(routing, route)
    return RouteState(
        id=route.name,
        policy=route.settings.route,
        privacy=route.settings.privacy,
        aliases=route.settings.aliases,
        targets=[
            RouteTarget(
                target=one.name,
                provider=one.provider or "headrace",
                breaker=one.breaker.state,
                in_flight=one.in_flight,
                measured=one.speed.samples,
            )
            for one in routing.states_of(route)
        ],
        gate=None if gate is None else Raw(msgspec.json.encode(gate)),
    )


@Endpoint("POST", "/v1/routes/explain", body=ChatBody, reply=RouteExplanation)
async def explain_route(http: HttpRequest) -> Response:
    """What a route would do with a chat request; no model answers it."""
    body, call, service = await read_checked(ChatBody, http), call_of(http), get_service(http)
    routing, route = _route(service, body.model)
    module = extra_module(EXTRA, "headrace.gateway.explain")
    request = body.request(new_id("explain"))
    found = await done(http, module.explain(routing, route, request, call))
    told = {**msgspec.to_builtins(found), "warnings": call.warnings} if call.warnings else found
    return json_response(Raw(msgspec.json.encode(told)))


@Endpoint("POST", "/v1/routes/score", body=ScoreBody, reply=RouteScore)
async def score_route(http: HttpRequest) -> Response:
    """Ask both models of a cascade, for its calibration; needs a key with the scope admin."""
    body, call, service = await read_checked(ScoreBody, http), call_of(http), get_service(http)
    found = await done(http, _scored(body, call, service))
    return json_response(Raw(msgspec.json.encode(found)))


async def _scored(body: ScoreBody, call: HttpCall, service: Service) -> object:
    routing, route = _route(service, body.model)
    return await routing.scored(route, body.request(new_id("score")), call, body.label)


def _route(service: Service, name: str | None) -> tuple[RoutingHandler, Route]:
    route, routing = service.remote.find(name), service.remote.routing
    if route is None or routing is None:
        known = ", ".join(one.name for one in service.remote.routes[:20]) or "none"
        raise InvalidRequest(f"{name!r:.100} is no route: there are {known}", param="model")
    return routing, route
