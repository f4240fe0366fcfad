"""POST /v1/explain: what a request would do, take and cost; nothing is computed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from typing import Any, NoReturn

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.batch_operations import Operation
from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.call_context import HttpCall, call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.service import Service, get_service
from headrace.config.extras import extra_module
from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.explanation import prediction
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import GenerationRequest, InferenceRequest
from headrace.telemetry.explain_node import ExplainNode


class ExplainBody(RequestBody, kw_only=True):
    """A request, as the endpoint with that path takes it."""

    endpoint: str
    body: dict[str, Any]


class _Caught(Exception):
    """A request has come to the chain of handlers."""

    def __init__(self, request: InferenceRequest) -> None:
        super().__init__("a request that is not run")
        self.request = request


class _Catching:
    """Takes the place of the chain of handlers."""

    def handle(self, request: InferenceRequest, call: CallContext) -> NoReturn:
        """See `Handler.handle`."""
        raise _Caught(request)


@Endpoint("POST", "/v1/explain", body=ExplainBody, reply=ExplainNode)
async def explain(http: HttpRequest) -> Response:
    """What a request would do, with the seconds that are predicted: its prompt is made and looked up in the
    prefix cache, and nothing is computed. Of a request for several texts the first part is explained."""
    body, call, service = await read_checked(ExplainBody, http), call_of(http), get_service(http)
    operations: Mapping[str, Operation] = http.app.state.operations
    operation = operations.get(body.endpoint)
    if operation is None:
        known = ", ".join(sorted(operations))
        raise InvalidRequest(
            f"{body.endpoint[:80]!r} cannot be explained: name one of {known}", param="endpoint"
        )
    tree = await done(http, _explained(operation, body.body, call, service))
    call.traces.clear()  # the log and telemetry would count tokens that are only predicted
    return json_response(tree)


async def _explained(
    operation: Operation, body: Mapping[str, Any], call: HttpCall, service: Service
) -> ExplainNode:
    catching = copy(service)
    catching.handler = _Catching()
    catching.runner = ModelRunner(catching.handler, service.sources, service.model_threads)
    try:
        await operation(json.dumps(body).encode(), call, catching)  # which knows large integers
    except _Caught as caught:
        request = caught.request
    else:
        raise InvalidRequest("this request asks no model: there is nothing to explain", param="body")
    route, routing = service.remote.find(request.model), service.remote.routing
    if route is None or routing is None:
        return await prediction(service.local, request, call, service.settings.node_usd_per_hour)
    if not isinstance(request, GenerationRequest):
        raise InvalidRequest(
            f"{route.name} is a remote model, of which only requests that generate are explained",
            param="body",
        )
    found = await extra_module("gateway", "headrace.gateway.explain").explain(routing, route, request, call)
    return ExplainNode("request", 0.0, detail={"computed": False}, children=(_routed(found),))


def _routed(found: Any) -> ExplainNode:
    """What a route would do, and expects of each target."""
    facts = msgspec.to_builtins(found)
    targets = [{name: value for name, value in one.items() if value is not None} for one in facts["targets"]]
    children = tuple(
        ExplainNode(f"target {one['target']}", 0.0, one.get("seconds", msgspec.UNSET), detail=one)
        for one in targets
    )
    names = ("route", "policy", "prompt_tokens", "output_tokens", "personal")
    return ExplainNode("route", 0.0, detail={name: facts[name] for name in names}, children=children)
