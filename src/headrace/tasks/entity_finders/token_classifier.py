"""Models that classify tokens: they find entities of their own labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.errors import InvalidRequest
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.tasks.entity_finders.search import Search
from headrace.tasks.token_classify import token_classify
from headrace.tasks.token_labels import TokenEntity, names_of

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel

_SHOWN = 20


async def classified_entities(
    runner: ModelRunner,
    model: LoadedModel,
    texts: Sequence[str],
    labels: Sequence[str] | None,
    search: Search,
    call: CallContext,
) -> list[list[TokenEntity]]:
    """Of each text the entities of those labels of the model that are wanted, None: of all.

    Raises InvalidRequest for labels that are not the model's, and for a window: its windows have the size of
    the context.
    """
    assert model.head is not None
    names = names_of(model.head.labels)
    own = set(names.values())
    unknown = sorted(set(labels or ()) - own)
    if unknown:
        raise InvalidRequest(
            f"{model.name} has no label {unknown[0][:80]!r}, only {', '.join(sorted(own)[:_SHOWN])}: leave"
            " labels out or choose among these",
            param="labels",
        )
    if search.window is not None:
        raise InvalidRequest(
            f"windows of {model.name} have the size of its context: give stride and no window", param="window"
        )
    for param, given in (("flat_ner", not search.flat_ner), ("multi_label", search.multi_label)):
        if given:
            call.warn(param, f"{model.name} classifies tokens: entities never overlap and have one label")
    found = await token_classify(
        runner,
        model.name,
        texts,
        call,
        aggregation=search.aggregation or "simple",
        truncate=search.truncate,
        stride=search.stride,
        priority=search.priority,
        deadline_s=search.deadline_s,
    )
    wanted, least = own if labels is None else set(labels), search.threshold or 0.0
    return [
        [one for one in entities if names.get(one.label, one.label) in wanted and one.score > least]
        for entities in found
    ]
