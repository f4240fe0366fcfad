"""GET /v1beta/models and /v1beta/models/{model}."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.api.google.generate import MODEL
from headrace.api.google.schema import GoogleModel, GoogleModelList
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import NotFound, json_response
from headrace.api.http.query import Query, read_query
from headrace.api.openai.model_schema import ModelCard
from headrace.api.openai.models import model_cards
from headrace.api.service import get_service
from headrace.errors import InvalidRequest

METHODS = ["generateContent", "streamGenerateContent", "countTokens", "embedContent", "batchEmbedContents"]


class PageQuery(Query, frozen=True):
    """The query of a list of models."""

    pageSize: Annotated[int, Meta(ge=1, le=1000)] = 50
    pageToken: str | None = None


def google_model(card: ModelCard) -> GoogleModel:
    """One model. Which methods it has is known once it is loaded: a wrong one is refused by name."""
    limit = UNSET if card.context_length is None else card.context_length
    return GoogleModel(f"models/{card.id}", card.id, "1", card.id, METHODS, limit, limit)


@Endpoint("GET", "/v1beta/models", reply=GoogleModelList, query=PageQuery)
async def list_google_models(http: HttpRequest) -> Response:
    """The served models, the default one first."""
    service, query = get_service(http), read_query(PageQuery, http)
    service.gate.check_started()
    cards = model_cards(service).data
    start = 0
    if query.pageToken is not None:
        ids = [card.id for card in cards]
        if query.pageToken not in ids:
            raise InvalidRequest(f"pageToken {query.pageToken[:80]!r} is of no list here", param="pageToken")
        start = ids.index(query.pageToken)
    page, rest = cards[start : start + query.pageSize], cards[start + query.pageSize :]
    token = rest[0].id if rest else UNSET
    return json_response(GoogleModelList([google_model(card) for card in page], token))


@Endpoint("GET", MODEL, reply=GoogleModel)
async def get_google_model(http: HttpRequest, model: str) -> Response:
    """One model, or 404."""
    service = get_service(http)
    service.gate.check_started()
    for card in model_cards(service).data:
        if model == card.id or model in card.aliases:
            return json_response(google_model(card))
    raise NotFound(f"no model is named {model[:80]!r}", param="model")
