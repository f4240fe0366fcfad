"""What a classifier of this machine says of a request: labels that a route's policy reads."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from headrace.config.providers import RemoteModelSettings
from headrace.errors import HeadraceError
from headrace.inference.call_context import CallContext
from headrace.inference.model_runner import ModelRunner
from headrace.inference.requests import ChatRequest, CompletionRequest, GenerationRequest
from headrace.tasks.classify import classify
from headrace.tasks.zero_shot import zero_shot

LOG = logging.getLogger("headrace.gateway")
READ_CHARACTERS = 8000
"""Of the end of a request: what it asks for mostly stands there."""


class Labeler:
    """Labels requests. `runner` runs the classifiers; None: there are none."""

    def __init__(self, runner: ModelRunner | None) -> None:
        self._runner = runner

    async def scores(
        self, settings: RemoteModelSettings, request: GenerationRequest, call: CallContext
    ) -> Mapping[str, float]:
        """The probability of each label. Empty, with a warning, where the classifier fails."""
        text, name = question_of(request), settings.classifier
        if self._runner is None or not text.strip():
            return {}
        own = call.nested("label")
        try:
            async with self._runner.lease(name, own) as model:
                classifies = "classify" in model.tasks
            if classifies:
                [found] = await classify(self._runner, name, [text], own, truncate=True)
            else:
                labels = tuple(settings.tasks) or ("easy", *settings.hard)
                [found] = await zero_shot(self._runner, name, [text], labels, own, truncate=True)
        except HeadraceError as error:
            LOG.warning("the classifier %r of a route failed: %s", name, error.message)
            call.warn("route", f"the request has no label: {error.message}")
            return {}
        return dict(zip(found.labels, found.scores, strict=True))


def question_of(request: GenerationRequest) -> str:
    """The last message of the user, or the last prompt; its end where it is long."""
    if isinstance(request, ChatRequest):
        users = [one.content for one in request.messages if one.role == "user" and one.content]
        return users[-1][-READ_CHARACTERS:] if users else ""
    assert isinstance(request, CompletionRequest)
    texts = [one for one in request.prompts if isinstance(one, str)]
    return texts[-1][-READ_CHARACTERS:] if texts else ""
