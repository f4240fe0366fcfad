"""POST /v1/score and /score: how well texts answer others, in vLLM's shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.http.body import RequestBody
from headrace.api.http.call_context import HttpCall
from headrace.api.http.endpoint import Endpoint
from headrace.api.openai.schema import EmbeddingUsage
from headrace.api.service import Service, new_id, now_s
from headrace.api.tasks.texts import TEXTS, read_texts, reply_to, usage_of
from headrace.errors import InvalidRequest
from headrace.inference.events import ParameterWarning
from headrace.inference.requests import TextPair
from headrace.tasks.rerank import PairOptions, score_pairs


class ScoreBody(RequestBody, kw_only=True):
    """One text with each of several, or two lists of equal length, pair by pair."""

    text_1: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    text_2: Annotated[Any, Meta(extra_json_schema=TEXTS)]
    model: str | None = None
    truncate: bool = False


class PairScore(Struct, frozen=True, kw_only=True):
    """The score of a pair."""

    index: int
    score: float
    object: Literal["score"] = "score"


class ScoreReply(Struct, frozen=True, kw_only=True):
    """The scores, in the order of the pairs."""

    id: str
    created: int
    model: str
    data: list[PairScore]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
    warnings: list[ParameterWarning] | UnsetType = UNSET


async def _answer(body: ScoreBody, call: HttpCall, service: Service) -> ScoreReply:
    first, second = read_texts(body.text_1, "text_1"), read_texts(body.text_2, "text_2")
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise InvalidRequest(
            f"text_1 has {len(first):,} texts and text_2 {len(second):,}: send one, or as many of both",
            param="text_1",
        )
    pairs = [TextPair(*pair) for pair in zip(first, second, strict=True)]
    found = await score_pairs(service.runner, body.model, pairs, call, PairOptions(truncate=body.truncate))
    return ScoreReply(
        id=new_id("score"),
        created=now_s(),
        model=call.model,
        data=[PairScore(index=index, score=score) for index, score in enumerate(found)],
        usage=usage_of(call),
        warnings=call.warnings or UNSET,
    )


@Endpoint("POST", "/v1/score", body=ScoreBody, reply=ScoreReply)
async def score(http: HttpRequest) -> Response:
    """Scores of pairs of texts, by a reranker or an embedder."""
    return await reply_to(http, ScoreBody, _answer)


@Endpoint("POST", "/score", body=ScoreBody, reply=ScoreReply, hidden=True)
async def score_unversioned(http: HttpRequest) -> Response:
    """As /v1/score."""
    return await reply_to(http, ScoreBody, _answer)
