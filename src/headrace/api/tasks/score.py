"""POST /score and /v1/score: scores of pairs of texts, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import read_checked
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.generation import done
from headrace.api.openai.embedding_schema import EmbeddingUsage
from headrace.api.service import get_service, new_id, now_s
from headrace.api.tasks.task_body import TruncatingBody
from headrace.api.tasks.task_reply import TEXTS, pairs_of, usage_of
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.tasks.rerank import PairOptions, score_pairs


class ScoreBody(TruncatingBody, kw_only=True):
    """One text against several, or two lists of one length."""

    text_1: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    text_2: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    truncate: bool | None = None
    instruction: str | None = None
    use_activation: bool | None = None


class PairScore(Struct, frozen=True):
    """The score of a pair."""

    index: int
    score: float
    object: str = "score"


class ScoreReply(Struct, frozen=True):
    """The scores, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[PairScore]
    usage: EmbeddingUsage
    object: str = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


async def _scored(http: HttpRequest) -> Response:
    body = await read_checked(ScoreBody, http)
    call, runner = call_of(http), body.runner(get_service(http))
    options = PairOptions(
        truncate=body.cut(body.truncate), raw=body.use_activation is False, instruction=body.instruction
    )
    pairs = pairs_of(body.text_1, body.text_2)
    try:
        scores = await done(http, score_pairs(runner, body.model, pairs, call, options))
    except InvalidRequest as error:
        if error.param == "query":
            error.param = "text_1"
        raise
    data = [PairScore(index, score) for index, score in enumerate(scores)]
    reply = ScoreReply(
        new_id("score"), now_s(), call.model, data, usage_of(call), warnings=call.warnings or UNSET
    )
    return json_response(reply)


@Endpoint("POST", "/v1/score", body=ScoreBody, reply=ScoreReply)
async def score_v1(http: HttpRequest) -> Response:
    """How well the second text of each pair answers the first."""
    return await _scored(http)


@Endpoint("POST", "/score", body=ScoreBody, reply=ScoreReply)
async def score(http: HttpRequest) -> Response:
    """As /v1/score."""
    return await _scored(http)
