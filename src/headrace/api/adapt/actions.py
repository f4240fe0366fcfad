"""/v1/adapt/*: what `headrace adapt` does, of a running server, for keys with the scope admin.

A server without keys answers them to clients of its own machine only."""

from __future__ import annotations

from collections.abc import Coroutine
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.adapt.replies import (
    DiagnoseReply,
    EvaluatorBody,
    ExportQuery,
    FindBody,
    ForgetBody,
    ForgetReply,
    HistoryQuery,
    HistoryReply,
    LabelsBody,
    LabelsReply,
    PairsQuery,
    PairsReply,
    PromoteBody,
    PromoteReply,
    RenameBody,
    RollbackReply,
    ShadowReply,
    StatusReply,
    TaskBody,
    TasksReply,
    TrainBody,
    TrainReply,
)
from headrace.api.http.body import read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Content, Endpoint
from headrace.api.http.errors import Forbidden, json_response
from headrace.api.http.generation import done
from headrace.api.http.middleware import host_name, is_loopback
from headrace.api.http.query import read_query
from headrace.api.service import get_service
from headrace.config.extras import extra_module
from headrace.errors import InvalidRequest, NotEnabled

if TYPE_CHECKING:
    from headrace.adapt.served_actions import ServedActions

EXTRA = "gateway"
LINES = "application/x-ndjson"
PROXIED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
OFF = {501: "The table [adapt] is not enabled."}


def _actions(http: HttpRequest) -> ServedActions:
    """Those of the server. NotEnabled without the table [adapt]; Forbidden for a client elsewhere where there
    are no keys: what users have said is no open reading."""
    service = get_service(http)
    if not service.keys.required and not _is_of_this_machine(http):
        raise Forbidden(
            "the server has no keys: /v1/adapt/* is answered to clients of its own machine only; make a key "
            "with `headrace keys add NAME --scope admin`"
        )
    if service.adapting is None:
        raise NotEnabled("nothing is collected here: enable it with the table [adapt] of headrace.toml")
    return service.adapting.actions


def _is_of_this_machine(http: HttpRequest) -> bool:
    """Not what a proxy of this machine hands on, nor a web page that has given this machine another name. A
    client over a socket of the file system has no address."""
    if any(name in http.headers for name in PROXIED):
        return False
    if http.client is None or not http.client.host:
        return True
    name = host_name(http.headers.get("host", "localhost"))
    try:
        return ip_address(http.client.host).is_loopback and is_loopback(name)
    except ValueError:
        return False


def _who(http: HttpRequest) -> str:
    """Who decides, for the record."""
    name = call_of(http).account.name
    return f"{name} over HTTP" if name else "a client without a key over HTTP"


async def _answered(http: HttpRequest, work: Coroutine[Any, Any, Struct]) -> Response:
    return json_response(Raw(msgspec.json.encode(await done(http, work))))


@Endpoint("GET", "/v1/adapt/status", reply=StatusReply, errors=OFF)
async def status(http: HttpRequest) -> Response:
    """What is collected, and how students stand."""
    return await _answered(http, _actions(http).status())


@Endpoint("GET", "/v1/adapt/tasks", reply=TasksReply, errors=OFF)
async def tasks(http: HttpRequest) -> Response:
    """The tasks in the traffic, with the groups that were found last."""
    found = await done(http, _actions(http).tasks())
    return json_response(Raw(msgspec.json.encode({"object": "list", "data": found})))


@Endpoint("POST", "/v1/adapt/tasks", body=FindBody, reply=TasksReply, errors=OFF)
async def find_tasks(http: HttpRequest) -> Response:
    """Find the groups of all tasks anew."""
    await read_checked(FindBody, http)
    found = await done(http, _actions(http).find_tasks())
    return json_response(Raw(msgspec.json.encode({"object": "list", "data": found})))


@Endpoint("POST", "/v1/adapt/rename", body=RenameBody, reply=TasksReply, errors=OFF)
async def rename(http: HttpRequest) -> Response:
    """Give a task a name that stays."""
    body = await read_checked(RenameBody, http)
    found = await done(http, _actions(http).rename(body.task, body.name))
    return json_response(Raw(msgspec.json.encode({"object": "list", "data": found})))


@Endpoint("POST", "/v1/adapt/evaluator", body=EvaluatorBody, reply=TasksReply, errors=OFF)
async def evaluator(http: HttpRequest) -> Response:
    """Say what compares students of a task with what answers today: equality, or a judge."""
    body = await read_checked(EvaluatorBody, http)
    found = await done(http, _actions(http).evaluate_by(body.task, body.evaluator))
    return json_response(Raw(msgspec.json.encode({"object": "list", "data": found})))


