"""What answers a request, as far as it changes answers: models of this machine, and routes to others."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

from headrace import _native
from headrace.chat.templates.dates import CLOCK, DATE, DATETIME
from headrace.errors import HeadraceError
from headrace.gateway.response_key import ModelIdentity
from headrace.gateway.typed_values import encode_value
from headrace.inference.call_context import CallContext
from headrace.inference.local_handler import fingerprint_of
from headrace.inference.model_source import ManagedModels
from headrace.inference.requests import ChatRequest, GenerationRequest
from headrace.sampling.params import with_defaults

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel
    from headrace.gateway.routes import Route

_TIME_OF_DAY = re.compile(r"%-?[HIMSpfcXTRsrzZ]")


class LocalIdentities:
    """The identities of models of this machine. A model that is not in memory is loaded, as the request will
    have it done anyway."""

    def __init__(self, models: ManagedModels, tool_format: Callable[[], str | None]) -> None:
        self._models, self._tool_format = models, tool_format

    async def __call__(self, request: GenerationRequest, call: CallContext) -> ModelIdentity | None:
        """The identity of what a request will be answered by; None where it has no answer that stays the
        same, or none at all."""
        try:
            entry = self._models.find(request.model)
            kept_s = entry.spec.keep_alive_s if request.keep_alive_s is None else request.keep_alive_s
            if kept_s == 0:  # to look at it would load it, before and after the request does
                return None
            model, release = await self._models.acquire(request.model, request.keep_alive_s, call)
        except HeadraceError:  # the handler behind says so
            return None
        try:
            now = _calendar(request, model)
            if now is None or "generate" not in model.tasks:
                return None
            params = with_defaults(model.defaults, request.sampling)
            parts = (
                *(fingerprint_of(model), repr(entry.spec), str(model.context_length), _native.isa()),
                *(self._tool_format() or "", "" if model.template is None else model.template.source),
                dict(model.template_variables),
            )
            digest = hashlib.sha256(encode_value(parts)).digest()
            return ModelIdentity(name=model.name, digest=digest, params=params, now=now)
        except HeadraceError:
            return None
        finally:
            release()


def _calendar(request: GenerationRequest, model: LoadedModel) -> str | None:
    """What a template reads of the date: "" for nothing, None where it may be the time of day."""
    if not isinstance(request, ChatRequest) or model.template is None:
        return ""
    source = model.template.source
    given = {**model.template_variables, **(request.template_variables or {})}
    if DATE in given or not any(name in source for name in (CLOCK, DATE, DATETIME)):
        return ""
    return None if _TIME_OF_DAY.search(source) else datetime.now().date().isoformat()


class RemoteIdentities:
    """The identities of remote models whose settings allow that their answers are kept. Where a model of this
    machine may answer instead, the cache of those is asked."""

    def __init__(self, find: Callable[[str | None], Route | None]) -> None:
        self._find = find

    def knows(self, request: GenerationRequest) -> bool:
        """Whether there may be an identity."""
        route = self._find(request.model)
        return route is not None and route.settings.cache

    async def __call__(self, request: GenerationRequest, call: CallContext) -> ModelIdentity | None:
        """The identity of what a request will be answered by; None where its answers are not kept."""
        route = self._find(request.model)
        if route is None or not route.settings.cache:
            return None
        parts: list[tuple[str, ...]] = [route.settings.drop]
        for target in route.targets:
            provider = getattr(target, "provider", None)
            if provider is None:
                return None
            parts.append((provider.name, provider.base_url, *target.key))
        digest = hashlib.sha256(encode_value(parts)).digest()
        return ModelIdentity(name=route.name, digest=digest, is_local=False)
