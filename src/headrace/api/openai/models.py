"""GET /v1/models and /v1/models/{id}, in OpenAI's shape or Anthropic's; POST to load and unload a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from headrace.adapt.students.rungs.names import PREFIX
from headrace.api.anthropic.errors import MESSAGES_PATH
from headrace.api.anthropic.models import ModelsQuery, anthropic_model, anthropic_models
from headrace.api.anthropic.schema import AnthropicModel, AnthropicModelList
from headrace.api.http.call_context import call_of
from headrace.api.http.endpoint import Endpoint
from headrace.api.http.errors import json_response
from headrace.api.http.query import read_query
from headrace.api.openai.model_schema import ModelCard, ModelList
from headrace.api.service import Service, get_service
from headrace.inference.adapted_engine import adapted_name

if TYPE_CHECKING:
    from headrace.gateway.routes import Route
    from headrace.workers.model_adapters import NamedAdapter
    from headrace.workers.model_entry import ModelEntry


def _card(entry: ModelEntry) -> ModelCard:
    model = entry.model
    context = None if model is None else model.context_length
    return ModelCard(
        *(entry.name, entry.created_s if model is None else model.created_s, context, context),
        state=entry.state,
        aliases=entry.spec.aliases,
        memory_bytes=entry.reserved_bytes or None,
        in_use=entry.uses,
        restarts=entry.restarts,
        failure=entry.cause,
    )


def model_cards(service: Service) -> ModelList:
    """The served models, the default one first, then their adapters, then the aliases that clients made."""
    cards = {entry.name: _card(entry) for entry in service.models.entries}
    adapted = [
        _adapter_card(cards[entry.name], one)
        for entry in service.models.entries
        for one in entry.adapters.named
        if not one.name.startswith(PREFIX)
    ]
    aliased = [
        replace(cards[alias.target], id=name, created=alias.created_s, aliases=())
        for name, alias in service.sources.aliases.items()
        if alias.target in cards and not service.models.serves(name)
    ]
    return ModelList([*cards.values(), *adapted, *aliased, *map(_remote_card, service.remote.routes)])


def _adapter_card(base: ModelCard, adapter: NamedAdapter) -> ModelCard:
    """An adapter as a model of its own."""
    failure = None if adapter.failure is None else adapter.failure.message
    return replace(
        base,
        id=adapted_name(base.id, adapter.name),
        created=adapter.created_s,
        aliases=(),
        state="failed" if failure else base.state,
        memory_bytes=adapter.nbytes or None,
        in_use=0,
        failure=failure or base.failure,
        parent=base.id,
    )


def _remote_card(route: Route) -> ModelCard:
    """A model that is answered elsewhere: what its provider would say of it is not known here."""
    return ModelCard(
        *(route.name, route.created_s, None, None),
        owned_by=",".join(route.owners),
        state="remote",
        aliases=route.settings.aliases,
    )


def _for_anthropic(http: HttpRequest) -> bool:
    return call_of(http).surface == MESSAGES_PATH


@Endpoint("GET", "/v1/models", reply=(ModelList, AnthropicModelList))
async def list_models(http: HttpRequest) -> Response:
    """The served models, the default one first; with the header `anthropic-version` in Anthropic's shape."""
    service = get_service(http)
    service.gate.check_started()
    cards = model_cards(service)
    if _for_anthropic(http):
        return json_response(anthropic_models(cards.data, read_query(ModelsQuery, http)))
    return json_response(cards)


@Endpoint("GET", "/v1/models/{name:path}", reply=(ModelCard, AnthropicModel))
async def get_model(http: HttpRequest, name: str) -> Response:
    """One model, or 404; with the header `anthropic-version` in Anthropic's shape, also of errors."""
    service = get_service(http)
    service.gate.check_started()
    found = next((card for card in model_cards(service).data if card.id == name), None)
    card = found or _card(service.find(name))
    return json_response(anthropic_model(card) if _for_anthropic(http) else card)


@Endpoint("POST", "/v1/models/{name:path}/load", reply=ModelCard)
async def load_model(http: HttpRequest, name: str) -> Response:
    """Load a model now, also one that has failed; the reply comes when it is there."""
    service = get_service(http)
    entry = service.find(name)
    await service.models.forget_failure(entry)
    await service.use(call_of(http), name)
    return json_response(_card(entry))


@Endpoint("POST", "/v1/models/{name:path}/unload", reply=ModelCard)
async def unload_model(http: HttpRequest, name: str) -> Response:
    """Unload a model: at once, or when the last request that uses it has ended."""
    service = get_service(http)
    entry = service.find(name)
    await service.models.unload_when_idle(entry)
    return json_response(_card(entry))
