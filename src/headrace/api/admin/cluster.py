"""GET /v1/cluster, POST /v1/cluster/drain and /v1/cluster/replace: the replicas of models."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody, read_checked
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.service import Service, get_service
from headrace.cluster.cluster_client import ClusterClient
from headrace.cluster.replica_info import ReplicaInfo
from headrace.errors import InvalidRequest


class ModelReplicas(Struct, frozen=True, kw_only=True):
    """A model's replicas that run."""

    id: str
    policy: str
    replicas: list[ReplicaInfo]
    object: Literal["replicas"] = "replicas"


class ClusterList(Struct, frozen=True):
    """The models that replicas serve and that are loaded."""

    data: list[ModelReplicas]
    object: Literal["list"] = "list"


class ClusterBody(RequestBody, kw_only=True):
    """Which model; the default one where none is named."""

    model: Annotated[str, Meta(max_length=200)] | None = None


class DrainBody(ClusterBody, kw_only=True):
    """Which of its replicas."""

    replica: Annotated[int, Meta(ge=0, le=10_000)]


class ReplacedReplicas(Struct, frozen=True):
    """How many replicas were replaced."""

    id: str
    replaced: int


@Endpoint("GET", "/v1/cluster", reply=ClusterList)
async def list_replicas(http: HttpRequest) -> Response:
    """The replicas of each model; needs a key with the scope admin."""
    service = get_service(http)
    found = [(entry.name, entry.model.engine) for entry in service.models.entries if entry.model is not None]
    return json_response(
        ClusterList([_replicas(name, engine) for name, engine in found if isinstance(engine, ClusterClient)])
    )


@Endpoint("POST", "/v1/cluster/drain", body=DrainBody, reply=ModelReplicas)
async def drain_replica(http: HttpRequest) -> Response:
    """End a replica: it gets no more requests, and its own go on elsewhere if they take long."""
    body = await read_checked(DrainBody, http)
    name, engine = _engine(get_service(http), body.model)
    engine.drain(body.replica)
    return json_response(_replicas(name, engine))


@Endpoint("POST", "/v1/cluster/replace", body=ClusterBody, reply=ReplacedReplicas)
async def replace_replicas(http: HttpRequest) -> Response:
    """Start each replica anew, one after another, without an end to any reply."""
    body, service = await read_checked(ClusterBody, http), get_service(http)
    name, engine = _engine(service, body.model)
    return json_response(ReplacedReplicas(name, await service.run_in_thread(engine.replace)))


def _engine(service: Service, model: str | None) -> tuple[str, ClusterClient]:
    entry = service.models.default if model is None else service.find(model)
    engine = None if entry.model is None else entry.model.engine
    if not isinstance(engine, ClusterClient):
        raise InvalidRequest(
            f"{entry.name!r} has no replicas that run: start the server with `headrace cluster serve`",
            param="model",
        )
    return entry.name, engine


def _replicas(name: str, engine: ClusterClient) -> ModelReplicas:
    return ModelReplicas(id=name, policy=engine.policy, replicas=engine.replicas())
