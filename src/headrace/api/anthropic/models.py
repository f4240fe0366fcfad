"""The served models in Anthropic's shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from headrace.api.anthropic.schema import AnthropicModel, AnthropicModelList
from headrace.api.openai.schema import ModelCard
from headrace.errors import InvalidRequest

MAX_PAGE = 1000


def anthropic_model(card: ModelCard) -> AnthropicModel:
    """One model."""
    created = datetime.fromtimestamp(card.created, UTC).isoformat().replace("+00:00", "Z")
    return AnthropicModel(card.id, card.id, created, card.context_length, card.context_length)


def anthropic_models(models: Sequence[ModelCard], query: Mapping[str, str]) -> AnthropicModelList:
    """The page of `models` that `limit`, `after_id` and `before_id` ask for; raises InvalidRequest."""
    limit = query.get("limit", "20")
    if not limit.isascii() or not limit.isdecimal() or not 1 <= int(limit[:9]) <= MAX_PAGE:
        raise InvalidRequest(f"limit is {limit[:40]!r}, it must be in [1, {MAX_PAGE}]", param="limit")
    cards, size = [anthropic_model(model) for model in models], int(limit)
    ids = [card.id for card in cards]
    start, end = 0, len(ids)
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in ids:
            raise InvalidRequest(f"{name} is {query[name][:80]!r}, no model here has that id", param=name)
    if "after_id" in query:
        start = ids.index(query["after_id"]) + 1
    if "before_id" in query:
        end = ids.index(query["before_id"])
        start = max(start, end - size)
    page = cards[start : min(end, start + size)]
    more = start > 0 if "before_id" in query else start + size < end
    return AnthropicModelList(page, page[0].id if page else None, page[-1].id if page else None, more)
