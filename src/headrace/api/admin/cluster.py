"""GET /v1/cluster, POST /v1/cluster/drain, …/replace and …/update: the replicas of models."""

from __future__ import annotations

import time
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
    """A model's replicas that run, how many are `wanted`, and how many are `starting`. `nodes` are their
    machines. Of the requests that are `in_flight`, some are `waiting` for a replica. `hit_rate` is the share
    of the prompts' tokens that came from the cache, `attained` the share of recent requests that kept the
    targets. `problem`: why the last start of a replica failed."""

    id: str
    policy: str
    wanted: int
    starting: int
    nodes: list[str]
    in_flight: int
    waiting: int
    hit_rate: float | None
    attained: float | None
    problem: str | None
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


@Endpoint("POST", "/v1/cluster/update", body=ClusterBody, reply=ReplacedReplicas)
async def update_replicas(http: HttpRequest) -> Response:
    """Take new weights from the model's files, replica by replica; replies that have begun keep the old."""
    body, service = await read_checked(ClusterBody, http), get_service(http)
    name, engine = _engine(service, body.model)

    def update() -> int:
        if not engine.has_new_weights:
            raise InvalidRequest(
                f"the files of {name!r} are those that its replicas have: put new ones there first, or start "
                "the replicas anew with `headrace cluster replace`",
                param="model",
            )
        return engine.replace()

    return json_response(ReplacedReplicas(name, await service.run_in_thread(update)))


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
    replicas, (in_flight, waiting) = engine.replicas(), engine.load()
    prompts = sum(one.prompt_tokens for one in replicas)
    return ModelReplicas(
        id=name,
        policy=engine.policy,
        wanted=engine.wanted,
        starting=engine.starting,
        nodes=sorted({one.node for one in replicas}),
        in_flight=in_flight,
        waiting=waiting,
        hit_rate=sum(one.cached_tokens for one in replicas) / prompts if prompts else None,
        attained=engine.attained(time.monotonic()),
        problem=engine.problem,
        replicas=replicas,
    )
