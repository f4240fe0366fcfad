"""The served models in Anthropic's shape."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

from headrace.api.anthropic.schema import AnthropicModel, AnthropicModelList
from headrace.api.http.query import Query, page_size
from headrace.api.openai.model_schema import ModelCard
from headrace.errors import InvalidRequest

MAX_PAGE = 1000


def anthropic_model(card: ModelCard) -> AnthropicModel:
    """One model."""
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return AnthropicModel(card.id, card.id, created, card.context_length, card.context_length)


class ModelsQuery(Query, frozen=True):
    """The query of a list of models."""

    after_id: str | None = None
    before_id: str | None = None
    limit: Annotated[int, page_size(MAX_PAGE)] = 20


def anthropic_models(models: Sequence[ModelCard], query: ModelsQuery) -> AnthropicModelList:
    """The page of `models` that `limit`, `after_id` and `before_id` ask for; raises InvalidRequest."""
    cards, size = [anthropic_model(model) for model in models], query.limit
    ids = [card.id for card in cards]
    start, end = 0, len(ids)
    for name, value in (("after_id", query.after_id), ("before_id", query.before_id)):
        if value is not None and value not in ids:
            raise InvalidRequest(f"{name} is {value[:80]!r}, no model here has that id", param=name)
    if query.after_id is not None:
        start = ids.index(query.after_id) + 1
    if query.before_id is not None:
        end = ids.index(query.before_id)
        start = max(start, end - size)
    page = cards[start : min(end, start + size)]
    more = start > 0 if query.before_id is not None else start + size < end
    return AnthropicModelList(page, page[0].id if page else None, page[-1].id if page else None, more)