@Endpoint("GET", "/v1/adapt/tasks/{task}/labels", query=PairsQuery, reply=PairsReply, errors=OFF)
async def pairs(http: HttpRequest, task: str) -> Response:
    """Pairs of answers, the student's and today's, that people should compare, without saying which is
    which."""
    query = read_query(PairsQuery, http)
    found = await done(http, _actions(http).to_label(task, query.limit))
    return json_response(Raw(msgspec.json.encode({"object": "list", "data": found})))


@Endpoint("POST", "/v1/adapt/tasks/{task}/labels", body=LabelsBody, reply=LabelsReply, errors=OFF)
async def labels(http: HttpRequest, task: str) -> Response:
    """Keep which answers people prefer. They say how far the task's judge can be trusted."""
    body, wanted = await read_checked(LabelsBody, http), _actions(http)
    kind = extra_module(EXTRA, "headrace.adapt.decisions.comparisons").PairLabel
    given = [kind(pair=one.pair, preferred=one.preferred) for one in body.labels]
    return await _answered(http, wanted.label(task, given, _who(http)))


@Endpoint("POST", "/v1/adapt/diagnose", body=TaskBody, reply=DiagnoseReply, errors=OFF)
async def diagnose(http: HttpRequest) -> Response:
    """What a task costs, where it goes wrong, and what a student could answer."""
    body = await read_checked(TaskBody, http)
    return await _answered(http, _actions(http).diagnose(body.task))


@Endpoint("GET", "/v1/adapt/history", query=HistoryQuery, reply=HistoryReply, errors=OFF)
async def history(http: HttpRequest) -> Response:
    """The students of a task, and what was decided about them, when and by whom."""
    query = read_query(HistoryQuery, http)
    return await _answered(http, _actions(http).history(query.task))


@Endpoint("POST", "/v1/adapt/train", body=TrainBody, reply=TrainReply, errors=OFF)
async def train(http: HttpRequest) -> Response:
    """Make the best student of a task."""
    body = await read_checked(TrainBody, http)
    return await _answered(http, _actions(http).train(body.task, body.rung))


@Endpoint("POST", "/v1/adapt/shadow", body=TaskBody, reply=ShadowReply, errors=OFF)
async def shadow(http: HttpRequest) -> Response:
    """Judge a student beside what answers today."""
    body = await read_checked(TaskBody, http)
    return await _answered(http, _actions(http).shadow(body.task, _who(http)))


@Endpoint("POST", "/v1/adapt/promote", body=PromoteBody, reply=PromoteReply, errors=OFF)
async def promote(http: HttpRequest) -> Response:
    """Let a student that is ready answer."""
    body, service = await read_checked(PromoteBody, http), get_service(http)
    wanted = _actions(http)
    how = extra_module(EXTRA, "headrace.adapt.actions").PromotionTerms(
        share=body.share, audit=body.audit, accepts_slices=body.accept_slices
    )
    where = service.remote.routes, service.served_name
    return await _answered(http, wanted.promote(body.task, *where, _who(http), how))


@Endpoint("POST", "/v1/adapt/rollback", body=TaskBody, reply=RollbackReply, errors=OFF)
async def rollback(http: HttpRequest) -> Response:
    """Let the large model answer again, at once."""
    body = await read_checked(TaskBody, http)
    return await _answered(http, _actions(http).rollback(body.task, _who(http)))


@Endpoint(
    "GET",
    "/v1/adapt/export",
    query=ExportQuery,
    content=(Content(LINES, {"type": "string", "description": "A line of JSON for each record."}),),
    errors=OFF,
)
async def export(http: HttpRequest) -> Response:
    """All that is kept, of one key or of all: a line of JSON for each example, task, student, decision and
    piece of evidence; `record` says which."""
    query = read_query(ExportQuery, http)
    lines = await done(http, _actions(http).export(query.key))
    text = b"".join(msgspec.json.encode(one) + b"\n" for one in lines)
    return Response(text, media_type=LINES)


@Endpoint("POST", "/v1/adapt/forget", body=ForgetBody, reply=ForgetReply, errors=OFF)
async def forget(http: HttpRequest) -> Response:
    """Delete what is kept: of a key, of one reply, or all; what was learned from it goes, too."""
    body = await read_checked(ForgetBody, http)
    if (body.key is not None) + (body.reply is not None) + body.all != 1:
        raise InvalidRequest("forget takes one of key, reply and all", param="key")
    gone = await done(http, _actions(http).forget(body.key, body.reply))
    return json_response(ForgetReply(gone.examples, gone.students))
